// nvcuda::wmma: a lane holds some numbers of a fragment; which ones is unspecified. All lanes of a warp take part in a
// call, with the same matrix and the alignment that CUDA requires. A fragment is NaN before it is filled; tf32 operands
// must have been rounded. Sums are truncated to float32, not rounded.
#pragma once

#include "cuda_runtime.h"

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32 {};
}  // namespace precision

namespace on_cpu {

constexpr unsigned SIDE = 16, LANES = 32;

struct Warp {
  float left[SIDE][SIDE], right[SIDE][SIDE];  // (row, depth) and (depth, column)
  const void* call[LANES];
  const void* matrix[LANES];
};

inline Warp warps[32][2];  // of a block, by turns
inline unsigned turns[1024];

// Numbers are dealt out by an odd factor, another one for each kind of fragment.
template <typename Use, typename Layout>
constexpr unsigned factor() {
  return std::is_same_v<Use, accumulator> ? 29 : std::is_same_v<Layout, row_major> ? 77 : 147;
}

// Makes sure that all lanes are in the same call, of the same matrix.
inline Warp& meet(const void* call, const void* matrix, const std::function<void(Warp&)>& give = {}) {
  const unsigned lane = threadIdx.x % LANES;
  Warp& warp = warps[threadIdx.x / LANES][turns[threadIdx.x]++ % 2];
  warp.call[lane] = call;
  warp.matrix[lane] = matrix;
  if (give) {
    give(warp);
  }
  __syncwarp();
  if (warp.call[lane ^ 1] != call || warp.matrix[lane ^ 1] != matrix || warp.call[0] != call) {
    fibers::fail("is in another call for tensor cores than its warp");
  }
  return warp;
}

template <typename T>
void check(const T* matrix, unsigned pitch) {
  if (reinterpret_cast<uintptr_t>(matrix) % 32 || pitch * sizeof(T) % 16 || pitch < 8) {
    fibers::fail("has a matrix for tensor cores that is not aligned");
  }
}

}  // namespace on_cpu

// To the nearest, ties away from zero.
inline float __float_to_tf32(float x) {
  return std::isfinite(x) ? bits<float>((bits<unsigned>(x) + 0x1000) & ~0x1fffu) : x;
}

template <typename Use, int m, int n, int k, typename T, typename Layout = void>
struct fragment {
  static_assert(m == 16 && n == 16 && k == (std::is_same_v<T, precision::tf32> ? 8 : k) && (k == 16 || k == 8));
  static constexpr unsigned ROWS = std::is_same_v<Use, matrix_b> ? k : m,
                            COLUMNS = std::is_same_v<Use, matrix_a> ? k : n;
  static constexpr int num_elements = ROWS * COLUMNS / on_cpu::LANES;
  using Number = std::conditional_t<std::is_same_v<T, precision::tf32>, float, T>;
  Number x[num_elements];

  fragment() { std::memset(x, 0xff, sizeof(x)); }

  // visit(i, row, column) for this lane's numbers
  template <typename Visit>
  static void each(const Visit& visit) {
    for (unsigned i = 0; i < num_elements; ++i) {
      const unsigned dealt = (threadIdx.x % on_cpu::LANES * num_elements + i) * on_cpu::factor<Use, Layout>();
      const unsigned at = dealt % (ROWS * COLUMNS);
      visit(i, at / COLUMNS, at % COLUMNS);
    }
  }
};

template <int k>
using Sums = fragment<accumulator, 16, 16, k, float>;

template <int k, typename T>
void fill_fragment(fragment<accumulator, 16, 16, k, T>& to, T number) {
  std::fill_n(to.x, to.num_elements, number);
}

template <typename Use, int k, typename T, typename Layout>
void load_matrix_sync(fragment<Use, 16, 16, k, T, Layout>& to,
                      const typename fragment<Use, 16, 16, k, T, Layout>::Number* matrix, unsigned pitch) {
  static const char call = 0;
  on_cpu::check(matrix, pitch);
  on_cpu::meet(&call, matrix);
  to.each([&](unsigned i, unsigned row, unsigned column) {
    to.x[i] = std::is_same_v<Layout, row_major> ? matrix[row * pitch + column] : matrix[column * pitch + row];
  });
}

template <int k>
void load_matrix_sync(Sums<k>& to, const float* matrix, unsigned pitch, layout_t layout) {
  static const char call = 0;
  on_cpu::check(matrix, pitch);
  on_cpu::meet(&call, matrix);
  to.each([&](unsigned i, unsigned row, unsigned column) {
    to.x[i] = layout == mem_row_major ? matrix[row * pitch + column] : matrix[column * pitch + row];
  });
}

template <int k>
void store_matrix_sync(float* matrix, const Sums<k>& from, unsigned pitch, layout_t layout) {
  static const char call = 0;
  on_cpu::check(matrix, pitch);
  on_cpu::meet(&call, matrix);
  from.each([&](unsigned i, unsigned row, unsigned column) {
    matrix[layout == mem_row_major ? row * pitch + column : column * pitch + row] = from.x[i];
  });
}

template <typename T, typename Number>
float multiplied(Number x) {
  if (std::is_same_v<T, precision::tf32> && std::isfinite(static_cast<float>(x)) && __float_to_tf32(x) != x) {
    fibers::fail("multiplies what is not rounded to tf32");
  }
  return x;
}

inline float cut_off(double x) {
  const float near = static_cast<float>(x);
  return std::isfinite(near) && std::abs(near) > std::abs(x) ? std::nextafter(near, 0.0f) : near;
}

template <int k, typename T, typename LeftLayout, typename RightLayout>
void mma_sync(Sums<k>& to, const fragment<matrix_a, 16, 16, k, T, LeftLayout>& left,
              const fragment<matrix_b, 16, 16, k, T, RightLayout>& right, const Sums<k>& sums) {
  static const char call = 0;
  const on_cpu::Warp& warp = on_cpu::meet(&call, nullptr, [&](on_cpu::Warp& warp) {
    left.each([&](unsigned i, unsigned row, unsigned depth) { warp.left[row][depth] = multiplied<T>(left.x[i]); });
    right.each(
        [&](unsigned i, unsigned depth, unsigned column) { warp.right[depth][column] = multiplied<T>(right.x[i]); });
  });
  to.each([&](unsigned i, unsigned row, unsigned column) {
    double sum = sums.x[i];
    for (unsigned depth = 0; depth < k; ++depth) {
      sum += static_cast<double>(warp.left[row][depth]) * warp.right[depth][column];
    }
    to.x[i] = cut_off(sum);
  });
}

}  // namespace nvcuda::wmma
