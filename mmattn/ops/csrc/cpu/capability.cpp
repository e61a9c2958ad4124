#include "capability.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace mmattn {

namespace {

// The best instruction set that the processor supports and `most` allows; null allows all.
const Kernels* best(const char* most) {
#ifdef __x86_64__
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#ifdef MMATTN_AVX512_BF16
  const bool avx512_bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
#endif
  const std::pair<const Kernels*, bool> sets[] = {
#ifdef MMATTN_AVX512_BF16
      {&kernels_amx, avx512_bf16 && (most == nullptr ? has_amx() : multiplies_panels())},
      {&kernels_avx512_bf16, avx512_bf16},
#endif
      {&kernels_avx512, avx512},
      {&kernels_avx2, avx2},
  };
  bool allowed = most == nullptr;
  for (const auto& [kernels, supported] : sets) {
    allowed |= most != nullptr && std::strcmp(most, kernels->name) == 0;
    if (allowed && supported) {
      return kernels;
    }
  }
#endif
  return &kernels_default;
}

std::atomic<const Kernels*>& chosen() {
  // Read once: getenv in a thread of the autograd engine may run while another thread sets a variable.
  static std::atomic<const Kernels*> kernels{best(std::getenv("MMATTN_CPU_CAPABILITY"))};
  return kernels;
}

}  // namespace

const Kernels& cpu_capability() { return *chosen(); }

void set_cpu_capability(const std::string& most) { chosen() = best(most.c_str()); }

}  // namespace mmattn
