// Copies that are under way until they are waited for.
#pragma once

#include "cuda_runtime.h"

namespace fibers {

struct Copy {
  void* to;
  const void* from;
  size_t bytes, zeros;
};

inline std::vector<Copy> copies[1024], committed[1024];  // of a thread

}  // namespace fibers

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0) {
  const auto start = reinterpret_cast<uintptr_t>(mmattn::cuda::memory), at = reinterpret_cast<uintptr_t>(to);
  if ((bytes != 4 && bytes != 8 && bytes != 16) || at % bytes || reinterpret_cast<uintptr_t>(from) % bytes ||
      zeros > bytes || at < start || at >= start + sizeof(mmattn::cuda::memory)) {
    fibers::fail("copies what is not aligned, or to where is no shared memory");
  }
  fibers::copies[threadIdx.x].push_back({to, from, bytes, zeros});
}

inline void __pipeline_commit() {
  auto &from = fibers::copies[threadIdx.x], &to = fibers::committed[threadIdx.x];
  to.insert(to.end(), from.begin(), from.end());
  from.clear();
}

inline void __pipeline_wait_prior(size_t batches) {
  if (batches) {
    fibers::fail("waits for some of its copies, which is not emulated");
  }
  for (const fibers::Copy& copy : fibers::committed[threadIdx.x]) {
    std::memcpy(copy.to, copy.from, copy.bytes - copy.zeros);
    std::memset(static_cast<char*>(copy.to) + copy.bytes - copy.zeros, 0, copy.zeros);
  }
  fibers::committed[threadIdx.x].clear();
}
