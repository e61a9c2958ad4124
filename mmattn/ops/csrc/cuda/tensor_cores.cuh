// Products of tiles in shared memory on tensor cores, with operands of 16 bits. A float32 is split into the sum of two
// tf32 numbers; three products then have float32 precision, but are NaN if an operand is infinite. Sums are float32.
#pragma once

#include <mma.h>

#include <type_traits>

#include "device.cuh"

namespace mmattn::cuda {

namespace wmma = nvcuda::wmma;

constexpr int SIDE = 16;  // side of a fragment of sums
template <typename T>
constexpr int DEPTH = sizeof(T) == 2 ? 16 : 8;  // depth of a product of fragments
template <typename T>
constexpr int SKEW = 16 / sizeof(T);  // padding of a row of a tile, so that eight rows use all banks

template <typename T>
using Sums = wmma::fragment<wmma::accumulator, SIDE, SIDE, DEPTH<T>, float>;

template <typename T>
__device__ T rounded(float x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

template <typename T>
struct alignas(4 * sizeof(T)) Four {
  T x[4];
};

// A fragment of the left (wmma::matrix_a) or right (wmma::matrix_b) factor of a product.
template <typename Side, typename T, typename Layout>
struct Factor {
  wmma::fragment<Side, SIDE, SIDE, DEPTH<T>, T, Layout> x;

  __device__ void load(const T* from, int pitch) { wmma::load_matrix_sync(x, from, pitch); }
};

template <typename Side, typename Layout>
struct Factor<Side, float, Layout> {
  wmma::fragment<Side, SIDE, SIDE, DEPTH<float>, wmma::precision::tf32, Layout> x, rest;

  __device__ void load(const float* from, int pitch) {
    wmma::load_matrix_sync(x, from, pitch);
#pragma unroll
    for (int n = 0; n < x.num_elements; ++n) {
      const float whole = x.x[n];
      x.x[n] = wmma::__float_to_tf32(whole);
      rest.x[n] = wmma::__float_to_tf32(x.x[n] == whole ? 0 : whole - x.x[n]);
    }
  }
};

template <typename T, typename LeftLayout, typename RightLayout>
__device__ void add_product(Sums<T>& sums, const Factor<wmma::matrix_a, T, LeftLayout>& left,
                            const Factor<wmma::matrix_b, T, RightLayout>& right) {
  if constexpr (std::is_same_v<T, float>) {
    // Tensor cores truncate sums instead of rounding them, an error that grows with the number of products. They
    // therefore sum one product only; the sum of products is rounded.
    Sums<T> product;
    wmma::fill_fragment(product, 0.0f);
    wmma::mma_sync(product, left.rest, right.x, product);
    wmma::mma_sync(product, left.x, right.rest, product);
    wmma::mma_sync(product, left.x, right.x, product);
#pragma unroll
    for (int n = 0; n < product.num_elements; ++n) {
      sums.x[n] += product.x[n];
    }
  } else {  // the truncation is much smaller than the rounding of the result
    wmma::mma_sync(sums, left.x, right.x, sums);
  }
}

// The product of ROWS rows and COLUMNS columns, each with contiguous `channels`, by all warps of a block.
template <int ROWS, int COLUMNS, int WARPS, typename T>
__device__ void multiply(const T* rows, const T* columns, int channels, float* to, int to_pitch) {
  constexpr int TALL = ROWS / SIDE, WIDE = TALL * (COLUMNS / SIDE) / WARPS;  // fragments per column; fragments per warp
  const int warp = threadIdx.x / 32, pitch = channels + SKEW<T>;
  const int row = warp % TALL * SIDE, column = warp / TALL * WIDE * SIDE;
  Sums<T> sums[WIDE];
#pragma unroll
  for (int c = 0; c < WIDE; ++c) {
    wmma::fill_fragment(sums[c], 0.0f);
  }
#pragma unroll 2
  for (int k = 0; k < channels; k += DEPTH<T>) {
    Factor<wmma::matrix_a, T, wmma::row_major> left;
    left.load(rows + row * pitch + k, pitch);
#pragma unroll
    for (int c = 0; c < WIDE; ++c) {
      Factor<wmma::matrix_b, T, wmma::col_major> right;
      right.load(columns + (column + c * SIDE) * pitch + k, pitch);
      add_product<T>(sums[c], left, right);
    }
  }
#pragma unroll
  for (int c = 0; c < WIDE; ++c) {
    wmma::store_matrix_sync(to + row * to_pitch + column + c * SIDE, sums[c], to_pitch, wmma::mem_row_major);
  }
}

// Sums of 64 rows and up to WIDTH channels in the registers of a block: each warp has 32 rows of columns of fragments
// at a constant distance.
template <typename T, int WIDTH, int WARPS>
struct Result {
  static constexpr int TALL = 2, GROUPS = WARPS / TALL, WIDE = WIDTH / SIDE / GROUPS;

  Sums<T> sums[TALL][WIDE];
  const int channels, row, group;

  __device__ explicit Result(int channels)
      : channels(channels), row(threadIdx.x / 32 % 2 * TALL * SIDE), group(threadIdx.x / 32 / 2) {
#pragma unroll
    for (int i = 0; i < TALL; ++i) {
#pragma unroll
      for (int c = 0; c < WIDE; ++c) {
        wmma::fill_fragment(sums[i][c], 0.0f);
      }
    }
  }

  __device__ int column(int c) const { return (group + GROUPS * c) * SIDE; }

  // Adds the product of weights and `count` rows of channels. Layout: whether the weights of a row of sums are
  // contiguous (row_major) or a column.
  template <typename Layout, int count>
  __device__ void add(const T* weights, int pitch, const T* rows) {
    constexpr bool ROW_BY_ROW = std::is_same_v<Layout, wmma::row_major>;
    const int rows_pitch = channels + SKEW<T>;
#pragma unroll
    for (int k = 0; k < count; k += DEPTH<T>) {
      Factor<wmma::matrix_a, T, Layout> left[TALL];
#pragma unroll
      for (int i = 0; i < TALL; ++i) {
        const int own = row + i * SIDE;
        left[i].load(weights + (ROW_BY_ROW ? own * pitch + k : k * pitch + own), pitch);
      }
#pragma unroll
      for (int c = 0; c < WIDE; ++c) {
        if (column(c) < channels) {
          Factor<wmma::matrix_b, T, wmma::row_major> right;
          right.load(rows + k * rows_pitch + column(c), rows_pitch);
#pragma unroll
          for (int i = 0; i < TALL; ++i) {
            add_product<T>(sums[i][c], left[i], right);
          }
        }
      }
    }
  }

  // Multiplies each row by its factor. `factors` has one factor per number of a row of a fragment: fragments of one
  // kind distribute their elements to lanes in the same, unspecified way.
  __device__ void multiply_rows(const float* factors) {
#pragma unroll
    for (int i = 0; i < TALL; ++i) {
      Sums<T> factor;
      wmma::load_matrix_sync(factor, factors + (row + i * SIDE) * SIDE, SIDE, wmma::mem_row_major);
#pragma unroll
      for (int c = 0; c < WIDE; ++c) {
#pragma unroll
        for (int n = 0; n < factor.num_elements; ++n) {
          sums[i][c].x[n] *= factor.x[n];
        }
      }
    }
  }

  // Stores `count` rows of `width` contiguous channels, through a fragment in shared memory per warp.
  __device__ void store(T* to, int width, int count, float factor, float* scratch) const {
    float* own = scratch + threadIdx.x / 32 * SIDE * SIDE;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < TALL; ++i) {
#pragma unroll
      for (int c = 0; c < WIDE; ++c) {
        if (column(c) < channels) {
          __syncwarp();
          wmma::store_matrix_sync(own, sums[i][c], SIDE, wmma::mem_row_major);
          __syncwarp();
          const int first = row + i * SIDE, channel = column(c) + lane % SIDE;
          for (int r = lane / SIDE; r < SIDE; r += 32 / SIDE) {
            if (first + r < count && channel < width) {
              to[static_cast<int64_t>(first + r) * width + channel] = rounded<T>(factor * own[r * SIDE + lane % SIDE]);
            }
          }
        }
      }
    }
  }
};

}  // namespace mmattn::cuda
