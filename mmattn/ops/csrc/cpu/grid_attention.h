// One arm of a call of grid_attention or of its backward pass; ../../grid_attention.py has the equations.
#pragma once

#include "view.h"

namespace mmattn {

// Tensors are viewed as (batch, heads, outer, inner, along, channels): the lines are along the axis of the arm, and the
// lines of an item are adjacent on the inner axis of the other two.
struct GridAttention {
  int64_t heads, outer, inner, length;
  int64_t fold;   // short lines that are processed together
  int64_t lines;  // adjacent lines of an item, loaded together to read longer runs of memory
  bool first;     // the first arm: its results are stored, not merged or added
  bool own;       // the self key belongs to this arm and its window
  float scale;
  int64_t window_size;
  float outside_value;
  Volume query, key, value, window, outside;  // window: entries of this arm
  Volume out, peak, total;                    // of all arms so far: largest logit, and Σ e^(logit − peak)
  Volume grad, grad_lse, lse, mean;           // mean: Σ_c grad · out − grad_lse
  Volume d_query, d_key, d_value, d_window;   // null if not needed; contiguous float32, like peak and total
};

using GridKernel = OnItems<GridAttention>;

}  // namespace mmattn
