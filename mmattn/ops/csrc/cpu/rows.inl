// Rows of maps in scratch memory: float32 whatever their dtype, a channel at a time, positions side by side, so that a
// vector is LANES positions of one channel.

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Hands out scratch memory; from none, it only counts.
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

template <typename T>
T* row_of(const Map& map, int64_t batch, int64_t head, int64_t y) {
  return static_cast<T*>(map.data) + batch * map.stride[0] + head * map.stride[1] + y * map.stride[2];
}

constexpr int64_t BLOCK = 16;  // positions of a block of a row whose channels stay in cache

template <typename T>
void load_row(const T* from_, int64_t step, int64_t channel, int64_t channels, int64_t width, float* row,
              int64_t pitch) {
  for (int64_t x0 = 0; x0 < width; x0 += BLOCK) {
    const int64_t x1 = least(width, x0 + BLOCK);
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t x = x0; x < x1; ++x) {
        row[c * pitch + x] = from(from_[x * step + c * channel]);
      }
    }
  }
}

template <typename T>
void store_row(T* to, int64_t step, int64_t channel, int64_t channels, int64_t width, const float* row,
               int64_t pitch) {
  for (int64_t x0 = 0; x0 < width; x0 += BLOCK) {
    const int64_t x1 = least(width, x0 + BLOCK);
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t x = x0; x < x1; ++x) {
        assign(to[x * step + c * channel], row[c * pitch + x]);
      }
    }
  }
}

void load_row(const Map& map, int64_t batch, int64_t head, int64_t y, int64_t width, float* row, int64_t pitch) {
  if (map.bfloat16) {
    load_row(row_of<const uint16_t>(map, batch, head, y), map.stride[3], map.stride[4], map.channels, width, row,
             pitch);
  } else {
    load_row(row_of<const float>(map, batch, head, y), map.stride[3], map.stride[4], map.channels, width, row, pitch);
  }
}

void store_row(const Map& map, int64_t batch, int64_t head, int64_t y, int64_t width, const float* row,
               int64_t pitch) {
  if (map.bfloat16) {
    store_row(row_of<uint16_t>(map, batch, head, y), map.stride[3], map.stride[4], map.channels, width, row, pitch);
  } else {
    store_row(row_of<float>(map, batch, head, y), map.stride[3], map.stride[4], map.channels, width, row, pitch);
  }
}
