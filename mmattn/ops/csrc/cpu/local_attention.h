// A call of local_attention or dynamic_conv, or of a backward pass; ../../{local_attention,dynamic_conv}.py have the
// equations. dynamic_conv is local attention with `window` only, on a map padded with zeros.
#pragma once

#include "view.h"

namespace mmattn {

struct LocalAttention {
  int64_t group;  // heads that are processed together: their channels are contiguous in each map
  int64_t heads;  // number of such groups
  int64_t height, width;
  int64_t kernel[2], dilation;
  bool padded;
  float scale;
  int64_t iterations;
  Map query, key, value, window;
  Map mask;                                     // (batch, any head, H, W, 1): 1 for keys, 0 for masked positions
  Map out, lse;                                 // forward
  Map grad, d_query, d_key, d_value, d_window;  // backward
  Map grad_lse;                                 // heads of lse and grad_lse are never grouped
};

using RowKernel = OnItems<LocalAttention>;

}  // namespace mmattn
