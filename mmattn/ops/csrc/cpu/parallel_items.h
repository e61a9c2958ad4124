// How a kernel of sparse attention runs: tensors as volumes, items shared out to threads, scratch memory for each.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>

#include "volume.h"

namespace mmattn {

// (batch, heads, *positions, channels) of up to three axes of positions; those that are not there are of one position.
inline at::Tensor with_three_axes(at::Tensor x) {
  while (x.dim() < 6) {
    x = x.unsqueeze(2);
  }
  return x;
}

inline Volume volume_of(const std::optional<at::Tensor>& given) {
  Volume volume;
  if (given) {
    const at::Tensor x = with_three_axes(*given);
    TORCH_CHECK(x.dim() == 6 && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16),
                "native kernels take (batch, heads, *positions, channels) of float32 or bfloat16; got ", given->sizes(),
                " of ", given->scalar_type());
    volume.data = x.data_ptr();
    volume.channels = x.size(5);
    volume.bfloat16 = x.scalar_type() == at::kBFloat16;
    std::copy_n(x.strides().begin(), 6, volume.stride);
  }
  return volume;
}

// `work`: multiplications of an item, about.
template <typename Call>
void parallel_items(OnItems<Call> kernel, const Call& call, int64_t items, int64_t work) {
  const int64_t bytes = kernel(call, 0, 0, nullptr);
  const at::Tensor scratch = at::zeros({at::get_num_threads(), bytes}, at::kByte);
  const int64_t grain = std::max<int64_t>(1, 262144 / std::max<int64_t>(1, work));
  at::parallel_for(0, items, grain, [&](int64_t begin, int64_t end) {
    kernel(call, begin, end, scratch.data_ptr<uint8_t>() + at::get_thread_num() * bytes);
  });
}

}  // namespace mmattn
