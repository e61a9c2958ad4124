// A call of global_attention or of its backward pass; ../../global_attention.py has the equations. A kernel processes
// one tile of queries × keys; global_attention.cpp defines their order.
#pragma once

#include "view.h"
#include "product.h"

namespace mmattn {

struct GlobalAttention {
  int64_t batch, heads;
  int64_t queries, keys;             // N, M
  int64_t query_tile, key_tile;      // sides of a tile
  int64_t channels, value_channels;  // D, Dv
  // Missing axes come first, with length 1. A window has length 2 · reach + 1.
  int64_t size[3], key_size[3], reach[3];
  int64_t entries;  // K
  int64_t query_pitch, value_pitch, window_pitch, axis_pitch[3],
      tile_pitch;  // distance between consecutive queries, in floats
  int64_t before;  // keys before the first query: with a window or is_causal, queries are at the last positions
  float scale, outside_value;
  bool is_causal;
  bool paired;  // products multiply pairs of bfloat16 numbers
  Volume query, key, value, window, outside, axis_bias[3];
  const float* key_bias;  // (batch · heads, M)
  const bool* key_mask;   // (batch, M)
  Volume out, lse;
  Volume grad, grad_lse, d_query, d_window, d_outside, d_axis_bias[3];  // backward; null where they are not needed
  float* d_key_bias;                                                    // (batch · heads, M)
};

// Some queries of one map, and the data of each query, in float32.
struct Queries {
  int64_t map;           // batch · heads + head
  int64_t first, count;  // positions
  float* query;          // (count, query_pitch); then their gradient
  float* window;         // (count, window_pitch); then their gradient
  float* outside;        // (count); then their gradient
  float* axis_bias[3];   // (count, axis_pitch); then their gradient
  float* out;            // (count, value_pitch)
  float* peak;           // (count): the largest logit so far
  float* keep;           // (count): the factor of the previous `out` and `total` when the peak rises; backward: dlse
  float* total;          // (count): the sum of the exponentials; backward: Σ dy·y − dlse
  float* lse;            // (count)
  float* grad;           // (count, value_pitch)
  float* left_query;     // the queries as left factors; `query` has them as right factors
  float* left_grad;
};

// One number per pair of some queries and the keys [begin, end): one row per query, of whole vectors, plus one vector.
struct Tile {
  float* data;
  int64_t pitch;
  int64_t begin, end;
};

struct GlobalAttentionKernels {
  int64_t lanes;                      // floats in a vector
  Product product, product_of_pairs;  // the latter is null if the instruction set does not multiply bfloat16
  void (*pair_columns)(const float* from, int64_t count, int64_t width, int64_t pitch, float* to);
  void (*pair_rows)(const float* from, int64_t count, int64_t width, int64_t pitch, float* to);
  // Packs the keys or values of a tile for products, as (channels, keys) or (keys, channels): `height` rows of the
  // first vector of columns, then those of the next vector. `rows` is scratch memory.
  void (*pack)(const GlobalAttention&, const Volume& from, int64_t map, bool transposed, Tile rows, int64_t height,
               float* to);
  // Loads the data of the queries.
  void (*prepare)(const GlobalAttention&, const Queries&);
  // Writes the position logits.
  void (*positions)(const GlobalAttention&, const Queries&, Tile logits);
  // Replaces logits by e^(logit − peak), updates `peak` and `total`, and sets `keep`, the factor of `out`. Tiles of
  // keys must come in order.
  void (*softmax)(const GlobalAttention&, const Queries&, Tile logits);
  // Stores the output and the log-sum-exp.
  void (*finish)(const GlobalAttention&, const Queries&);
  // Loads the data of the queries, including that for the backward pass only.
  void (*prepare_backward)(const GlobalAttention&, const Queries&);
  // Replaces logits by weights, and gradients of weights by gradients of logits.
  void (*softmax_backward)(const GlobalAttention&, const Queries&, Tile logits, Tile grad);
  // Computes the gradients of position logits from those of logits. Tiles of keys must come in order.
  void (*gradients)(const GlobalAttention&, const Queries&, Tile grad);
  // Stores the gradients of the data of the queries.
  void (*finish_backward)(const GlobalAttention&, const Queries&);
};

}  // namespace mmattn
