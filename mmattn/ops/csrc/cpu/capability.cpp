#include "capability.h"

#include <cstdlib>
#include <cstring>

namespace mmattn {

const Kernels& cpu_capability() {
#ifdef __x86_64__
  const char* most = std::getenv("MMATTN_CPU_CAPABILITY");
  const auto allows = [&](const char* name) { return most == nullptr || std::strcmp(most, name) == 0; };
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  static const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512 && allows("avx512")) {
    return kernels_avx512;
  }
  if (avx2 && (allows("avx512") || allows("avx2"))) {
    return kernels_avx2;
  }
#endif
  return kernels_default;
}

}  // namespace mmattn
