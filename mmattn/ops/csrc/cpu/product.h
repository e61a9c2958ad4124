// Operands of a product of small matrices; product.inl has the kernel.
#pragma once

#include <cstdint>

namespace mmattn {

// The row stride of a matrix in scratch memory, in floats: an odd number of cache lines, so that rows do not conflict
// in a cache set. `static`, because code that is compiled for several instruction sets must have internal linkage.
static inline int64_t pitch_of(int64_t columns) { return (columns + 15) / 16 * 16 | 16; }

// The left factor, whose elements are broadcast: element (i, k) is data[i · row + k · column].
struct Factor {
  const float* data;
  int64_t row, column;
};

// The right factor: element (k, j) is data[k · row + j / LANES · vector + j % LANES]. `vector` is LANES for a row-major
// matrix.
struct Vectors {
  const float* data;
  int64_t row, vector;
};

// The output: row i of the product times gain_i, plus keep_i times the previous values. Without keep, they are not
// read.
struct Target {
  float* data;
  int64_t stride;
  const float* gain = nullptr;
  const float* keep = nullptr;
};

// Writes A (rows, count) times B (count, columns) to a Target. A product of pairs multiplies bfloat16 numbers: a pair
// of them, of the columns k and k + 1 of A, or of the rows k and k + 1 of B, is in the place of a float.
using Product = void (*)(int64_t rows, int64_t columns, int64_t count, const Factor& a, const Vectors& b,
                         const Target& to);

}  // namespace mmattn
