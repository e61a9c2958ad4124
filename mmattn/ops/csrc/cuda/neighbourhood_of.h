// Shared by the calls of local_attention and dynamic_conv.
#pragma once

#include "device.h"
#include "neighbourhood.h"
#include "tensors.h"

namespace mmattn::cuda {

inline Neighbourhood neighbourhood_of(const Call& given, const char* window) {
  const Tensor& value = given.tensor("value");
  const std::vector<int64_t> kernel = given.integers("kernel_size");
  Neighbourhood call{};
  call.heads = static_cast<int>(value.size(1));
  call.height = static_cast<int>(value.size(2));
  call.width = static_cast<int>(value.size(3));
  call.positions = value.size(0) * value.size(1) * value.size(2) * value.size(3);
  call.kernel[0] = static_cast<int>(kernel[0]);
  call.kernel[1] = static_cast<int>(kernel[1]);
  call.dilation = static_cast<int>(dilation_of(given));
  call.iterations = 1;
  call.value = map_of(value);
  call.window = map_of(given.optional_tensor(window));
  return call;
}

template <Neighbourhood call_of(const Call&), bool backward>
bool can_run_neighbourhood(const Call& given) {
  if (!can_run_on(given)) {
    return false;
  }
  const size_t most = most_shared(given.tensor("value").get_device());
  return shared_bytes(call_of(given), backward, most) <= most;
}

// Memory for the gradient of a tensor, if it is needed.
inline Map gradient(const Call& given, const char* name, std::vector<Tensor>& grads) {
  return given.needs(name) ? map_of(grads.emplace_back(at::empty_like(*given.optional_tensor(name)))) : Map{};
}

inline Tensor forward(Neighbourhood call, const Call& given) {
  const c10::cuda::CUDAGuard guard(given.tensor("value").device());
  const Tensor out = at::empty_like(given.tensor("value"));
  call.out = map_of(out);
  C10_CUDA_CHECK(neighbourhood(call, c10::cuda::getCurrentCUDAStream()));
  return out;
}

inline void backward(Neighbourhood call, const Call& given) {
  const Tensor& value = given.tensor("value");
  const c10::cuda::CUDAGuard guard(value.device());
  call.grad = map_of(given.tensor("grad"));
  const Tensor weights = floats({call.positions, weight_slots(call)}, value);
  const Tensor vectors = floats({call.positions, vector_slots(call)}, value);
  call.weights.data = weights.data_ptr<float>();
  call.vectors.data = vectors.data_ptr<float>();
  C10_CUDA_CHECK(neighbourhood_backward(call, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace mmattn::cuda
