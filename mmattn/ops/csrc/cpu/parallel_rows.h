// How a kernel runs: tensors as maps, rows shared out to threads, scratch memory for each.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "map.h"

namespace mmattn {

inline Map map_of(const std::optional<at::Tensor>& x) {
  Map map;
  if (x) {
    TORCH_CHECK(x->dim() == 5 && (x->scalar_type() == at::kFloat || x->scalar_type() == at::kBFloat16),
                "native kernels take (batch, heads, H, W, channels) of float32 or bfloat16; got ", x->sizes(), " of ",
                x->scalar_type());
    map.data = x->data_ptr();
    map.channels = x->size(4);
    map.bfloat16 = x->scalar_type() == at::kBFloat16;
    std::copy_n(x->strides().begin(), 5, map.stride);
  }
  return map;
}

// Where all maps have the channels of their heads side by side, works on several narrow heads together: memory is read
// in longer runs then. `most` bounds the channels of a group, and with them the scratch memory, which is to stay in
// cache.
template <typename Call>
void group_heads(Call& call, int64_t most, std::initializer_list<Map*> maps) {
  const auto narrow = [&](int64_t group) {
    return std::all_of(maps.begin(), maps.end(), [&](const Map* map) {
      return !map->data || (map->stride[4] == 1 && map->stride[1] == map->channels && group * map->channels <= most);
    });
  };
  int64_t group = call.heads;
  while (group > 1 && (call.heads % group || !narrow(group))) {
    --group;
  }
  call.group = group;
  call.heads /= group;
  for (Map* map : maps) {
    map->stride[1] *= group;
    map->channels *= group;
  }
}

template <typename Call>
void parallel_rows(OnRows<Call> kernel, const Call& call, int64_t batch) {
  const int64_t bytes = kernel(call, 0, 0, nullptr);
  const int64_t threads = at::get_num_threads();
  const at::Tensor scratch = at::zeros({threads, bytes}, at::kByte);
  const int64_t rows = batch * call.heads * call.height;
  const int64_t work = call.width * call.kernel[0] * call.kernel[1] * call.value.channels;
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, work));  // at least what ATen gives a thread
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    kernel(call, begin, end, scratch.data_ptr<uint8_t>() + at::get_thread_num() * bytes);
  });
}

}  // namespace mmattn
