// Shared by the calls of grid_attention and strided_attention.
#pragma once

#include "device.h"
#include "tensors.h"
#include "tiles.h"

namespace mmattn::cuda {

inline bool can_run_tiles(const Call& given) {
  return can_run_on(given) && tiles_shared_bytes() <= most_shared(given.tensor("value").get_device());
}

}  // namespace mmattn::cuda
