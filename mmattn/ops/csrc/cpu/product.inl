// Products of small matrices in scratch memory, and the softmax of their rows, for the sparse attention kernels. A row
// of a product consists of vectors of LANES columns; the numbers of the left factor are broadcast. Arrays are padded to
// whole vectors; the padding does not affect results.

// Stores the first n numbers of a vector.
__attribute__((noinline)) void put_some(Vec v, float* to, const float* keep, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    to[i] = keep ? v[i] + *keep * to[i] : v[i];
  }
}

inline void put(Vec v, const Target& to, int64_t row, float* at, int64_t n) {
  v = to.gain ? v * to.gain[row] : v;
  if (n >= LANES) {
    store(at, to.keep ? v + to.keep[row] * load(at) : v);
  } else if (n > 0) {
    put_some(v, at, to.keep ? to.keep + row : nullptr, n);
  }
}

// Copies rows, rounded to bfloat16: pairs of adjacent numbers of a row. `to` may be `from`.
void pair_columns(const float* from, int64_t count, int64_t width, int64_t pitch, float* to) {
  for (int64_t r = 0; r < count; ++r) {
    uint16_t* row = reinterpret_cast<uint16_t*>(to + r * pitch);
    for (int64_t x = 0; x < width; x += LANES) {
      store_float_as(row + x, load(from + r * pitch + x));
    }
  }
}

// Copies rows, rounded to bfloat16: the pairs of the numbers of two rows are one row. `to` may be `from`.
void pair_rows(const float* from, int64_t count, int64_t width, int64_t pitch, float* to) {
  for (int64_t r = 0; r < count; r += 2) {
    const float* row = from + r * pitch;
    for (int64_t x = 0; x < width; x += LANES) {
      const Bits first = rounded(load(row + x)), second = r + 1 < count ? rounded(load(row + pitch + x)) : Bits{};
      store(to + r / 2 * pitch + x, reinterpret_cast<Vec>(first | second << 16));
    }
  }
}

// How a product multiplies: adds the product of a number, or pair, of the left factor to the sums.
struct Floats {
  static constexpr int64_t TOGETHER = 1;
  static Vec add(Vec sums, const float* left, Vec right, bool) { return sums + *left * right; }
};

#ifdef MMATTN_BF16
struct Pairs {
  static constexpr int64_t TOGETHER = 2;
  // If the pair is not `whole`, its second numbers do not exist.
  static Vec add(Vec sums, const float* left, Vec right, bool whole) {
    uint32_t pair;
    __builtin_memcpy(&pair, left, sizeof pair);
    const Bits mask = Bits{} + (whole ? ~0u : 0xffffu);
    return reinterpret_cast<Vec>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sums),
                                                  reinterpret_cast<__m512bh>((Bits{} + pair) & mask),
                                                  reinterpret_cast<__m512bh>(reinterpret_cast<Bits>(right) & mask)));
  }
};
#endif

// M rows and N vectors of columns. Not inlined: in a larger function, not all sums would stay in registers.
template <typename Numbers, int M, int N>
__attribute__((noinline)) void product_tile(int64_t row, int64_t column, int64_t columns, int64_t count,
                                            const Factor& a, const Vectors& b, const Target& to) {
  Vec sum[M][N];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 3
    for (int n = 0; n < N; ++n) {
      sum[m][n] = Vec{};
    }
  }
  const float* left = a.data + row * a.row;
  const float* right = b.data + column / LANES * b.vector;
  const auto add = [&](bool whole) __attribute__((always_inline)) {
    Vec x[N];
#pragma GCC unroll 3
    for (int n = 0; n < N; ++n) {
      x[n] = load(right + n * b.vector);
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 3
      for (int n = 0; n < N; ++n) {
        sum[m][n] = Numbers::add(sum[m][n], left + m * a.row, x[n], whole);
      }
    }
  };
  for (int64_t k = Numbers::TOGETHER; k <= count; k += Numbers::TOGETHER, left += a.column, right += b.row) {
    add(true);
  }
  if (count % Numbers::TOGETHER) {
    add(false);
  }
  float* at = to.data + row * to.stride + column;
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m, at += to.stride) {
#pragma GCC unroll 3
    for (int n = 0; n < N; ++n) {
      put(sum[m][n], to, row + m, at + n * LANES, columns - column - n * LANES);
    }
  }
}

template <typename Numbers, int N>
void product_columns(int64_t rows, int64_t column, int64_t columns, int64_t count, const Factor& a, const Vectors& b,
                     const Target& to) {
  // At least eight independent sums; with N = 3, as many as fit into 32 or 16 registers.
  constexpr int M = LANES == 16 || N == 1 ? 8 : 4;
  int64_t row = 0;
  for (; row + M <= rows; row += M) {
    product_tile<Numbers, M, N>(row, column, columns, count, a, b, to);
  }
  for (; row + 4 <= rows; row += 4) {
    product_tile<Numbers, 4, N>(row, column, columns, count, a, b, to);
  }
  for (; row < rows; ++row) {
    product_tile<Numbers, 1, N>(row, column, columns, count, a, b, to);
  }
}

