#include "local_attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "capability.h"
#include "parallel_rows.h"

namespace mmattn {
namespace {

using at::Tensor;
using std::optional;

LocalAttention call_of(const optional<Tensor>& query, const optional<Tensor>& key, const Tensor& value,
                       const optional<Tensor>& window, at::IntArrayRef kernel_size, int64_t dilation, double scale,
                       int64_t iterations) {
  LocalAttention call{};
  call.group = 1;
  call.heads = value.size(1);
  call.height = value.size(2);
  call.width = value.size(3);
  call.kernel[0] = kernel_size[0];
  call.kernel[1] = kernel_size[1];
  call.dilation = dilation;
  call.scale = static_cast<float>(scale);
  call.iterations = iterations;
  call.query = map_of(query);
  call.key = map_of(key);
  call.value = map_of(value);
  call.window = map_of(window);
  return call;
}

Tensor local_attention(const optional<Tensor>& query, const optional<Tensor>& key, const Tensor& value,
                       const optional<Tensor>& window, at::IntArrayRef kernel_size, int64_t dilation, double scale,
                       int64_t iterations) {
  LocalAttention call = call_of(query, key, value, window, kernel_size, dilation, scale, iterations);
  Tensor out = at::empty_like(value);
  call.out = map_of(out);
  group_heads(call, 128, {&call.query, &call.key, &call.value, &call.window, &call.out});
  parallel_rows(cpu_capability().local_attention, call, value.size(0));
  return out;
}

std::vector<Tensor> local_attention_backward(const Tensor& grad, const optional<Tensor>& query,
                                             const optional<Tensor>& key, const Tensor& value,
                                             const optional<Tensor>& window, at::IntArrayRef kernel_size,
                                             int64_t dilation, double scale, int64_t iterations) {
  LocalAttention call = call_of(query, key, value, window, kernel_size, dilation, scale, iterations);
  call.grad = map_of(grad);
  std::vector<Tensor> grads;
  const auto empty = [&](const optional<Tensor>& like) {
    return like ? map_of(grads.emplace_back(at::empty_like(*like))) : Map{};
  };
  call.d_query = empty(query);
  call.d_key = empty(key);
  call.d_value = empty(value);
  call.d_window = empty(window);
  group_heads(call, 128 / iterations,
              {&call.query, &call.key, &call.value, &call.window, &call.grad, &call.d_query, &call.d_key, &call.d_value,
               &call.d_window});
  parallel_rows(cpu_capability().local_attention_backward, call, value.size(0));
  return grads;
}

}  // namespace
}  // namespace mmattn

#define ARGUMENTS                                                                                            \
  "Tensor? query, Tensor? key, Tensor value, Tensor? window, int[] kernel_size, int dilation, float scale, " \
  "int iterations"

TORCH_LIBRARY_FRAGMENT(mmattn_native, m) {
  m.def("local_attention(" ARGUMENTS ") -> Tensor");
  m.def("local_attention_backward(Tensor grad, " ARGUMENTS ") -> Tensor[]");
}

TORCH_LIBRARY_IMPL(mmattn_native, CPU, m) {
  m.impl("local_attention", mmattn::local_attention);
  m.impl("local_attention_backward", mmattn::local_attention_backward);
}
