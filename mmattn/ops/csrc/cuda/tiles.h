// A pass of attention between groups of queries and groups of keys: an arm of grid_attention, or all of
// strided_attention. A kernel has a tile of rows and goes over all columns of their group; forward and for the
// gradients of queries, rows are queries and columns keys, for the gradients of keys and values the other way round.
#pragma once

#include <cuda_runtime_api.h>

#include "map.h"

namespace mmattn::cuda {

constexpr int AXES = 3;       // of a map; those that are missing come first, of one position
constexpr int ANY = 1 << 30;  // more than any offset

// How an axis is cut into groups: position n of group g is at g · stride + n · dilation − before.
struct Axis {
  int groups = 1, stride = 0, dilation = 1;
  // Of rows and of columns:
  int size[2] = {1, 1};    // positions of the map
  int length[2] = {1, 1};  // and of a group
  int before[2] = {0, 0};
};

// Logits by the offset key − query, a sum over the axes that have some.
struct OffsetLogits {
  // (batch, heads, *queries, entries). Gradients are float32, with dense entries; those that are not needed are null.
  Map table[AXES], gradient[AXES];
  int unit[AXES];             // offset of an entry to the next
  int centre[AXES];           // entry of offset 0
  int most[AXES];             // units; beyond is the outside's logit
  bool without_centre[AXES];  // entries after the centre are one earlier
  Map outside;                // (batch, heads, *queries, 1)
  float outside_number;       // in place of it
};

struct Tiles {
  int heads;
  int64_t maps;  // batch · heads
  Axis axis[AXES];
  int low[AXES], high[AXES];  // least and greatest offset key − query that is attended to
  bool without_self;          // by no query
  float scale;
  Map query, key, value, grad;
  OffsetLogits logits;
  Map before;  // forward: the output of arms before, merged with this one's, and the log-sum-exp of both
  const float* lse_before;
  float* lse;         // of each query, dense
  const float* mean;  // backward: Σ grad · out of each query
  Map out;            // or the gradient of what is in its place
  bool add;           // to the numbers that are there
};

enum class Pass { forward, query, key, value };

// Least shared memory of a block.
size_t tiles_shared_bytes();

cudaError_t tiles(Tiles call, Pass pass, cudaStream_t stream);

}  // namespace mmattn::cuda
