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
  float outlier_value;
  Volume query, key, value, window, outlier;  // of the window, the arm's entries
  Volume statistics;                          // (middle, mean, 1/σ): z-score (x − middle − mean)/σ
  Volume out, peak, total;                    // of the logits of the arms so far: the largest, and Σ e^(x − peak)
  Volume grad, lse, mean;                     // mean: Σ_c grad out
  Volume d_query, d_key, d_value, d_window;   // with out, peak and total contiguous, in float32
};

// The z-scores of a call's window logits, and the gradients at them: lines are those of the last axis, `window` has all
// entries. The kernel of the backward pass turns gradients at z-scores, in `d_window`, into those at logits.
struct GridPositions {
  int64_t heads, size[3], window_size[3];
  bool normalize;
  float outlier_value;
  Volume window, outlier, statistics, d_window, d_outlier;
};

using GridKernel = OnItems<GridAttention>;
using GridPositionsKernel = OnItems<GridPositions>;

}  // namespace mmattn
