// The operators cuda_on_cpu::… are the calls of the CUDA kernels, on the CPU; the test defines their schemas.
#include <torch/library.h>

#include "cuda_runtime.h"

#define is_cuda is_cpu  // what kernels for CUDA take, this device takes
#undef TORCH_LIBRARY_FRAGMENT
#define TORCH_LIBRARY_FRAGMENT(ns, m) _TORCH_LIBRARY_FRAGMENT(cuda_on_cpu_native, m, C10_UID)
#undef TORCH_LIBRARY_IMPL
#define TORCH_LIBRARY_IMPL(ns, key, m) _TORCH_LIBRARY_IMPL(cuda_on_cpu, CPU, m, C10_UID)

#include "operator.cpp"

#include "cuda/dynamic_conv.cpp"
#include "cuda/grid_attention.cpp"
#include "cuda/local_attention.cpp"
#include "cuda/strided_attention.cpp"

__align__(128) float4 mmattn::cuda::memory[(MOST_SHARED + BEYOND) / sizeof(float4)];

TORCH_LIBRARY_FRAGMENT(cuda_on_cpu_native, m) {
  m.def("set_device(int capability, int shared_memory) -> ()", [](int64_t capability_, int64_t shared_memory) {
    capability = static_cast<int>(capability_);
    shared_limit = static_cast<int>(shared_memory);
  });
}
