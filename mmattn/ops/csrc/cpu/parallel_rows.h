// Runs a kernel whose items are the batch · heads · H rows of maps.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "parallel_items.h"

namespace mmattn {

// If the channels of adjacent heads are contiguous in all maps, processes several narrow heads together, to read longer
// runs of memory. `most` is the largest number of channels of a group; it bounds the scratch memory, which should fit
// into the cache.
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
void parallel_rows(OnItems<Call> kernel, const Call& call, int64_t batch) {
  const int64_t work = call.width * call.kernel[0] * call.kernel[1] * call.value.channels;
  parallel_items(kernel, call, batch * call.heads * call.height, work, 32768);  // not less than the grain size of ATen
}

}  // namespace mmattn
