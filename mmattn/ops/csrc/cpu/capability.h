// The kernels, compiled once for each instruction set, and the choice between them at run time.
#pragma once

#include <string>

#include "amx.h"
#include "global_attention.h"
#include "grid_attention.h"
#include "local_attention.h"
#include "strided_attention.h"

// Whether the compiler knows the instructions.
#if defined(__x86_64__) && __has_include(<avx512bf16intrin.h>)
#define MMATTN_AVX512_BF16
#endif

namespace mmattn {

struct Kernels {
  const char* name;
  RowKernel local_attention;
  RowKernel local_attention_backward;
  GlobalAttentionKernels global_attention;
  GridKernel grid_attention;
  GridKernel grid_attention_backward;
  StridedKernel strided_attention;
  StridedKernel strided_attention_backward;
};

// Defined in isa_*.cpp.
extern const Kernels kernels_default;
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
extern const Kernels kernels_avx512_bf16;
extern const Kernels kernels_amx;

// The kernels of the best instruction set that the processor supports and
// MMATTN_CPU_CAPABILITY=default|avx2|avx512|avx512_bf16|amx allows. Without AMX, `amx` selects its kernels, too, where
// there is AVX-512 BF16: torch computes their products with it, and tests can run them.
const Kernels& cpu_capability();
// Chooses again for another value of that variable, which is read only once.
void set_cpu_capability(const std::string& most);

}  // namespace mmattn
