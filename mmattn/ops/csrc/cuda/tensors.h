// Conversion of tensors to maps, for the calls of kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <optional>

#include "../checks.h"
#include "../operator.h"
#include "map.h"

namespace mmattn::cuda {

// The map of (batch, heads, *positions, channels) with up to three position axes. Missing axes come first, with
// length 1.
inline Map map_of(const std::optional<at::Tensor>& x) {
  Map map;
  if (!x) {
    return map;
  }
  switch (x->scalar_type()) {
    case at::kFloat:
      map.dtype = Dtype::float32;
      break;
    case at::kHalf:
      map.dtype = Dtype::float16;
      break;
    case at::kBFloat16:
      map.dtype = Dtype::bfloat16;
      break;
    default:
      TORCH_CHECK(false, "CUDA kernels take float32, float16 or bfloat16; got ", x->scalar_type());
  }
  const int64_t axes = x->dim() - 3;
  TORCH_CHECK(axes >= 1 && axes <= 3, "CUDA kernels take (batch, heads, *positions, channels); got ", x->sizes());
  map.data = x->data_ptr();
  map.channels = static_cast<int>(x->size(-1));
  map.stride[0] = x->stride(0);
  map.stride[1] = x->stride(1);
  for (int64_t axis = 0; axis <= axes; ++axis) {  // the last one is channels
    map.stride[5 - axes + axis] = x->stride(2 + axis);
  }
  const int64_t quad = 4 * x->element_size();
  map.quads = map.stride[5] == 1 && map.channels % 4 == 0 && reinterpret_cast<uintptr_t>(map.data) % quad == 0;
  for (int dim = 0; dim < 5; ++dim) {
    map.quads = map.quads && map.stride[dim] % 4 == 0;
  }
  return map;
}

// Scratch memory for a kernel.
inline at::Tensor floats(at::IntArrayRef shape, const at::Tensor& like) {
  return at::empty(shape, like.options().dtype(at::kFloat));
}

// Σ grad · out of each query, minus the gradient of its log-sum-exp.
inline at::Tensor mean_of(const Call& given) {
  const at::Tensor mean = given.tensor("grad").to(at::kFloat).mul(given.tensor("out")).sum(-1);
  const std::optional<at::Tensor> grad_lse = given.optional_tensor("grad_lse");
  return grad_lse ? mean.sub_(*grad_lse) : mean;
}

}  // namespace mmattn::cuda
