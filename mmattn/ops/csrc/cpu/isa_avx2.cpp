#include "capability.h"
#ifdef __x86_64__
// After all other headers: if an inline function of theirs were compiled for this instruction set, the linker could use
// that copy everywhere.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define MMATTN_LANES 8
#include "kernels.h"

namespace mmattn {
const Kernels kernels_avx2 = kernels_of("avx2");
}
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
