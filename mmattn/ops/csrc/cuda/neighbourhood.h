// A call of local_attention or dynamic_conv, or of the backward pass of one; ../../{local_attention,dynamic_conv}.py
// have the equations. dynamic_conv is local attention by `window` alone whose map is padded with zeros.
#pragma once

#include <cuda_runtime_api.h>

#include "map.h"

namespace mmattn::cuda {

// What the backward pass keeps of each query for the keys: `slots` numbers of each of `positions`, in the order that
// the threads write them in.
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
  Map grad, d_query, d_key, d_value, d_window;  // backward; null where they are not needed
  // Of the pairs of each query: p of the last pass, d_logits of the first; of each further pass d_logits and p.
  Kept weights;
  Kept vectors;  // of each further pass: the squashed sum of keys, the gradient of the sum
  int lanes;     // threads of a query
};

// Numbers that the backward pass keeps for each position.
inline int64_t weight_slots(const Neighbourhood& call) {
  return int64_t{2} * call.iterations * call.kernel[0] * call.kernel[1];
}
inline int64_t vector_slots(const Neighbourhood& call) {
  return int64_t{2} * (call.iterations - 1) * call.key.channels;
}

// Shared memory of a block, where it can have as much as `most`.
size_t shared_bytes(Neighbourhood call, bool backward, size_t most);

cudaError_t neighbourhood(Neighbourhood call, cudaStream_t stream);
// With memory for `weights` and `vectors`, whose strides it chooses.
cudaError_t neighbourhood_backward(Neighbourhood call, cudaStream_t stream);

}  // namespace mmattn::cuda
