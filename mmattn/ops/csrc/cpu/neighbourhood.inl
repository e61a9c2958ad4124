// Sums over the neighbourhoods of LANES adjacent positions, and the softmax of their logits.

// An entry of the kernel: its index, the row of the map that it reads, and the shift along that row.
struct Entry {
  int64_t number, row, shift;
};

struct Neighbourhood {
  // If the map is `padded` with zeros, neighbourhoods include positions outside the map.
  Neighbourhood(int64_t height, int64_t width, const int64_t* kernel, int64_t dilation, bool padded)
      : height(height),
        width(width),
        dilation(dilation),
        count(kernel[0] * kernel[1]),
        columns(kernel[1]),
        up(kernel[0] / 2),
        side(kernel[1] / 2),
        reach_up(padded ? up : min_of(up, (height - 1) / dilation)),
        reach_side(padded ? side : min_of(side, (width - 1) / dilation)),
        radius(reach_up * dilation),
        padded(padded),
        rows(min_of(height, 2 * radius + 1)),
        margin(round_up(reach_side * dilation, 16)),
        // An odd number of cache lines, so that the channels of a position do not conflict in a cache set.
        pitch((2 * margin + round_up(width, 16)) | 16) {}

  // The entries that lead from row y to a row of the map, or of its padding.
  int64_t list(int64_t y, Entry* entries) const { return list(y, 1, padded, entries); }

  // The entries that lead from a row of the map to row y.
  int64_t list_back(int64_t y, Entry* entries) const { return list(y, -1, false, entries); }

  int64_t list(int64_t y, int64_t sign, bool beyond, Entry* entries) const {
    int64_t n = 0;
    for (int64_t a = -reach_up; a <= reach_up; ++a) {
      const int64_t row = y + sign * a * dilation;
      for (int64_t b = -reach_side; b <= reach_side && (beyond || is_inside(row)); ++b) {
        entries[n++] = {(a + up) * columns + b + side, row, sign * b * dilation};
      }
    }
    return n;
  }

  bool is_inside(int64_t row) const { return row >= 0 && row < height; }

  int64_t height, width, dilation, count, columns, up, side, reach_up, reach_side, radius;
  bool padded;
  int64_t rows;           // rows of the map in reach of one row
  int64_t margin, pitch;  // zeros before and after a row; distance between channels
};

// A ring buffer of the rows of a map in reach of one row: row y is at index y mod `rows`.
struct Ring {
  Ring(Arena& arena, const Neighbourhood& area, int64_t channels)
      : start(arena.take<float>(area.rows * channels * area.pitch) + area.margin),
        stride(channels * area.pitch),
        rows(area.rows) {}

  float* row(int64_t y) const { return start + y % rows * stride; }

  float* start;
  int64_t stride, rows;
};

template <int N>
void dot_of(const float* a, int64_t pitch_a, const float* const* b, int64_t pitch_b, int64_t channels, float* sums) {
  Vec sum[N];
  for (int i = 0; i < N; ++i) {
    sum[i] = load(sums + i * LANES);
  }
  for (int64_t c = 0; c < channels; ++c) {
    const Vec x = load(a + c * pitch_a);
    for (int i = 0; i < N; ++i) {
      sum[i] += x * load(b[i] + c * pitch_b);
    }
  }
  for (int i = 0; i < N; ++i) {
    store(sums + i * LANES, sum[i]);
  }
}

// sums_n += a · b_n over the channels.
void dot(const float* a, int64_t pitch_a, const float* const* b, int64_t pitch_b, int64_t channels, int64_t n,
         float* sums) {
  for (; n >= 9; n -= 9, b += 9, sums += 9 * LANES) {
    dot_of<9>(a, pitch_a, b, pitch_b, channels, sums);
  }
  for (; n >= 3; n -= 3, b += 3, sums += 3 * LANES) {
    dot_of<3>(a, pitch_a, b, pitch_b, channels, sums);
  }
  for (; n > 0; --n, ++b, sums += LANES) {
    dot_of<1>(a, pitch_a, b, pitch_b, channels, sums);
  }
}

