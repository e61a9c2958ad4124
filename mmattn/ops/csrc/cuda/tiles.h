// A pass of attention between groups of queries and groups of keys: an arm of grid_attention, or all of
// strided_attention. A block has a tile of rows and loops over all columns of their group. In the forward pass and for
// the gradients of queries, rows are queries and columns are keys; for the gradients of keys and values, rows are keys.
#pragma once

#include <cuda_runtime_api.h>

#include "map.h"

namespace mmattn::cuda {

constexpr int AXES = 3;       // of a map; missing axes come first, with length 1
constexpr int ANY = 1 << 30;  // larger than any offset

// The division of an axis into groups: position n of group g is at g · stride + n · dilation − before.
struct Axis {
  int groups = 1, stride = 0, dilation = 1;
  // For rows and columns:
  int size[2] = {1, 1};    // positions of the map
  int length[2] = {1, 1};  // positions of a group
  int before[2] = {0, 0};
};

// Logits by the offset key − query, summed over the axes that have a table.
struct OffsetLogits {
  // (batch, heads, *queries, entries). Gradients are float32 with contiguous entries; null if not needed.
  Map table[AXES], gradient[AXES];
  int unit[AXES];             // distance between the offsets of consecutive entries
  int centre[AXES];           // entry of offset 0
  int most[AXES];             // largest distance from the centre, in units; keys beyond it have the outside logit
  bool without_centre[AXES];  // the centre has no entry, so later entries move up by one
  Map outside;                // (batch, heads, *queries, 1)
  float outside_number;       // used if `outside` has no data
};

struct Tiles {
  int heads;
  int64_t maps;  // batch · heads
  Axis axis[AXES];
  int low[AXES], high[AXES];  // smallest and largest offset key − query of a key
  bool without_self;          // no query attends to its own position
  float scale;
  Map query, key, value, grad;
  OffsetLogits logits;
  Map before;  // forward: output and log-sum-exp of the previous arms, merged with those of this arm
  const float* lse_before;
  float* lse;         // per query, contiguous
  const float* mean;  // backward: Σ grad · out − grad_lse per query
  Map out;            // the output, or the gradient of query, key or value
  bool add;           // add to the previous values of `out`
};

enum class Pass { forward, query, key, value };

// The smallest shared memory of a block, in bytes.
size_t tiles_shared_bytes();

cudaError_t tiles(Tiles call, Pass pass, cudaStream_t stream);

}  // namespace mmattn::cuda
