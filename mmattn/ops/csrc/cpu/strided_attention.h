// A call of strided_attention or of its backward pass; ../../strided_attention.py has the equation.
#pragma once

#include "view.h"

namespace mmattn {

// The division of an axis into groups of queries, and the keys of a group. Group g has the queries that start at
// g · length, or, if `apart`, those with remainder g.
struct StridedAxis {
  bool apart;
  int64_t size, keys;  // length of the map of queries, and of the map of keys
  int64_t groups;
  int64_t length;         // largest number of queries in a group
  int64_t step;           // from one position of a group to the next
  int64_t before, after;  // keys before the first and after the last query of a group
  int64_t entries;        // number of offsets; the first is −centre steps
  int64_t centre;
};

struct StridedAttention {
  int64_t heads;
  StridedAxis axis[3];
  bool masked;  // a query does not attend to all keys of its group, and groups share keys
  // Backward, if masked: an item is a slab of a map, `slab` groups along `slab_axis`, of the even or the odd slabs.
  int slab_axis;
  int64_t slab, slabs, parity;
  float scale;
  bool positional;  // the call has tables
  Volume query, key, value, table[3];
  // Contiguous float32, except `grad` and, in the backward pass, `out`; null if not needed.
  Volume out, lse;
  Volume grad, grad_lse, d_query, d_key, d_value, d_table[3];
};

using StridedKernel = OnItems<StridedAttention>;

}  // namespace mmattn
