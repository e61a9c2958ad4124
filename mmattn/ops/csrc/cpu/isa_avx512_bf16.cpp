#include "capability.h"
#ifdef MMATTN_AVX512_BF16
#include <immintrin.h>  // its functions are inlined always
// After all other headers, as in isa_avx2.cpp.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"))), \
                             apply_to = function)
#else
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
#endif
#define MMATTN_LANES 16
#define MMATTN_BF16
#include "kernels.h"

namespace mmattn {
const Kernels kernels_avx512_bf16 = kernels_of("avx512_bf16");
}
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
