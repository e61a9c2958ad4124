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
namespace {
constexpr Kernels with_amx() {
  Kernels kernels = kernels_of("amx");
  kernels.global_attention.product_of_pairs = product_by_amx;  // the right factors of the others are not panels
  return kernels;
}
}  // namespace

const Kernels kernels_avx512_bf16 = kernels_of("avx512_bf16");
const Kernels kernels_amx = with_amx();
}  // namespace mmattn
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
