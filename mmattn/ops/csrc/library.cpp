// What the library says of itself. Plain ATen rather than torch's stable ABI: that has at::parallel_for from torch 2.10
// on, and mmattn supports torch from 2.4 on.
#include <Python.h>
#include <torch/library.h>
#include <torch/version.h>

#include "cpu/capability.h"

TORCH_LIBRARY_FRAGMENT(mmattn_native, m) {
  m.def("cpu_capability() -> str", [] { return std::string(mmattn::cpu_capability().name); });
  m.def("set_cpu_capability(str most) -> ()", mmattn::set_cpu_capability);
  m.def("torch_version() -> str", [] { return std::string(TORCH_VERSION); });
}

// What `import mmattn._C` gets, as tools that import every module do: nothing, but the operators are there then.
PyMODINIT_FUNC PyInit__C() {
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr};
  return PyModule_Create(&module);
}
