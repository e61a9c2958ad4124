#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include "../checks.h"
#include "../operator.h"
#include "capability.h"
#include "parallel_rows.h"

namespace mmattn::dynamic_conv_cpu {
namespace {

bool can_run(const Call& given) { return can_run_on(given); }

LocalAttention call_of(const Call& given) {
  const Tensor& value = given.tensor("value");
  LocalAttention call{};
  call.group = 1;
  call.heads = value.size(1);
  call.height = value.size(2);
  call.width = value.size(3);
  call.value = map_of(value);
  call.window = map_of(given.tensor("logits"));
  const std::vector<int64_t> kernel = given.integers("kernel_size");
  call.kernel[0] = kernel[0];
  call.kernel[1] = kernel[1];
  call.dilation = dilation_of(given);
  call.padded = true;
  call.iterations = 1;
  return call;
}

std::vector<Tensor> dynamic_conv(const Call& given) {
  LocalAttention call = call_of(given);
  const Tensor out = at::empty_like(given.tensor("value"));
  call.out = map_of(out);
  group_heads(call, 128, {&call.value, &call.window, &call.out});
  parallel_rows(cpu_capability().local_attention, call, out.size(0));
  return {out};
}

std::vector<Tensor> dynamic_conv_backward(const Call& given) {
  LocalAttention call = call_of(given);
  call.grad = map_of(given.tensor("grad"));
  std::vector<Tensor> grads;
  const auto empty = [&](const char* name) {
    return given.needs(name) ? map_of(grads.emplace_back(at::empty_like(given.tensor(name)))) : Map{};
  };
  call.d_value = empty("value");
  call.d_window = empty("logits");
  group_heads(call, 128, {&call.value, &call.window, &call.grad, &call.d_value, &call.d_window});
  parallel_rows(cpu_capability().local_attention_backward, call, given.tensor("value").size(0));
  return grads;
}

}  // namespace

TORCH_LIBRARY_IMPL(mmattn, CPU, m) {
  m.impl("dynamic_conv", on_cpu<check_dynamic_conv, dynamic_conv, can_run>());
  m.impl("dynamic_conv_backward", on_cpu<check_dynamic_conv, dynamic_conv_backward, can_run>());
}

}  // namespace mmattn::dynamic_conv_cpu
