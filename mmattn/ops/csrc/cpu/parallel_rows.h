// How a kernel runs whose items are the rows of maps: batch · heads · H of them.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "parallel_items.h"

namespace mmattn {

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
void parallel_rows(OnItems<Call> kernel, const Call& call, int64_t batch) {
  const int64_t work = call.width * call.kernel[0] * call.kernel[1] * call.value.channels;
  parallel_items(kernel, call, batch * call.heads * call.height, work, 32768);  // at least what ATen gives a thread
}

}  // namespace mmattn
