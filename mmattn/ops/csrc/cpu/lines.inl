// Lines of volumes in scratch memory: (positions, channels), contiguous channels, float32 for every dtype.

// Adjacent lines: (batch, head, outer, inner … inner + count − 1).
struct Place {
  int64_t batch, head, outer, inner, count;
};

template <typename T>
T* line_of(const Volume& volume, const Place& at, int64_t line = 0) {
  return static_cast<T*>(volume.data) + at.batch * volume.stride[0] + at.head * volume.stride[1] +
         at.outer * volume.stride[2] + (at.inner + line) * volume.stride[3];
}

// Fills n numbers, and up to LANES − 1 after them.
inline void fill(float* to, int64_t n, float x) {
  for (int64_t i = 0; i < n; i += LANES) {
    store(to + i, splat(x));
  }
}

template <typename T>
void load_lines_of(const Volume& volume, const Place& at, int64_t length, float* to, int64_t pitch) {
  const T* start = line_of<const T>(volume, at);
  const int64_t inner = volume.stride[3], along = volume.stride[4], channel = volume.stride[5];
  if (channel == 0) {  // expanded, such as the gradient of a sum
    for (int64_t i = 0; i < at.count; ++i) {
      for (int64_t p = 0; p < length; ++p) {
        fill(to + (i * length + p) * pitch, volume.channels, from(start[i * inner + p * along]));
      }
    }
  } else if (channel == 1 && volume.channels < LANES) {
    for (int64_t i = 0; i < at.count; ++i) {
      for (int64_t p = 0; p < length; ++p) {
        const T* row = start + i * inner + p * along;
        for (int64_t c = 0; c < volume.channels; ++c) {
          to[(i * length + p) * pitch + c] = from(row[c]);
        }
      }
    }
  } else if (inner < along) {  // in the order of memory
    for (int64_t p = 0; p < length; ++p) {
      load_row(start + p * along, channel, inner, along, at.count, volume.channels, to + p * pitch, length * pitch);
    }
  } else {
    for (int64_t i = 0; i < at.count; ++i) {
      load_row(start + i * inner, channel, along, inner, length, volume.channels, to + i * length * pitch, pitch);
    }
  }
}

// Position p of line i is stored in row i · length + p.
void load_lines(const Volume& volume, const Place& at, int64_t length, float* to, int64_t pitch) {
  (volume.bfloat16 ? load_lines_of<uint16_t> : load_lines_of<float>)(volume, at, length, to, pitch);
}

// The dot product of n numbers.
template <typename T>
float dot_row(const float* a, const T* b, int64_t n) {
  Vec sum{};
  float rest = 0;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    sum += load(a + i) * load_as_float(b + i);
  }
  for (; i < n; ++i) {
    rest += a[i] * from(b[i]);
  }
  return total(sum) + rest;
}
