#pragma once

namespace c10::cuda {
using CUDAStream = void*;
inline CUDAStream getCurrentCUDAStream() { return nullptr; }
}  // namespace c10::cuda
