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
  int before[3];  // with a window or causal, positions of keys before the first query
  float scale;
  bool causal;
  Rows query, key, value;
  // Position logits. Those of a query: (batch, heads, *positions, entries); tables are of the rows' dtype or of
  // float32.
  Map window, outside, axis_bias[3];
  float outside_number;   // where there is no outside
  const float* key_bias;  // (maps, M)
  const bool* key_mask;   // (batch, M)
  Rows out;
  float* lse;  // (maps, N)
  // Backward. Gradients that are not needed are null.
  Rows grad;
  const float* along;  // Σ grad · out, (maps, N)
  Rows d_query, d_key, d_value;
  float* d_window;        // (maps, N, K); where a key of an entry is not, nothing is written
  float* d_axis_bias[3];  // (maps, N, entries), 0 at first
  float* d_key_bias;      // (maps, M)
};

enum class Sweep { forward, queries, keys };  // the latter two: gradients of what belongs to queries, or to keys

// Shared memory of a block; where there are more channels than a kernel takes, more than there can be.
size_t shared_bytes(Dtype dtype, int query_channels, int value_channels, Sweep sweep);

cudaError_t attend(const GlobalAttention& call, Sweep sweep, cudaStream_t stream);

}  // namespace mmattn::cuda
