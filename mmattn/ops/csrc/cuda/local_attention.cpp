#include "neighbourhood_of.h"

namespace mmattn::cuda {
namespace {

Neighbourhood local_call(const Call& given) {
  Neighbourhood call = neighbourhood_of(given, "window_bias");
  call.scale = static_cast<float>(given.number("scale"));
  call.iterations = static_cast<int>(given.integer("iterations"));
  call.query = map_of(given.optional_tensor("query"));
  call.key = map_of(given.optional_tensor("key"));
  return call;
}

// The kernel has neither a key mask nor a log-sum-exp: the composition runs these calls.
bool can_run_forward(const Call& given) {
  return !given.optional_tensor("key_mask") && !given.flag("return_lse") &&
         can_run_neighbourhood<local_call, false>(given);
}

bool can_run_backward(const Call& given) {
  return !given.optional_tensor("key_mask") && !given.optional_tensor("grad_lse") &&
         can_run_neighbourhood<local_call, true>(given);
}

std::vector<Tensor> local_attention(const Call& given) {
  const Tensor& value = given.tensor("value");
  return {forward(local_call(given), given), floats(value.sizes().slice(0, 4), value)};
}

std::vector<Tensor> local_attention_backward(const Call& given) {
  Neighbourhood call = local_call(given);
  std::vector<Tensor> grads;
  call.d_query = gradient(given, "query", grads);
  call.d_key = gradient(given, "key", grads);
  call.d_value = gradient(given, "value", grads);
  call.d_window = gradient(given, "window_bias", grads);
  backward(call, given);
  return grads;
}

}  // namespace
}  // namespace mmattn::cuda

TORCH_LIBRARY_IMPL(mmattn_cuda, CUDA, m) {
  using namespace mmattn;
  m.impl("local_attention", on_cuda<check_local_attention, cuda::local_attention, cuda::can_run_forward>());
  m.impl("local_attention_backward",
         on_cuda<check_local_attention, cuda::local_attention_backward, cuda::can_run_backward>());
}
