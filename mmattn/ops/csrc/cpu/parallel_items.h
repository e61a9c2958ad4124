// How a kernel runs: tensors as views, items shared out to threads, scratch memory for each.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>

#include "view.h"

namespace mmattn {

// (batch, heads, *positions, channels) of up to three axes of positions; those that are not there are of one position.
inline at::Tensor with_three_axes(at::Tensor x) {
  while (x.dim() < 6) {
    x = x.unsqueeze(2);
  }
  return x;
}

template <int DIMENSIONS>
View<DIMENSIONS> view_of(const at::Tensor& x) {
  TORCH_CHECK(x.dim() == DIMENSIONS && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16),
              "native kernels take (batch, heads, *positions, channels) of float32 or bfloat16; got ", x.sizes(),
              " of ", x.scalar_type());
  View<DIMENSIONS> view;
  view.data = x.data_ptr();
  view.channels = x.size(-1);
  view.bfloat16 = x.scalar_type() == at::kBFloat16;
  std::copy_n(x.strides().begin(), DIMENSIONS, view.stride);
  return view;
}

inline Map map_of(const std::optional<at::Tensor>& x) { return x ? view_of<5>(*x) : Map{}; }

inline Volume volume_of(const std::optional<at::Tensor>& x) { return x ? view_of<6>(with_three_axes(*x)) : Volume{}; }

// `work`: multiplications of an item, about; `least`: those that a thread is worth.
template <typename Call>
void parallel_items(OnItems<Call> kernel, const Call& call, int64_t items, int64_t work, int64_t least = 262144) {
  const int64_t bytes = kernel(call, 0, 0, nullptr);
  const at::Tensor scratch = at::zeros({at::get_num_threads(), bytes}, at::kByte);
  const int64_t grain = std::max<int64_t>(1, least / std::max<int64_t>(1, work));
  at::parallel_for(0, items, grain, [&](int64_t begin, int64_t end) {
    kernel(call, begin, end, scratch.data_ptr<uint8_t>() + at::get_thread_num() * bytes);
  });
}

}  // namespace mmattn
