// Views of tensors, the operands of kernels.
#pragma once

#include <cstdint>
#include <utility>

namespace mmattn {

// A tensor (batch, heads, *positions, channels) with any strides, float32 or bfloat16; data is null if there is none.
template <int DIMENSIONS>
struct View {
  void* data = nullptr;
  int64_t stride[DIMENSIONS] = {};
  int64_t channels = 0;
  bool bfloat16 = false;
};

using Map = View<5>;     // of positions H, W
using Volume = View<6>;  // of positions T, H, W

// Processes items [begin, end) of a call. `scratch` is aligned to 64 bytes and initialised to 0; if it is null, the
// function does nothing. Returns the bytes of scratch memory that a thread needs.
template <typename Call>
using OnItems = int64_t (*)(const Call&, int64_t begin, int64_t end, void* scratch);

}  // namespace mmattn
