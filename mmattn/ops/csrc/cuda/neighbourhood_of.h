// What the calls of local_attention and dynamic_conv share.
#pragma once

#include "neighbourhood.h"
#include "tensors.h"

namespace mmattn::cuda {

inline Neighbourhood neighbourhood_of(const at::Tensor& value, const std::optional<at::Tensor>& window,
                                      at::IntArrayRef kernel_size, int64_t dilation) {
  Neighbourhood call{};
  call.heads = static_cast<int>(value.size(1));
  call.height = static_cast<int>(value.size(2));
  call.width = static_cast<int>(value.size(3));
  call.positions = value.size(0) * value.size(1) * value.size(2) * value.size(3);
  call.kernel[0] = static_cast<int>(kernel_size[0]);
  call.kernel[1] = static_cast<int>(kernel_size[1]);
  call.dilation = static_cast<int>(dilation);
  call.iterations = 1;
  call.value = map_of(value);
  call.window = map_of(window);
  return call;
}

inline void run_backward(Neighbourhood& call, const at::Tensor& like) {
  const at::Tensor weights = floats({call.positions, weight_slots(call)}, like);
  const at::Tensor vectors = floats({call.positions, vector_slots(call)}, like);
  call.weights.data = weights.data_ptr<float>();
  call.vectors.data = vectors.data_ptr<float>();
  C10_CUDA_CHECK(neighbourhood_backward(call, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace mmattn::cuda
