// A call of global_attention, or of its backward sweep; ../../global_attention.py has the equations.
#pragma once

#include <cuda_runtime_api.h>

#include "map.h"

namespace mmattn::cuda {

// (maps, positions, channels), side by side and aligned to 16 bytes.
struct Rows {
  void* data = nullptr;
  int channels = 0;  // of operands: a multiple of 16, those that are missing 0
};

struct GlobalAttention {
  Dtype dtype;  // of rows
  int heads;
  int64_t maps;       // batch · heads
  int queries, keys;  // N, M
  // Axes that are missing come first, of one position. A window is 2 · reach + 1 long.
  int size[3], key_size[3], reach[3];
  float scale;
  bool causal;
  Rows query, key, value;
  // Position logits. Those of a query: (batch, heads, *positions, entries); tables are of the rows' dtype or of
  // float32.
  Map window, outlier, axis_logits[3];
  float outlier_number;       // where there is no outlier
  const float* key_logits;    // (maps, M)
  const bool* key_mask;       // (batch, M)
  const int64_t* keys_up_to;  // (batch, M): how many keys of the mask, with this one
  float* zscore;              // middle, mean and 1/σ of each query's window, (3, maps · N); null: as they are
  Rows out;
  float* lse;  // (maps, N)
  // Backward:
  Rows grad;
  const float* along;  // Σ grad · out, (maps, N)
  Rows d_query, d_key, d_value;
  float* d_window;          // (maps, N, K); where a key of an entry is not, nothing is written
  float* d_outlier;         // (maps, N), or null; of z-scored logits only
  float* d_axis_logits[3];  // (maps, N, entries), 0 at first
  float* d_key_logits;      // (maps, M)
};

enum class Sweep { forward, queries, keys };  // the latter two: gradients of what belongs to queries, or to keys

cudaError_t attend(const GlobalAttention& call, Sweep sweep, cudaStream_t stream);

// The z-score of window logits, before the passes; the gradients of the logits in place of those of their z-scores.
cudaError_t window_zscore(const GlobalAttention& call, cudaStream_t stream);
cudaError_t window_zscore_backward(const GlobalAttention& call, cudaStream_t stream);

}  // namespace mmattn::cuda
