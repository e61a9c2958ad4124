#include "neighbourhood_of.h"

namespace mmattn::cuda {
namespace {

Neighbourhood conv_call(const Call& given) {
  Neighbourhood call = neighbourhood_of(given, "logits");
  call.padded = true;
  return call;
}

std::vector<Tensor> dynamic_conv(const Call& given) { return {forward(conv_call(given), given)}; }

std::vector<Tensor> dynamic_conv_backward(const Call& given) {
  Neighbourhood call = conv_call(given);
  std::vector<Tensor> grads;
  call.d_value = gradient(given, "value", grads);
  call.d_window = gradient(given, "logits", grads);
  backward(call, given);
  return grads;
}

}  // namespace
}  // namespace mmattn::cuda

TORCH_LIBRARY_IMPL(mmattn_cuda, CUDA, m) {
  using namespace mmattn;
  m.impl("dynamic_conv",
         on_cuda<check_dynamic_conv, cuda::dynamic_conv, cuda::can_run_neighbourhood<cuda::conv_call, false>>());
  m.impl(
      "dynamic_conv_backward",
      on_cuda<check_dynamic_conv, cuda::dynamic_conv_backward, cuda::can_run_neighbourhood<cuda::conv_call, true>>());
}
