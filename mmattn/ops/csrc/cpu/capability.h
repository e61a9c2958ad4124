// The kernels, compiled once for each instruction set, and the choice between them on the machine that runs them.
#pragma once

#include "local_attention.h"

namespace mmattn {

struct Kernels {
  const char* name;
  RowKernel local_attention;
  RowKernel local_attention_backward;
};

// Each defined by its isa_*.cpp.
extern const Kernels kernels_default;
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;

// The best of the instruction sets that this processor has, or that MMATTN_CPU_CAPABILITY=default|avx2|avx512 allows.
const Kernels& cpu_capability();

}  // namespace mmattn
