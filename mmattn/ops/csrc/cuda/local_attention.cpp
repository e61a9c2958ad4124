#include <torch/library.h>

#include "neighbourhood_of.h"

namespace mmattn::cuda {
namespace {

using at::Tensor;
using std::optional;

Neighbourhood call_of(const optional<Tensor>& query, const optional<Tensor>& key, const Tensor& value,
                      const optional<Tensor>& window, at::IntArrayRef kernel_size, int64_t dilation, double scale,
                      int64_t iterations) {
  Neighbourhood call = neighbourhood_of(value, window, kernel_size, dilation);
  call.scale = static_cast<float>(scale);
  call.iterations = static_cast<int>(iterations);
  call.query = map_of(query);
  call.key = map_of(key);
  return call;
}

Tensor local_attention(const optional<Tensor>& query, const optional<Tensor>& key, const Tensor& value,
                       const optional<Tensor>& window, at::IntArrayRef kernel_size, int64_t dilation, double scale,
                       int64_t iterations) {
  const c10::cuda::CUDAGuard guard(value.device());
  Neighbourhood call = call_of(query, key, value, window, kernel_size, dilation, scale, iterations);
  Tensor out = at::empty_like(value);
  call.out = map_of(out);
  C10_CUDA_CHECK(neighbourhood(call, c10::cuda::getCurrentCUDAStream()));
  return out;
}

std::vector<Tensor> local_attention_backward(const Tensor& grad, const optional<Tensor>& query,
                                             const optional<Tensor>& key, const Tensor& value,
                                             const optional<Tensor>& window, at::IntArrayRef kernel_size,
                                             int64_t dilation, double scale, int64_t iterations) {
  const c10::cuda::CUDAGuard guard(value.device());
  Neighbourhood call = call_of(query, key, value, window, kernel_size, dilation, scale, iterations);
  call.grad = map_of(grad);
  std::vector<Tensor> grads;
  const auto empty = [&](const optional<Tensor>& like) {
    return like ? map_of(grads.emplace_back(at::empty_like(*like))) : Map{};
  };
  call.d_query = empty(query);
  call.d_key = empty(key);
  call.d_value = empty(value);
  call.d_window = empty(window);
  run_backward(call, value);
  return grads;
}

}  // namespace
}  // namespace mmattn::cuda

TORCH_LIBRARY_IMPL(mmattn_native, CUDA, m) {
  m.impl("local_attention", mmattn::cuda::local_attention);
  m.impl("local_attention_backward", mmattn::cuda::local_attention_backward);
}
