// The z-score of grid_attention's window logits; ../../window_logits.py has the equations.
#pragma once

#include <cuda_runtime_api.h>

#include "map.h"

namespace mmattn::cuda {

struct WindowLogits {
  int64_t queries;  // batch · heads · positions
  int heads;
  int size[3], window[3];  // of each axis; the last has its centre among the logits
  Map logits, outlier;     // (batch, heads, *positions, K and 1)
  float outlier_number;    // where there is no outlier
  float* zscore;           // middle, mean and 1/σ of each query, (3, queries)
  float* d_logits;         // (queries, K): the gradients of the normalised logits, in their place those of the logits
  float* d_outlier;        // (queries), or null
};

cudaError_t zscore(const WindowLogits& call, cudaStream_t stream);
cudaError_t zscore_backward(const WindowLogits& call, cudaStream_t stream);

}  // namespace mmattn::cuda
