// The calls of the CUDA kernels as operators cuda_on_cpu::… on the CPU; the test defines their schemas.
#include <torch/library.h>

#include "cuda_runtime.h"

#undef TORCH_LIBRARY_IMPL
#define TORCH_LIBRARY_IMPL(ns, key, m) _TORCH_LIBRARY_IMPL(cuda_on_cpu, CPU, m, C10_UID)

#include "cuda/dynamic_conv.cpp"
#include "cuda/global_attention.cpp"
#include "cuda/grid_attention.cpp"
#include "cuda/local_attention.cpp"
#include "cuda/strided_attention.cpp"

__align__(128) float4 mmattn::cuda::memory[(MOST_SHARED + BEYOND) / sizeof(float4)];
