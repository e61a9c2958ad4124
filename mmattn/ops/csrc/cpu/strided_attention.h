// A call of strided_attention, or of its backward pass; ../../strided_attention.py has the equation.
#pragma once

#include "view.h"

namespace mmattn {

// An axis: how it is cut into groups of queries, and which keys a group sees. Group g has the queries from g · length
// on, or where they are apart, those of remainder g.
struct StridedAxis {
  bool apart;
  int64_t size, keys;  // positions of the map of queries, and of that of keys
  int64_t groups;
  int64_t length;         // queries of a group, at most
  int64_t step;           // from a position to the next
  int64_t before, after;  // keys in reach of a group's first and last query
  int64_t entries;        // offsets that are keys: the first is that of −centre steps
  int64_t centre;
};

struct StridedAttention {
  int64_t heads;
  StridedAxis axis[3];
  bool masked;  // not all of a group see its keys, and groups share them
  // Backward, where masked: an item is a slab of a map, `slab` groups on an axis, of the slabs of even or odd number.
  int slab_axis;
  int64_t slab, slabs, parity;
  float scale;
  bool positional;  // there are tables
  Volume query, key, value, table[3];
  Volume out, lse;                                   // these and what follows are contiguous, in float32
  Volume grad, d_query, d_key, d_value, d_table[3];  // but grad and, in the backward pass, out; null: not needed
};

using StridedKernel = OnItems<StridedAttention>;

}  // namespace mmattn
