// A call of global_attention, or of its backward pass; ../../global_attention.py has the equations. The kernels work on
// a tile of queries × keys at a time; global_attention.cpp has their order.
#pragma once

#include "view.h"
#include "product.h"

namespace mmattn {

struct GlobalAttention {
  int64_t batch, heads;
  int64_t queries, keys;             // N, M
  int64_t query_tile, key_tile;      // sides of a tile
  int64_t channels, value_channels;  // D, Dv
  // Axes that are not there come first, of length 1. A window is 2 · reach + 1 long.
  int64_t size[3], key_size[3], reach[3];
  int64_t entries;  // K
  int64_t query_pitch, value_pitch, window_pitch, axis_pitch[3],
      tile_pitch;  // from what is one query's to the next one's
  int64_t before;  // keys before the first query's position: with a window or is_causal, queries are at the last ones
  float scale, outside_value;
  bool is_causal;
  Volume query, key, value, window, outside, axis_bias[3];
  const float* key_bias;  // (batch · heads, M)
  const bool* key_mask;   // (batch, M)
  Volume out, lse;
  Volume grad, d_query, d_window, d_outside, d_axis_bias[3];  // backward; null where they are not needed
  float* d_key_bias;                                          // (batch · heads, M)
};

// Some queries of one map, and what is theirs alone, in float32.
struct Queries {
  int64_t map;           // batch · heads + head
  int64_t first, count;  // positions
  float* query;          // (count, query_pitch), times the scale; then their gradient
  float* window;         // (count, window_pitch); then their gradient
  float* outside;        // (count); then their gradient
  float* axis_bias[3];   // (count, axis_pitch); then their gradient
  float* out;            // (count, value_pitch)
  float* peak;           // (count): the greatest logit so far
  float* keep;           // (count): what is left of `out` and `total` as the peak rises
  float* total;          // (count): the sum of the exponentials; backward: Σ dy·y
  float* lse;            // (count)
  float* grad;           // (count, value_pitch)
};

// Numbers of some queries and the keys from `begin` to `end`, a row a query, of whole vectors; and room for one more.
struct Tile {
  float* data;
  int64_t pitch;
  int64_t begin, end;
};

struct GlobalAttentionKernels {
  int64_t lanes;  // of a vector
  Product product;
  // Loads the keys or values of a tile of a map for products, (channels, keys) or (keys, channels): `height` rows of
  // the first vector of columns, then those of the next. `rows` is scratch memory.
  void (*pack)(const GlobalAttention&, const Volume& from, int64_t map, bool transposed, Tile rows, int64_t height,
               float* to);
  // Loads what belongs to the queries.
  void (*prepare)(const GlobalAttention&, const Queries&);
  // Writes the position logits.
  void (*positions)(const GlobalAttention&, const Queries&, Tile logits);
  // Logits to e^(logit − peak); `total` follows the peak, and `keep` says how `out` will. The tiles of keys come in
  // order.
  void (*softmax)(const GlobalAttention&, const Queries&, Tile logits);
  // Stores the output and the log-sum-exp.
  void (*finish)(const GlobalAttention&, const Queries&);
  // Loads what belongs to the queries, and what only the backward pass wants.
  void (*prepare_backward)(const GlobalAttention&, const Queries&);
  // Logits to weights, and the weights' gradients to those of the logits.
  void (*softmax_backward)(const GlobalAttention&, const Queries&, Tile logits, Tile grad);
  // Gathers the gradients of position logits from those of logits. The tiles of keys come in order.
  void (*gradients)(const GlobalAttention&, const Queries&, Tile grad);
  // Stores the gradients of what belongs to the queries.
  void (*finish_backward)(const GlobalAttention&, const Queries&);
};

}  // namespace mmattn