// Writes a (rows, count) times b (count, columns) to a Target.
template <typename Numbers>
void product_of(int64_t rows, int64_t columns, int64_t count, const Factor& a, const Vectors& b, const Target& to) {
  for (int64_t column = 0; column < columns;) {
    const int64_t vectors = (columns - column + LANES - 1) / LANES;
    if (vectors % 3 == 0) {
      product_columns<Numbers, 3>(rows, column, columns, count, a, b, to);
      column += 3 * LANES;
    } else if (vectors > 1) {
      product_columns<Numbers, 2>(rows, column, columns, count, a, b, to);
      column += 2 * LANES;
    } else {
      product_columns<Numbers, 1>(rows, column, columns, count, a, b, to);
      column += LANES;
    }
  }
}

constexpr Product product = product_of<Floats>;
#ifdef MMATTN_BF16
// Multiplies pairs with AMX, by panels of the right factor. What does not come as rows of pairs and as panels, and the
// last rows, are multiplied by AVX-512.
void product_by_amx(int64_t rows, int64_t columns, int64_t count, const Factor& a, const Vectors& b, const Target& to) {
  constexpr int64_t MOST = 256, LEAST = 32;
  int64_t done = 0;
  if (rows >= LEAST && count % 16 == 0 && a.column == 1 && b.row == LANES && multiplies_panels()) {
    alignas(64) float sums[MOST * LANES];
    for (int64_t part = MOST; part >= LEAST; part /= 2) {  // few sizes, because there is a kernel for each
      for (; done + part <= rows; done += part) {
        for (int64_t column = 0; column < columns; column += LANES) {
          multiply_panel(part, count, a.data + done * a.row, 2 * a.row, b.data + column / LANES * b.vector, sums);
          for (int64_t row = done; row < done + part; ++row) {
            put(load(sums + (row - done) * LANES), to, row, to.data + row * to.stride + column, columns - column);
          }
        }
      }
    }
    release_amx();
  }
  if (done < rows) {
    product_of<Pairs>(rows - done, columns, count, {a.data + done * a.row, a.row, a.column}, b,
                      {to.data + done * to.stride, to.stride, to.gain ? to.gain + done : nullptr,
                       to.keep ? to.keep + done : nullptr});
  }
}

constexpr bool MULTIPLIES_PAIRS = true;
constexpr Product product_of_pairs = product_of<Pairs>;
#else
constexpr bool MULTIPLIES_PAIRS = false;
constexpr Product product_of_pairs = nullptr;
#endif

// Prepares the factors of products, and multiplies them, as pairs if all operands are bfloat16.
struct Factors {
  Factors(const Volume& query, const Volume& key, const Volume& value)
      : paired(MULTIPLIES_PAIRS && query.bfloat16 && key.bfloat16 && value.bfloat16),
        product(paired ? product_of_pairs : mmattn::product) {}

  // Return rows as a factor of a product that sums over their columns, or over the rows. Pairs are written to `to`.
  const float* over_columns(const float* from, int64_t count, int64_t width, int64_t pitch, float* to) const {
    if (!paired) {
      return from;
    }
    pair_columns(from, count, width, pitch, to);
    return to;
  }
  const float* over_rows(const float* from, int64_t count, int64_t width, int64_t pitch, float* to) const {
    if (!paired) {
      return from;
    }
    pair_rows(from, count, width, pitch, to);
    return to;
  }

  const bool paired;
  const Product product;
};

// Transposes (rows, columns) to (columns, rows), both padded to whole blocks of LANES rows and columns.
void transpose(const float* from, int64_t pitch_from, int64_t rows, int64_t columns, float* to, int64_t pitch_to) {
  for (int64_t r = 0; r < rows; r += LANES) {
    for (int64_t c = 0; c < columns; c += LANES) {
      Vec block[LANES];
      for (int64_t i = 0; i < LANES; ++i) {
        block[i] = load(from + (r + i) * pitch_from + c);
      }
      transpose(block);
      for (int64_t i = 0; i < LANES; ++i) {
        store(to + (c + i) * pitch_to + r, block[i]);
      }
    }
  }
}

// The largest of n numbers; NaN is ignored.
inline float highest_of(const float* p, int64_t n) {
  Vec peak = splat(-INF);
  for (int64_t i = 0; i < n; i += LANES) {
    peak = max(load(p + i), peak);
  }
  return highest(peak);
}

// Replaces n numbers x by e^(x − shift) and returns the sum. They must be padded with −∞ to whole vectors.
inline float exponentials(float* p, int64_t n, float shift) {
  Vec sum{};
  for (int64_t i = 0; i < n; i += LANES) {
    const Vec v = exp(load(p + i) - shift);
    store(p + i, v);
    sum += v;
  }
  return total(sum);
}
