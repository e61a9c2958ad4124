#include "capability.h"
#ifdef __x86_64__
// After all other headers, as in isa_avx2.cpp.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
#endif
#define MMATTN_LANES 16
#include "kernels.h"

namespace mmattn {
const Kernels kernels_avx512 = kernels_of("avx512");
}
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
