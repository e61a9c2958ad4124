// A call of global_attention or of its backward pass; ../../global_attention.py has the equations.
#pragma once

#include <cuda_runtime_api.h>

#include "map.h"

namespace mmattn::cuda {

// (maps, positions, channels), contiguous and aligned to 16 bytes.
struct Rows {
  void* data = nullptr;
  int channels = 0;  // of operands: a multiple of 16, padded with 0
};

struct GlobalAttention {
  Dtype dtype;  // of rows
  int heads;
  int64_t maps;       // batch · heads
  int queries, keys;  // N, M
  // Missing axes come first, with length 1. A window has length 2 · reach + 1.
  int size[3], key_size[3], reach[3];
  int before[3];  // with a window or causal: positions of keys before the first query
  float scale;
  bool causal;
  Rows query, key, value;
  // Position logits per query: (batch, heads, *positions, entries). Tables have the dtype of the rows or float32.
  Map window, outside, axis_bias[3];
  float outside_number;   // used if `outside` has no data
  const float* key_bias;  // (maps, M)
  const bool* key_mask;   // (batch, M)
  Rows out;
  float* lse;  // (maps, N)
  // Backward. Gradients that are not needed are null.
  Rows grad;
  const float* along;  // Σ grad · out, (maps, N)
  Rows d_query, d_key, d_value;
  float* d_window;        // (maps, N, K); entries without a key are not written
  float* d_axis_bias[3];  // (maps, N, entries), initialised to 0
  float* d_key_bias;      // (maps, M)
};

enum class Sweep { forward, queries, keys };  // the last two: gradients of query data or of key data

// The bytes of shared memory of a block; more than any device has if there are too many channels.
size_t shared_bytes(Dtype dtype, int query_channels, int value_channels, Sweep sweep);

cudaError_t attend(const GlobalAttention& call, Sweep sweep, cudaStream_t stream);

}  // namespace mmattn::cuda
