// Vectors of LANES floats, and operations on them that the compiler's vector extensions do not provide.

constexpr int64_t LANES = MMATTN_LANES;
constexpr float INF = __builtin_inff();

typedef float Vec __attribute__((vector_size(4 * MMATTN_LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * MMATTN_LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * MMATTN_LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * MMATTN_LANES)));
typedef float Unaligned __attribute__((vector_size(4 * MMATTN_LANES), aligned(4), may_alias));

inline Vec load(const float* p) { return *reinterpret_cast<const Unaligned*>(p); }
inline void store(float* p, Vec v) { *reinterpret_cast<Unaligned*>(p) = v; }
inline Vec splat(float x) { return Vec{} + x; }
inline Vec max(Vec a, Vec b) { return a > b ? a : b; }
inline Vec abs(Vec a) { return max(a, -a); }

inline Vec sqrt(Vec a) {
  for (int64_t i = 0; i < LANES; ++i) {
    a[i] = __builtin_sqrtf(a[i]);
  }
  return a;
}

template <int... I>
inline Ints numbers(std::integer_sequence<int, I...>) {
  return Ints{I...};
}

inline Ints lanes() { return numbers(std::make_integer_sequence<int, LANES>()); }

// Shuffles a and b: index k selects a_k, index LANES + k selects b_k.
template <int... K>
inline Vec pick(Vec a, Vec b) {
#ifdef __clang__
  return __builtin_shufflevector(a, b, K...);
#else
  return __builtin_shuffle(a, b, Ints{K...});
#endif
}

// Exchanges the off-diagonal parts of blocks of 2 · SIZE rows and columns.
template <int SIZE, int... I>
inline void exchange(Vec* rows, std::integer_sequence<int, I...>) {
  for (int64_t i = 0; i < LANES; ++i) {
    if (!(i & SIZE)) {
      const Vec a = rows[i], b = rows[i + SIZE];
      rows[i] = pick<(I & SIZE ? LANES + I - SIZE : I)...>(a, b);
      rows[i + SIZE] = pick<(I & SIZE ? LANES + I : I + SIZE)...>(a, b);
    }
  }
}

// Transposes LANES rows.
inline void transpose(Vec* rows) {
  constexpr std::make_integer_sequence<int, LANES> each{};
  exchange<1>(rows, each);
  exchange<2>(rows, each);
#if MMATTN_LANES >= 8
  exchange<4>(rows, each);
#endif
#if MMATTN_LANES >= 16
  exchange<8>(rows, each);
#endif
}

template <int STEP, int... I>
inline Vec swapped(Vec v, std::integer_sequence<int, I...>) {
  return pick<(I ^ STEP)...>(v, v);
}

// Combines all lanes; every lane of the result holds the combination.
template <typename Combine>
inline Vec across(Vec v, const Combine& combine) {
  constexpr std::make_integer_sequence<int, LANES> each{};
#if MMATTN_LANES >= 16
  v = combine(v, swapped<8>(v, each));
#endif
#if MMATTN_LANES >= 8
  v = combine(v, swapped<4>(v, each));
#endif
  v = combine(v, swapped<2>(v, each));
  return combine(v, swapped<1>(v, each));
}

inline float highest(Vec v) {
  return across(v, [](Vec a, Vec b) { return max(a, b); })[0];
}

inline float total(Vec v) {
  return across(v, [](Vec a, Vec b) { return a + b; })[0];
}

// Rounds to bfloat16, to the nearest, ties to even: the bits of the numbers.
inline Bits rounded(Vec v) {
#ifdef MMATTN_BF16
  return __builtin_convertvector(reinterpret_cast<Halves>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(v))), Bits);
#else
  const Bits bits = reinterpret_cast<Bits>(v);
  return v != v ? Bits{} + 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#endif
}

// e^x for x ≤ 0, with an error of up to 2 ulp; 0 if the result is not a normal number, NaN for NaN.
inline Vec exp(Vec x) {
  constexpr float ROUND = 12582912;  // 1.5 · 2^23: added to a small number, its lowest bits hold that number, rounded
  const Vec t = x * 1.44269504f + ROUND;
  const Vec n = t - ROUND;
  const Vec f = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2, split into two parts
  Vec p = splat(1.9875691500e-4f);
  p = p * f + 1.3981999507e-3f;
  p = p * f + 8.3334519073e-3f;
  p = p * f + 4.1665795894e-2f;
  p = p * f + 1.6666665459e-1f;
  p = p * f + 5.0000001201e-1f;
  p = p * f * f + f + 1.0f;
  const Vec power = reinterpret_cast<Vec>((reinterpret_cast<Bits>(t) << 23) + (127u << 23));
  return x < -87.3f ? Vec{} : p * power;
}
