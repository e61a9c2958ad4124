// A kernel that is registered as those for CUDA are, but for the CPU: it gives 7, and gradients of 8 and 9.
#include <ATen/ops/full_like.h>

#include "checks.h"

namespace mmattn {
namespace {

std::vector<Tensor> forward(const Call& call) { return {at::full_like(call.tensor("value"), 7)}; }

std::vector<Tensor> backward(const Call& call) {
  return {at::full_like(call.tensor("value"), 8), at::full_like(call.tensor("logits"), 9)};
}

bool takes(const Call& call) { return call.tensor("value").scalar_type() == at::kFloat; }

}  // namespace

TORCH_LIBRARY_IMPL(mmattn, CPU, m) {
  m.impl("dynamic_conv", on_cuda<check_dynamic_conv, forward, takes>());
  m.impl("dynamic_conv_backward", on_cuda<check_dynamic_conv, backward, takes>());
}

}  // namespace mmattn
