// As much of CUDA as the kernels use, on the CPU, for tests: blocks one after another, the threads of a block as fibers
// that take turns at barriers and shuffles. Shared memory is NaN before each block and may not be touched beyond what
// was requested.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __shared__
#define __restrict__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

using std::max;
using std::min;

inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }

template <typename To, typename From>
To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
inline float __uint_as_float(unsigned x) { return bits<float>(x); }

namespace mmattn::cuda {
constexpr size_t MOST_SHARED = 163 << 10, BEYOND = 4096;                       // of sm_80; sm_90 has 227 KiB
extern __align__(128) float4 memory[(MOST_SHARED + BEYOND) / sizeof(float4)];  // as in the kernels
}  // namespace mmattn::cuda

namespace fibers {

[[noreturn]] inline void fail(const char* why) {
  std::fprintf(stderr, "block %u thread %u: %s\n", blockIdx.x, threadIdx.x, why);
  std::abort();
}

struct Barrier {
  unsigned arrived = 0, generation = 0;
};

struct Fiber {
  ucontext_t start;
  jmp_buf state;
  std::vector<char> stack = std::vector<char>(256 << 10);
  bool started, done;
};

inline std::vector<Fiber> pool;
inline unsigned running, progress;
inline jmp_buf back;
inline const std::function<void()>* body;
inline Barrier block;
inline std::map<std::pair<unsigned, unsigned>, Barrier> groups;  // by warp and mask
inline float slots[1024][2];                                     // what a thread shuffles, by turns
inline unsigned turn[1024];

inline void pause() {
  if (!_setjmp(pool[running].state)) {
    _longjmp(back, 1);
  }
}

inline void wait(Barrier& barrier, unsigned expected) {
  ++progress;
  if (++barrier.arrived == expected) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  for (const unsigned before = barrier.generation; barrier.generation == before;) {
    pause();
  }
}

inline void enter() {
  (*body)();
  ++progress;
  pool[running].done = true;
  _longjmp(back, 1);
}

// Until it waits, or has ended.
[[gnu::noinline]] inline void resume(unsigned i) {
  Fiber& fiber = pool[i];
  running = i;
  threadIdx = {i, 0, 0};
  if (_setjmp(back)) {
    return;
  }
  if (fiber.started) {
    _longjmp(fiber.state, 1);
  }
  fiber.started = true;
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.data();
  fiber.start.uc_stack.ss_size = fiber.stack.size();
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, enter, 0);
  setcontext(&fiber.start);
}

inline void run_block(const std::function<void()>& kernel, size_t shared) {
  using namespace mmattn::cuda;
  const unsigned threads = blockDim.x;
  if (pool.size() < threads) {
    pool.resize(threads);
  }
  std::memset(memory, 0xff, sizeof(memory));
  body = &kernel;
  block = {};
  groups.clear();
  for (unsigned i = 0; i < threads; ++i) {
    pool[i].started = pool[i].done = false;
    turn[i] = 0;
  }
  for (unsigned left = threads, round = blockIdx.x; left; ++round) {  // in either order: a barrier that lacks is seen
    progress = 0;
    left = 0;
    for (unsigned n = 0; n < threads; ++n) {
      const unsigned i = round % 2 ? threads - 1 - n : n;
      if (pool[i].done) {
        continue;
      }
      resume(i);
      left += !pool[i].done;
    }
    if (left && !progress) {
      fail("waits for threads that never come");
    }
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(memory);
  if (std::any_of(bytes + shared, bytes + sizeof(memory), [](unsigned char x) { return x != 0xff; })) {
    fail("wrote beyond its shared memory");
  }
}

}  // namespace fibers

inline void __syncthreads() { fibers::wait(fibers::block, blockDim.x); }

inline void __syncwarp(unsigned mask = ~0u) {
  if (!(mask >> (threadIdx.x % 32) & 1)) {
    fibers::fail("is not in its mask");
  }
  fibers::wait(fibers::groups[{threadIdx.x / 32, mask}], __builtin_popcount(mask));
}

inline float __shfl_xor_sync(unsigned mask, float x, int other) {
  const unsigned from = threadIdx.x ^ other, now = fibers::turn[threadIdx.x]++ % 2;
  if (!(mask >> (from % 32) & 1)) {
    fibers::fail("shuffles with a thread outside its mask");
  }
  fibers::slots[threadIdx.x][now] = x;
  __syncwarp(mask);
  return fibers::slots[from][now];
}

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess, cudaErrorInvalidValue };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor, cudaDevAttrMaxSharedMemoryPerBlockOptin };
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

// The device, which a test may change.
inline int capability = 8, shared_limit = mmattn::cuda::MOST_SHARED;

inline cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int bytes) {
  return bytes <= shared_limit ? cudaSuccess : cudaErrorInvalidValue;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? capability : shared_limit;
  return cudaSuccess;
}

template <typename Call>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Call), const Call& call) {
  if (config->dynamicSmemBytes > static_cast<size_t>(shared_limit) || config->blockDim.x > 1024 || !config->gridDim.x) {
    return cudaErrorInvalidValue;
  }
  gridDim = config->gridDim;
  blockDim = config->blockDim;
  const std::function<void()> body = [&] { kernel(call); };
  for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z) {
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        fibers::run_block(body, config->dynamicSmemBytes);
      }
    }
  }
  return cudaSuccess;
}
