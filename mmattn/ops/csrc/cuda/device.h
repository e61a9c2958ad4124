// What the kernels ask of a device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace mmattn::cuda {

// Bytes of shared memory that a block can have, all of it dynamic; 0 where the device is older than the kernels. Of the
// current device, or of that number.
inline size_t most_shared(int device = -1) {
  int major = 0, bytes = 0;
  const bool known = (device >= 0 || cudaGetDevice(&device) == cudaSuccess) &&
                     cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess;
  return known && major >= 8 ? bytes : 0;
}

}  // namespace mmattn::cuda
