#include <torch/library.h>

#include "neighbourhood_of.h"

namespace mmattn::cuda {
namespace {

using at::Tensor;

Neighbourhood call_of(const Tensor& value, const Tensor& logits, at::IntArrayRef kernel_size, int64_t dilation) {
  Neighbourhood call = neighbourhood_of(value, logits, kernel_size, dilation);
  call.padded = true;
  return call;
}

Tensor dynamic_conv(const Tensor& value, const Tensor& logits, at::IntArrayRef kernel_size, int64_t dilation) {
  const c10::cuda::CUDAGuard guard(value.device());
  Neighbourhood call = call_of(value, logits, kernel_size, dilation);
  Tensor out = at::empty_like(value);
  call.out = map_of(out);
  C10_CUDA_CHECK(neighbourhood(call, c10::cuda::getCurrentCUDAStream()));
  return out;
}

std::tuple<Tensor, Tensor> dynamic_conv_backward(const Tensor& grad, const Tensor& value, const Tensor& logits,
                                                 at::IntArrayRef kernel_size, int64_t dilation) {
  const c10::cuda::CUDAGuard guard(value.device());
  Neighbourhood call = call_of(value, logits, kernel_size, dilation);
  Tensor d_value = at::empty_like(value), d_logits = at::empty_like(logits);
  call.grad = map_of(grad);
  call.d_value = map_of(d_value);
  call.d_window = map_of(d_logits);
  run_backward(call, value);
  return {d_value, d_logits};
}

}  // namespace
}  // namespace mmattn::cuda

TORCH_LIBRARY_IMPL(mmattn_native, CUDA, m) {
  m.impl("dynamic_conv", mmattn::cuda::dynamic_conv);
  m.impl("dynamic_conv_backward", mmattn::cuda::dynamic_conv_backward);
}
