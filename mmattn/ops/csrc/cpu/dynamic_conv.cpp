#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "capability.h"
#include "parallel_rows.h"

namespace mmattn {
namespace {

using at::Tensor;

LocalAttention call_of(const Tensor& value, const Tensor& logits, at::IntArrayRef kernel_size, int64_t dilation) {
  LocalAttention call{};
  call.group = 1;
  call.heads = value.size(1);
  call.height = value.size(2);
  call.width = value.size(3);
  call.kernel[0] = kernel_size[0];
  call.kernel[1] = kernel_size[1];
  call.dilation = dilation;
  call.padded = true;
  call.iterations = 1;
  call.value = map_of(value);
  call.window = map_of(logits);
  return call;
}

Tensor dynamic_conv(const Tensor& value, const Tensor& logits, at::IntArrayRef kernel_size, int64_t dilation) {
  LocalAttention call = call_of(value, logits, kernel_size, dilation);
  Tensor out = at::empty_like(value);
  call.out = map_of(out);
  group_heads(call, 128, {&call.value, &call.window, &call.out});
  parallel_rows(cpu_capability().local_attention, call, value.size(0));
  return out;
}

std::tuple<Tensor, Tensor> dynamic_conv_backward(const Tensor& grad, const Tensor& value, const Tensor& logits,
                                                 at::IntArrayRef kernel_size, int64_t dilation) {
  LocalAttention call = call_of(value, logits, kernel_size, dilation);
  Tensor d_value = at::empty_like(value), d_logits = at::empty_like(logits);
  call.grad = map_of(grad);
  call.d_value = map_of(d_value);
  call.d_window = map_of(d_logits);
  group_heads(call, 128, {&call.value, &call.window, &call.grad, &call.d_value, &call.d_window});
  parallel_rows(cpu_capability().local_attention_backward, call, value.size(0));
  return {d_value, d_logits};
}

}  // namespace
}  // namespace mmattn

TORCH_LIBRARY_FRAGMENT(mmattn_native, m) {
  m.def("dynamic_conv(Tensor value, Tensor logits, int[] kernel_size, int dilation) -> Tensor");
  m.def(
      "dynamic_conv_backward(Tensor grad, Tensor value, Tensor logits, int[] kernel_size, int dilation) "
      "-> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(mmattn_native, CPU, m) {
  m.impl("dynamic_conv", mmattn::dynamic_conv);
  m.impl("dynamic_conv_backward", mmattn::dynamic_conv_backward);
}
