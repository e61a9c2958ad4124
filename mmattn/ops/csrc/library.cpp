// Functions that report or set properties of the library. It uses plain ATen, not torch's stable ABI, which has
// at::parallel_for only since torch 2.10, while mmattn supports torch since 2.4.
#include <torch/library.h>
#include <torch/version.h>

#include "cpu/capability.h"

TORCH_LIBRARY_FRAGMENT(mmattn_native, m) {
  m.def("cpu_capability() -> str", [] { return std::string(mmattn::cpu_capability().name); });
  m.def("set_cpu_capability(str most) -> ()", mmattn::set_cpu_capability);
  m.def("torch_version() -> str", [] { return std::string(TORCH_VERSION); });
}
