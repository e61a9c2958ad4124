#include "local_attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include "../checks.h"
#include "../operator.h"
#include "capability.h"
#include "parallel_rows.h"

namespace mmattn::local_attention_cpu {
namespace {

bool can_run(const Call& given) { return can_run_on(given); }

// The key mask as a map of one channel.
optional<Tensor> mask_of(const Call& given) {
  const optional<Tensor> mask = given.optional_tensor("key_mask");
  return mask ? optional<Tensor>(mask->to(at::kFloat).unsqueeze(1).unsqueeze(-1)) : std::nullopt;
}

// `mask` is 1 at keys.
LocalAttention call_of(const Call& given, const optional<Tensor>& mask) {
  const Tensor& value = given.tensor("value");
  LocalAttention call{};
  call.group = 1;
  call.heads = value.size(1);
  call.height = value.size(2);
  call.width = value.size(3);
  call.query = map_of(given.optional_tensor("query"));
  call.key = map_of(given.optional_tensor("key"));
  call.value = map_of(value);
  call.window = map_of(given.optional_tensor("window_bias"));
  call.mask = map_of(mask);
  const std::vector<int64_t> kernel = given.integers("kernel_size");
  call.kernel[0] = kernel[0];
  call.kernel[1] = kernel[1];
  call.dilation = dilation_of(given);
  call.scale = static_cast<float>(given.number("scale"));
  call.iterations = given.integer("iterations");
  return call;
}

std::vector<Tensor> local_attention(const Call& given) {
  const optional<Tensor> mask = mask_of(given);
  LocalAttention call = call_of(given, mask);
  const Tensor &value = given.tensor("value"), out = at::empty_like(value), lse = floats(value.sizes().slice(0, 4));
  call.out = map_of(out);
  if (given.flag("return_lse")) {
    call.lse = view_of<5>(lse, false);
  }
  group_heads(call, 128, {&call.query, &call.key, &call.value, &call.window, &call.out});
  parallel_rows(cpu_capability().local_attention, call, out.size(0));
  return {out, lse};
}

std::vector<Tensor> local_attention_backward(const Call& given) {
  const optional<Tensor> mask = mask_of(given), grad_lse = given.optional_tensor("grad_lse");
  LocalAttention call = call_of(given, mask);
  call.grad = map_of(given.tensor("grad"));
  call.grad_lse = grad_lse ? view_of<5>(*grad_lse, false) : Map{};
  std::vector<Tensor> grads;
  const auto empty = [&](const char* name) {
    return given.needs(name) ? map_of(grads.emplace_back(at::empty_like(*given.optional_tensor(name)))) : Map{};
  };
  call.d_query = empty("query");
  call.d_key = empty("key");
  call.d_value = empty("value");
  call.d_window = empty("window_bias");
  group_heads(call, 128 / call.iterations,
              {&call.query, &call.key, &call.value, &call.window, &call.grad, &call.d_query, &call.d_key, &call.d_value,
               &call.d_window});
  parallel_rows(cpu_capability().local_attention_backward, call, given.tensor("value").size(0));
  return grads;
}

}  // namespace

TORCH_LIBRARY_IMPL(mmattn, CPU, m) {
  m.impl("local_attention", on_cpu<check_local_attention, local_attention, can_run>());
  m.impl("local_attention_backward", on_cpu<check_local_attention, local_attention_backward, can_run>());
}

}  // namespace mmattn::local_attention_cpu
