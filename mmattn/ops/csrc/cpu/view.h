// What a kernel gets to see of its tensors.
#pragma once

#include <cstdint>
#include <utility>

namespace mmattn {

// A tensor (batch, heads, *positions, channels) of any strides, float32 or bfloat16; data is null where there is none.
template <int DIMENSIONS>
struct View {
  void* data = nullptr;
  int64_t stride[DIMENSIONS] = {};
  int64_t channels = 0;
  bool bfloat16 = false;
};

using Map = View<5>;     // of positions H, W
using Volume = View<6>;  // of positions T, H, W

// Works on items [begin, end) of a call, in `scratch`, zeros aligned to 64 bytes when the call begins. Without scratch:
// does nothing. Returns the bytes of scratch that a thread needs.
template <typename Call>
using OnItems = int64_t (*)(const Call&, int64_t begin, int64_t end, void* scratch);

}  // namespace mmattn
