// What the kernels of sparse attention get to see of their tensors.
#pragma once

#include <cstdint>
#include <utility>

namespace mmattn {

// A tensor (batch, heads, T, H, W, channels) of any strides, float32 or bfloat16; data is null where there is none.
struct Volume {
  void* data = nullptr;
  int64_t stride[6] = {};
  int64_t channels = 0;
  bool bfloat16 = false;
};

// Works on items [begin, end) of a call, in `scratch`, aligned to 64 bytes. Without scratch: does nothing. Returns the
// bytes of scratch that a thread needs.
template <typename Call>
using OnItems = int64_t (*)(const Call&, int64_t begin, int64_t end, void* scratch);

}  // namespace mmattn
