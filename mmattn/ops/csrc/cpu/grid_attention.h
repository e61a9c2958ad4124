// One arm of a call of grid_attention, or of its backward pass; ../../grid_attention.py has the equations.
#pragma once

#include "view.h"

namespace mmattn {

// Tensors are (batch, heads, outer, inner, along, channels) here: lines along the arm's axis, side by side on the inner
// one of the other two.
struct GridAttention {
  int64_t heads, outer, inner, length;
  int64_t fold;   // short lines that are worked on together
  int64_t lines;  // of an item, next to each other: memory is read in longer runs
  bool first;     // arm: what it gives is not added to anything
  bool own;       // the position of the query itself is a key of this arm, and in its window
  float scale;
  int64_t window_size;
  float outside_value;
  Volume query, key, value, window, outside;  // of the window, the arm's entries
  Volume out, peak, total;                    // of the logits of the arms so far: the largest, and Σ e^(x − peak)
  Volume grad, lse, mean;                     // mean: Σ_c grad out
  Volume d_query, d_key, d_value, d_window;   // null where not needed; with peak and total contiguous, in float32
};

using GridKernel = OnItems<GridAttention>;

}  // namespace mmattn
