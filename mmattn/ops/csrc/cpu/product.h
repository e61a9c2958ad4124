// Operands of a product of small matrices, whose kernel is in product.inl.
#pragma once

#include <cstdint>

namespace mmattn {

// From row to row of a matrix in scratch memory: whole vectors, an odd number of cache lines, so that rows are not in
// the same sets of the cache. `static`, as what is compiled for several instruction sets may have no linkage.
static inline int64_t pitch_of(int64_t columns) { return (columns + 15) / 16 * 16 | 16; }

// The broadcast factor: element (i, k) at data[i · row + k · column].
struct Factor {
  const float* data;
  int64_t row, column;
};

// The other factor: element (k, j) at data[k · row + j / LANES · vector + j % LANES]. Of a matrix in rows `vector` is
// LANES.
struct Vectors {
  const float* data;
  int64_t row, vector;
};

// Where a product goes: row i times gain_i, plus keep_i times what was there. Without keep, nothing was.
struct Target {
  float* data;
  int64_t stride;
  const float* gain = nullptr;
  const float* keep = nullptr;
};

// A (rows, count) B (count, columns) goes to a Target.
using Product = void (*)(int64_t rows, int64_t columns, int64_t count, const Factor& a, const Vectors& b,
                         const Target& to);

}  // namespace mmattn
