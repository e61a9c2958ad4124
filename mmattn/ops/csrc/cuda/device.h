// Properties of a device that the kernels require.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace mmattn::cuda {

// The bytes of dynamic shared memory that a block can have on a device, by default the current one; 0 if the kernels do
// not support the device.
inline size_t most_shared(int device = -1) {
  int major = 0, bytes = 0;
  const bool known = (device >= 0 || cudaGetDevice(&device) == cudaSuccess) &&
                     cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess;
  return known && major >= 8 ? bytes : 0;
}

}  // namespace mmattn::cuda
