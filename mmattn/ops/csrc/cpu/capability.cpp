#include "capability.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace mmattn {

namespace {

// The best instruction set that the processor supports and `most` allows; null allows all.
const Kernels* best(const char* most) {
#ifdef __x86_64__
  const auto allows = [&](const char* name) { return most == nullptr || std::strcmp(most, name) == 0; };
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512 && allows("avx512")) {
    return &kernels_avx512;
  }
  if (avx2 && (allows("avx512") || allows("avx2"))) {
    return &kernels_avx2;
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
