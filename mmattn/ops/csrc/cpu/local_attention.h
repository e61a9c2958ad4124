// A call of local_attention or of its backward pass; ../../local_attention.py has the equations.
#pragma once

#include "map.h"

namespace mmattn {

struct LocalAttention {
  int64_t group;  // heads that are worked on together: each map has their channels side by side
  int64_t heads;  // groups of them
  int64_t height, width;
  int64_t kernel[2], dilation;
  float scale;
  int64_t iterations;
  Map query, key, value, window;
  Map out;                                      // forward
  Map grad, d_query, d_key, d_value, d_window;  // backward
};

using RowKernel = OnRows<LocalAttention>;

}  // namespace mmattn
