// Runs a kernel: views of tensors, division of the items among threads, and scratch memory for each thread.
#pragma once

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>

#include "view.h"

namespace mmattn {

// A view of a tensor (batch, heads, *positions, channels) with up to three position axes; without the channels if
// `channels` is false. Missing axes come first, with length 1.
template <int DIMENSIONS>
View<DIMENSIONS> view_of(const at::Tensor& x, bool channels = true) {
  const int64_t missing = DIMENSIONS - x.dim() - (channels ? 0 : 1);
  TORCH_CHECK(missing >= 0 && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16),
              "native kernels take (batch, heads, *positions, channels) of float32 or bfloat16; got ", x.sizes(),
              " of ", x.scalar_type());
  View<DIMENSIONS> view;
  view.data = x.data_ptr();
  view.channels = channels ? x.size(-1) : 1;
  view.bfloat16 = x.scalar_type() == at::kBFloat16;
  view.stride[0] = x.stride(0);
  view.stride[1] = x.stride(1);
  for (int64_t dim = 2; dim < DIMENSIONS; ++dim) {
    const int64_t of = dim - missing;
    view.stride[dim] = of < 2 ? x.stride(2) * x.size(2) : of < x.dim() ? x.stride(of) : 1;
  }
  return view;
}

inline Map map_of(const std::optional<at::Tensor>& x) { return x ? view_of<5>(*x) : Map{}; }

inline Volume volume_of(const at::Tensor& x) { return view_of<6>(x); }
inline Volume volume_of(const std::optional<at::Tensor>& x) { return x ? view_of<6>(*x) : Volume{}; }

// One number per position.
inline Volume numbers_of(const at::Tensor& x) { return view_of<6>(x, false); }
inline Volume numbers_of(const std::optional<at::Tensor>& x) { return x ? view_of<6>(*x, false) : Volume{}; }

// The lengths of the three axes.
inline void sizes_of(const at::Tensor& x, int64_t* size) {
  for (int64_t axis = 0; axis < 3; ++axis) {
    const int64_t dim = x.dim() - 4 + axis;
    size[axis] = dim < 2 ? 1 : x.size(dim);
  }
}

// Like at::empty, without the dispatcher, which takes as long as a small kernel. If torch fills uninitialised memory
// (deterministic mode), at::empty is called.
inline at::Tensor floats(at::IntArrayRef size) {
  const at::Context& torch = at::globalContext();
  if (torch.deterministicAlgorithms() && torch.deterministicFillUninitializedMemory()) {
    return at::empty(size, at::kFloat);
  }
  return at::Tensor(at::detail::empty_cpu(size, at::kFloat));
}

// `work`: approximate number of multiplications per item; `least`: smallest number that is worth a thread.
template <typename Call>
void parallel_items(OnItems<Call> kernel, const Call& call, int64_t items, int64_t work, int64_t least = 262144) {
  const int64_t bytes = kernel(call, 0, 0, nullptr);
  const int64_t pitch = (bytes + 63) / 64 * 16;  // in floats
  const at::Tensor scratch = floats({at::get_num_threads() * pitch});
  std::fill_n(scratch.data_ptr<float>(), scratch.numel(), 0.0f);
  const int64_t grain = std::max<int64_t>(1, least / std::max<int64_t>(1, work));
  at::parallel_for(0, items, grain, [&](int64_t begin, int64_t end) {
    kernel(call, begin, end, scratch.data_ptr<float>() + at::get_thread_num() * pitch);
  });
}

}  // namespace mmattn