template <int N>
void gather_of(const float* const* weights, const float* const* b, int64_t pitch_b, int64_t channels, float* out,
               int64_t pitch_out, bool add) {
  Vec w[N];
  for (int i = 0; i < N; ++i) {
    w[i] = load(weights[i]);
  }
  for (int64_t c = 0; c < channels; ++c) {
    Vec sum = add ? load(out + c * pitch_out) : Vec{};
    for (int i = 0; i < N; ++i) {
      sum += w[i] * load(b[i] + c * pitch_b);
    }
    store(out + c * pitch_out, sum);
  }
}

// out = Σ_n weights_n b_n for each channel; out += … if `add`.
void gather(const float* const* weights, const float* const* b, int64_t pitch_b, int64_t channels, int64_t n,
            float* out, int64_t pitch_out, bool add = false) {
  for (; n >= 9; n -= 9, weights += 9, b += 9, add = true) {
    gather_of<9>(weights, b, pitch_b, channels, out, pitch_out, add);
  }
  for (; n >= 3; n -= 3, weights += 3, b += 3, add = true) {
    gather_of<3>(weights, b, pitch_b, channels, out, pitch_out, add);
  }
  for (; n > 0; --n, ++weights, ++b, add = true) {
    gather_of<1>(weights, b, pitch_b, channels, out, pitch_out, add);
  }
}

// Writes −∞ for the pairs of positions x … x + LANES − 1 whose key is left or right of the map.
void drop_outside(const Neighbourhood& area, const Entry* entries, int64_t n, int64_t x, float* logits) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t first = x + entries[i].shift;
    if (first < 0 || first + LANES > area.width) {
      const Ints at = lanes() + static_cast<int32_t>(first);
      const Ints inside = (at >= 0) & (at < static_cast<int32_t>(area.width));
      store(logits + i * LANES, inside ? load(logits + i * LANES) : splat(-INF));
    }
  }
}

// log Σ e^x of some logits is peak + log(sum).
struct Sums {
  Vec peak, sum;
};

// Softmax over n logits, 0 if all are −∞.
Sums softmax(const float* logits, int64_t n, float* weights) {
  Vec peak = splat(-INF);
  for (int64_t i = 0; i < n; ++i) {
    peak = max(load(logits + i * LANES), peak);
  }
  peak = peak == splat(-INF) ? Vec{} : peak;
  Vec sum{};
  for (int64_t i = 0; i < n; ++i) {
    const Vec e = exp(load(logits + i * LANES) - peak);
    store(weights + i * LANES, e);
    sum += e;
  }
  const Vec factor = sum == Vec{} ? Vec{} : 1.0f / sum;
  for (int64_t i = 0; i < n; ++i) {
    store(weights + i * LANES, load(weights + i * LANES) * factor);
  }
  return {peak, sum};
}

// grad = weights (d_weights − Σ weights d_weights + d_lse); grad += … if `add`.
void softmax_backward(const float* d_weights, const float* weights, int64_t n, float* grad, bool add,
                      Vec d_lse = Vec{}) {
  Vec mean = -d_lse;
  for (int64_t i = 0; i < n; ++i) {
    mean += load(weights + i * LANES) * load(d_weights + i * LANES);
  }
  for (int64_t i = 0; i < n; ++i) {
    const Vec d = load(weights + i * LANES) * (load(d_weights + i * LANES) - mean);
    store(grad + i * LANES, add ? load(grad + i * LANES) + d : d);
  }
}

// Sets the positions after the end of the row to 0.
inline Vec keep(Vec v, int64_t x, int64_t width) {
  return x + LANES <= width ? v : lanes() < static_cast<int32_t>(width - x) ? v : Vec{};
}
