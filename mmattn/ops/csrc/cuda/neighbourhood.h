// A call of local_attention or dynamic_conv, or of a backward pass; ../../{local_attention,dynamic_conv}.py have the
// equations. dynamic_conv is local attention with `window` only, on a map padded with zeros.
#pragma once

#include <cuda_runtime_api.h>

#include "map.h"

namespace mmattn::cuda {

// Numbers that the backward pass keeps for each query: `slots` per position, in the order in which threads write them.
struct Kept {
  float* data;
  int64_t slot, position;  // strides
};

struct Neighbourhood {
  int64_t positions;  // batch · heads · height · width
  int heads, height, width;
  int kernel[2], dilation;
  bool padded;
  float scale;
  int iterations;
  Map query, key, value, window;
  Map out;                                      // forward
  Map grad, d_query, d_key, d_value, d_window;  // backward; null if not needed
  // Per pair of a query: p of the last pass and d_logits of the first; for each further pass, d_logits and p.
  Kept weights;
  Kept vectors;  // for each further pass: the squashed sum of keys, and the gradient of the sum
  int lanes;     // threads per query
};

// The count of numbers that the backward pass keeps per position.
inline int64_t weight_slots(const Neighbourhood& call) {
  return int64_t{2} * call.iterations * call.kernel[0] * call.kernel[1];
}
inline int64_t vector_slots(const Neighbourhood& call) {
  return int64_t{2} * (call.iterations - 1) * call.key.channels;
}

// The bytes of shared memory of a block, if at most `most` are available.
size_t shared_bytes(Neighbourhood call, bool backward, size_t most);

cudaError_t neighbourhood(Neighbourhood call, cudaStream_t stream);
// `weights` and `vectors` must have memory; the function chooses their strides.
cudaError_t neighbourhood_backward(Neighbourhood call, cudaStream_t stream);

}  // namespace mmattn::cuda
