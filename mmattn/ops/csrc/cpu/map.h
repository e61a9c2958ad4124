// What a kernel gets to see of its tensors.
#pragma once

#include <cstdint>
#include <utility>

namespace mmattn {

// A tensor (batch, heads, H, W, channels) of any strides, float32 or bfloat16; data is null where there is none.
struct Map {
  void* data = nullptr;
  int64_t stride[5] = {};
  int64_t channels = 0;
  bool bfloat16 = false;
};

// Works on rows [begin, end) of the batch · heads · H that a call has, in `scratch`, zeros aligned to 64 bytes.
// Without scratch: does nothing. Returns the bytes of scratch that a thread needs.
template <typename Call>
using OnRows = int64_t (*)(const Call&, int64_t begin, int64_t end, void* scratch);

}  // namespace mmattn
