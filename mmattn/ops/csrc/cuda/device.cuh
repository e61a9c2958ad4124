// Shared by the kernels: loads and stores of maps, a maximum that propagates NaN, and the launch of a kernel.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "device.h"
#include "map.h"

namespace mmattn::cuda {

__device__ inline float load(const Map& x, int64_t at, Dtype dtype) {
  switch (dtype) {
    case Dtype::float16:
      return __half2float(static_cast<const __half*>(x.data)[at]);
    case Dtype::bfloat16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(x.data)[at]);
    default:
      return static_cast<const float*>(x.data)[at];
  }
}

__device__ inline float load(const Map& x, int64_t at) { return load(x, at, x.dtype); }

__device__ inline void store(const Map& x, int64_t at, float number, Dtype dtype) {
  switch (dtype) {
    case Dtype::float16:
      static_cast<__half*>(x.data)[at] = __float2half_rn(number);
      return;
    case Dtype::bfloat16:
      static_cast<__nv_bfloat16*>(x.data)[at] = __float2bfloat16_rn(number);
      return;
    default:
      static_cast<float*>(x.data)[at] = number;
  }
}

__device__ inline void store(const Map& x, int64_t at, float number) { store(x, at, number, x.dtype); }

// Converts the two 16-bit numbers of a word.
__device__ inline float2 halves(unsigned word, Dtype dtype) {
  if (dtype == Dtype::bfloat16) {  // bfloat16 is the upper half of a float
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
  }
  return {__half2float(__ushort_as_half(static_cast<unsigned short>(word))),
          __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16)))};
}

// Loads channels c to c + 3 of the position at `at`, with c a multiple of 4; 0 beyond the last channel.
__device__ inline float4 load4(const Map& x, int64_t at, int c, Dtype dtype) {
  if (x.quads && c < x.channels) {
    if (dtype == Dtype::float32) {
      return *reinterpret_cast<const float4*>(static_cast<const float*>(x.data) + at + c);
    }
    const uint2 words = *reinterpret_cast<const uint2*>(static_cast<const __half*>(x.data) + at + c);
    const float2 low = halves(words.x, dtype), high = halves(words.y, dtype);
    return {low.x, low.y, high.x, high.y};
  }
  const auto one = [&](int c) { return c < x.channels ? load(x, at + c * x.stride[5], dtype) : 0.0f; };
  return {one(c), one(c + 1), one(c + 2), one(c + 3)};
}

__device__ inline void store4(const Map& x, int64_t at, int c, float4 numbers, Dtype dtype) {
  if (x.quads && dtype == Dtype::float32 && c < x.channels) {
    *reinterpret_cast<float4*>(static_cast<float*>(x.data) + at + c) = numbers;
    return;
  }
  const float each[] = {numbers.x, numbers.y, numbers.z, numbers.w};
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    if (c + u < x.channels) {
      store(x, at + (c + u) * x.stride[5], each[u], dtype);
    }
  }
}

__device__ inline float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

__device__ inline float4 operator*(float a, float4 b) { return {a * b.x, a * b.y, a * b.z, a * b.w}; }

__device__ inline float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

__device__ inline float most(float a, float b) { return a > b || a != a ? a : b; }

__device__ inline float* shared_memory() {
  extern __shared__ __align__(128) float4 memory[];
  return reinterpret_cast<float*>(memory);
}

constexpr size_t DEFAULT_SHARED = 48 << 10;  // more must be requested

template <typename Call>
cudaError_t launch(void (*kernel)(Call), dim3 blocks, int threads, size_t shared, cudaStream_t stream,
                   const Call& call) {
  if (!blocks.x) {
    return cudaSuccess;
  }
  if (shared > DEFAULT_SHARED) {
    const cudaError_t error = cudaFuncSetAttribute(
        reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (error != cudaSuccess) {
      return error;
    }
  }
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, call);
}

}  // namespace mmattn::cuda
