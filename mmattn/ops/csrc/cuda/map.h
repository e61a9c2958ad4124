// Views of tensors, the operands of CUDA kernels.
#pragma once

#include <cstdint>

namespace mmattn::cuda {

enum class Dtype { float32, float16, bfloat16 };

// A tensor (batch, heads, T, H, W, channels) with any strides; data is null if there is none.
struct Map {
  void* data = nullptr;
  int64_t stride[6] = {};
  int channels = 0;
  Dtype dtype = Dtype::float32;
  bool quads = false;  // channels 4n to 4n + 3 of a position can be read by one aligned load
};

}  // namespace mmattn::cuda
