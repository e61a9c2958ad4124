// Rows of maps in scratch memory: (channels, positions), float32 for every dtype, so that a vector holds LANES
// positions of one channel.

inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Allocates from scratch memory; if that is null, it only counts bytes.
struct Arena {
  explicit Arena(void* scratch) : start(reinterpret_cast<uintptr_t>(scratch)) {}

  template <typename T>
  T* take(int64_t count) {
    const uintptr_t at = start + used;
    used += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return reinterpret_cast<T*>(at);
  }

  uintptr_t start;
  int64_t used = 0;
};

inline float from(float x) { return x; }
inline float from(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float y;
  __builtin_memcpy(&y, &bits, 4);
  return y;
}

inline void assign(float& to, float x) { to = x; }
inline void assign(uint16_t& to, float x) {  // to the nearest, ties to even
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  to = x != x ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// Whether two maps are the same view: views of one storage may differ in their strides.
inline bool is_same(const Map& a, const Map& b) {
  return a.data == b.data && !__builtin_memcmp(a.stride, b.stride, sizeof a.stride) && a.channels == b.channels &&
         a.bfloat16 == b.bfloat16;
}

template <typename T>
T* row_of(const Map& map, int64_t batch, int64_t head, int64_t y) {
  return static_cast<T*>(map.data) + batch * map.stride[0] + head * map.stride[1] + y * map.stride[2];
}

// Loads LANES contiguous numbers as float32.
inline Vec load_as_float(const float* p) { return load(p); }
inline Vec load_as_float(const uint16_t* p) {
  Halves x;
  __builtin_memcpy(&x, p, sizeof x);
  return reinterpret_cast<Vec>(__builtin_convertvector(x, Ints) << 16);
}

inline void store_float_as(float* p, Vec v) { store(p, v); }
inline void store_float_as(uint16_t* p, Vec v) {
  const Halves x = __builtin_convertvector(rounded(v), Halves);
  __builtin_memcpy(p, &x, sizeof x);
}

// Calls body(start) for blocks of LANES that cover `length`; the last block may overlap the previous one.
template <typename Body>
inline void for_blocks(int64_t length, const Body& body) {
  for (int64_t start = 0; start < length; start += LANES) {
    body(min_of(start, length - LANES));
  }
}

// Loads LANES numbers and prefetches those of the next row, `ahead` of them: the hardware prefetcher does not detect
// the short runs of memory that form a row of one head.
template <typename T>
inline Vec load_and_fetch(const T* p, int64_t ahead) {
  __builtin_prefetch(p + ahead, 0, 2);
  return load_as_float(p);
}

template <typename T>
void load_row(const T* map, int64_t step, int64_t channel, int64_t ahead, int64_t channels, int64_t width, float* row,
              int64_t pitch) {
  if (step == 1 && width >= LANES) {
    for (int64_t c = 0; c < channels; ++c) {
      for_blocks(width, [&](int64_t x) { store(row + c * pitch + x, load_and_fetch(map + c * channel + x, ahead)); });
    }
  } else if (channel == 1 && channels >= LANES && width >= LANES) {
    for_blocks(width, [&](int64_t x) {
      for_blocks(channels, [&](int64_t c) {
        Vec block[LANES];
        for (int64_t i = 0; i < LANES; ++i) {
          block[i] = load_and_fetch(map + (x + i) * step + c, ahead);
        }
        transpose(block);
        for (int64_t i = 0; i < LANES; ++i) {
          store(row + (c + i) * pitch + x, block[i]);
        }
      });
    });
  } else {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < channels; ++c) {
        row[c * pitch + x] = from(map[x * step + c * channel]);
      }
    }
  }
}

template <typename T>
void store_row(T* map, int64_t step, int64_t channel, int64_t channels, int64_t width, const float* row,
               int64_t pitch) {
  if (step == 1 && width >= LANES) {
    for (int64_t c = 0; c < channels; ++c) {
      for_blocks(width, [&](int64_t x) { store_float_as(map + c * channel + x, load(row + c * pitch + x)); });
    }
  } else if (channel == 1 && channels >= LANES && width >= LANES) {
    for_blocks(width, [&](int64_t x) {
      for_blocks(channels, [&](int64_t c) {
        Vec block[LANES];
        for (int64_t i = 0; i < LANES; ++i) {
          block[i] = load(row + (c + i) * pitch + x);
        }
        transpose(block);
        for (int64_t i = 0; i < LANES; ++i) {
          store_float_as(map + (x + i) * step + c, block[i]);
        }
      });
    });
  } else {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < channels; ++c) {
        assign(map[x * step + c * channel], row[c * pitch + x]);
      }
    }
  }
}

template <typename T>
void load_row_of(const Map& map, int64_t batch, int64_t head, int64_t y, int64_t width, float* row, int64_t pitch) {
  load_row(row_of<const T>(map, batch, head, y), map.stride[3], map.stride[4], map.stride[2], map.channels, width, row,
           pitch);
}

void load_row(const Map& map, int64_t batch, int64_t head, int64_t y, int64_t width, float* row, int64_t pitch) {
  (map.bfloat16 ? load_row_of<uint16_t> : load_row_of<float>)(map, batch, head, y, width, row, pitch);
}

template <typename T>
void store_row_of(const Map& map, int64_t batch, int64_t head, int64_t y, int64_t width, const float* row,
                  int64_t pitch) {
  store_row(row_of<T>(map, batch, head, y), map.stride[3], map.stride[4], map.channels, width, row, pitch);
}

void store_row(const Map& map, int64_t batch, int64_t head, int64_t y, int64_t width, const float* row, int64_t pitch) {
  (map.bfloat16 ? store_row_of<uint16_t> : store_row_of<float>)(map, batch, head, y, width, row, pitch);
}
