// global_attention: operations on tiles of logits, with one row per query and one column per key.

namespace global {

// The sum of a row. Memory must be readable up to the next whole vector.
inline float sum(const float* row, int64_t width) {
  Vec sums{};
  for (int64_t x = 0; x < width; x += LANES) {
    sums += keep(load(row + x), x, width);
  }
  return total(sums);
}

// Calls part(data, number, count) for the parts of positions [first, first + count) with a constant stride in memory:
// each line, or all positions if the lines are contiguous. `size`: lengths of the axes; `number`: index of the first
// row of a part.
template <typename T, typename Part>
void for_parts(const Volume& volume, const GlobalAttention& call, const int64_t* size, int64_t map, int64_t first,
               int64_t count, const Part& part) {
  T* const start =
      static_cast<T*>(volume.data) + map / call.heads * volume.stride[0] + map % call.heads * volume.stride[1];
  const int64_t *stride = volume.stride + 2, whole = size[2] * stride[2];
  const bool goes_on = (size[1] == 1 || stride[1] == whole) && (size[0] == 1 || stride[0] == size[1] * whole);
  const int64_t length = goes_on ? size[0] * size[1] * size[2] : size[2];
  for (int64_t done = 0; done < count;) {
    const int64_t x = (first + done) % length, line = (first + done) / length;
    const int64_t here = min_of(count - done, length - x);
    part(start + line / size[1] * stride[0] + line % size[1] * stride[1] + x * stride[2], done, here);
    done += here;
  }
}

// (channels, positions)
template <typename T>
void load_columns_of(const Volume& from, const GlobalAttention& call, const int64_t* size, int64_t map, int64_t first,
                     int64_t count, float* rows, int64_t pitch) {
  for_parts<const T>(from, call, size, map, first, count, [&](const T* part, int64_t number, int64_t here) {
    load_row(part, from.stride[4], from.stride[5], 0, from.channels, here, rows + number, pitch);
  });
}

// (positions, channels): the channels of load_row are positions here.
template <typename T>
void load_rows_of(const Volume& from, const GlobalAttention& call, const int64_t* size, int64_t map, int64_t first,
                  int64_t count, float* rows, int64_t pitch) {
  for_parts<const T>(from, call, size, map, first, count, [&](const T* part, int64_t number, int64_t here) {
    load_row(part, from.stride[5], from.stride[4], 0, here, from.channels, rows + number * pitch, pitch);
  });
}

// Zeroes the keys, or values, that no query attends to: NaN would reach all queries, since 0 · NaN is NaN.
void drop_rows(const GlobalAttention& call, int64_t map, bool transposed, const Tile& rows, int64_t channels) {
  const bool* mask = call.key_mask ? call.key_mask + map / call.heads * call.keys : nullptr;
  const float* bias = call.key_bias ? call.key_bias + map * call.keys : nullptr;
  if (!mask && !bias) {
    return;
  }
  const auto is_seen = [&](int64_t key) { return (!mask || mask[key]) && (!bias || bias[key] != -INF); };
  for (int64_t first = rows.begin; first < rows.end; first += LANES) {
    const int64_t count = min_of(LANES, rows.end - first);
    bool all = true;
    for (int64_t i = 0; i < count; ++i) {
      all &= is_seen(first + i);
    }
    float* const start = rows.data + (first - rows.begin) * (transposed ? 1 : rows.pitch);
    if (!all && transposed) {
      Vec seen{};
      for (int64_t i = 0; i < count; ++i) {
        seen[i] = is_seen(first + i);
      }
      for (int64_t c = 0; c < channels; ++c) {
        store(start + c * rows.pitch, seen > 0 ? load(start + c * rows.pitch) : Vec{});
      }
    }
    for (int64_t i = 0; i < count && !all && !transposed; ++i) {
      for (int64_t c = 0; c < channels && !is_seen(first + i); c += LANES) {
        store(start + i * rows.pitch + c, Vec{});
      }
    }
  }
}

void pack(const GlobalAttention& call, const Volume& from, int64_t map, bool transposed, Tile rows, int64_t height,
          float* to) {
  const auto load_floats = transposed ? load_columns_of<float> : load_rows_of<float>;
  const auto load_halves = transposed ? load_columns_of<uint16_t> : load_rows_of<uint16_t>;
  const int64_t keys = rows.end - rows.begin;
  (from.bfloat16 ? load_halves : load_floats)(from, call, call.key_size, map, rows.begin, keys, rows.data, rows.pitch);
  drop_rows(call, map, transposed, rows, from.channels);
  int64_t count = transposed ? from.channels : keys;
  const int64_t columns = transposed ? keys : from.channels;
  if (call.paired) {
    pair_rows(rows.data, count, columns, rows.pitch, rows.data);
    count = (count + 1) / 2;
  }
  for (int64_t column = 0; column < columns; column += LANES, to += height * LANES) {
    for (int64_t k = 0; k < count; ++k) {
      store(to + k * LANES, load(rows.data + k * rows.pitch + column));
    }
  }
}

void load_rows(const Volume& from, const GlobalAttention& call, const Queries& q, float* rows, int64_t pitch) {
  (from.bfloat16 ? load_rows_of<uint16_t> : load_rows_of<float>)(from, call, call.size, q.map, q.first, q.count, rows,
                                                                 pitch);
}

template <typename T>
void store_rows_of(const Volume& to, const GlobalAttention& call, const Queries& q, const float* rows, int64_t pitch) {
  for_parts<T>(to, call, call.size, q.map, q.first, q.count, [&](T* part, int64_t number, int64_t count) {
    store_row(part, to.stride[5], to.stride[4], count, to.channels, rows + number * pitch, pitch);
  });
}

void store_rows(const Volume& to, const GlobalAttention& call, const Queries& q, const float* rows, int64_t pitch) {
  (to.bfloat16 ? store_rows_of<uint16_t> : store_rows_of<float>)(to, call, q, rows, pitch);
}

// Calls run(key, entry, length) for each run of adjacent keys in the window of a query, in order, limited to the keys
// [begin, end).
template <typename Run>
void for_runs(const GlobalAttention& call, int64_t query, int64_t begin, int64_t end, const Run& run) {
  const int64_t *size = call.key_size, *reach = call.reach;
  query += call.before;
  const int64_t x = query % size[2], y = query / size[2] % size[1], z = query / size[2] / size[1];
  const int64_t x0 = max_of(0, x - reach[2]), x1 = min_of(size[2], x + reach[2] + 1);
  for (int64_t c = max_of(0, z - reach[0]); c <= min_of(size[0] - 1, z + reach[0]); ++c) {
    const int64_t first = max_of(max_of(0, y - reach[1]), begin / size[2] - c * size[1]);
    const int64_t last = min_of(min_of(size[1] - 1, y + reach[1]), (end - 1) / size[2] - c * size[1]);
    for (int64_t b = first; b <= last; ++b) {
      const int64_t row = (c * size[1] + b) * size[2];
      const int64_t from = max_of(row + x0, begin);
      const int64_t entry_row = (c - z + reach[0]) * (2 * reach[1] + 1) + b - y + reach[1];
      const int64_t entry = entry_row * (2 * reach[2] + 1) + reach[2] - x;  // of the key at x = 0
      // With `is_causal`, entries after the K existing ones would belong to keys after the query.
      const int64_t to = min_of(min_of(row + x1, end), row + call.entries - entry);
      if (from < to) {
        run(from, entry + from - row, to - from);
      }
    }
  }
}

void prepare(const GlobalAttention& call, const Queries& q) {
  load_rows(call.query, call, q, q.query, call.query_pitch);
  for (int64_t axis = 0; axis < 3; ++axis) {
    if (call.axis_bias[axis].data) {
      load_rows(call.axis_bias[axis], call, q, q.axis_bias[axis], call.axis_pitch[axis]);
    }
  }
  if (!call.window.data) {
    return;
  }
  load_rows(call.window, call, q, q.window, call.window_pitch);
  if (call.outside.data) {
    load_rows(call.outside, call, q, q.outside, 1);
  }
  for (int64_t r = 0; r < q.count; ++r) {
    q.outside[r] = call.outside.data ? q.outside[r] : call.outside_value;
  }
}

// Calls part(key, length, place) for the parts of rows of keys (along the last axis) in [begin, end): the index of the
// first key, the number of keys, and the coordinates of the first key.
template <typename Part>
void for_key_rows(const GlobalAttention& call, int64_t begin, int64_t end, const Part& part) {
  const int64_t* size = call.key_size;
  int64_t place[3] = {begin / size[2] / size[1], begin / size[2] % size[1], begin % size[2]};
  for (int64_t key = begin; key < end; place[2] = 0) {
    const int64_t length = min_of(end - key, size[2] - place[2]);
    part(key, length, place);
    key += length;
    if (++place[1] == size[1]) {  // counting avoids a division per row, which would take as long as the row
      place[1] = 0;
      ++place[0];
    }
  }
}

// Adds `value` and `row` to `to`, or stores their sum in it; may write arbitrary numbers after the end.
template <bool ADD>
inline void put(float value, const float* row, int64_t width, float* to) {
  for (int64_t x = 0; x < width; x += LANES) {
    const Vec v = load(row + x) + value;
    store(to + x, ADD ? load(to + x) + keep(v, x, width) : v);
  }
}

void positions(const GlobalAttention& call, const Queries& q, Tile logits) {
  const int64_t begin = logits.begin, width = logits.end - begin;
  const bool axes = call.axis_bias[2].data, empty = axes && !call.window.data;
  for (int64_t r = 0; r < q.count; ++r) {
    float* row = logits.data + r * logits.pitch;
    const float value = call.window.data ? q.outside[r] : 0;
    for (int64_t x = 0; x < width && !empty; ++x) {
      row[x] = value;
    }
    if (call.window.data) {
      const float* window = q.window + r * call.window_pitch;
      for_runs(call, q.first + r, begin, logits.end, [&](int64_t key, int64_t entry, int64_t length) {
        __builtin_memcpy(row + key - begin, window + entry, length * sizeof(float));
      });
    }
    if (axes) {
      const float* own[3];
      for (int64_t axis = 0; axis < 3; ++axis) {
        own[axis] = q.axis_bias[axis] + r * call.axis_pitch[axis];
      }
      for_key_rows(call, begin, logits.end, [&](int64_t key, int64_t length, const int64_t* place) {
        const float of_row =
            (call.axis_bias[0].data ? own[0][place[0]] : 0) + (call.axis_bias[1].data ? own[1][place[1]] : 0);
        (empty ? put<false> : put<true>)(of_row, own[2] + place[2], length, row + key - begin);
      });
    }
    if (call.key_bias) {
      const float* key_bias = call.key_bias + q.map * call.keys + begin;
      for (int64_t x = 0; x < width; ++x) {
        row[x] += key_bias[x];
      }
    }
  }
}

// Writes −∞ for the keys of a row that its query does not attend to, and after the end of the row.
void drop_keys(const GlobalAttention& call, const Queries& q, int64_t r, const Tile& logits) {
  float* row = logits.data + r * logits.pitch;
  const int64_t width = logits.end - logits.begin;
  if (call.key_mask) {
    const bool* mask = call.key_mask + q.map / call.heads * call.keys + logits.begin;
    for (int64_t x = 0; x < width; ++x) {
      row[x] = mask[x] ? row[x] : -INF;
    }
  }
  const int64_t seen = call.is_causal ? min_of(width, call.before + q.first + r + 1 - logits.begin) : width;
  for (int64_t x = max_of(0, seen); x < round_up(width, LANES); ++x) {
    row[x] = -INF;
  }
}

void softmax(const GlobalAttention& call, const Queries& q, Tile logits) {
  const int64_t width = logits.end - logits.begin;
  for (int64_t r = 0; r < q.count; ++r) {
    drop_keys(call, q, r, logits);
    float* row = logits.data + r * logits.pitch;
    if (logits.begin == 0) {
      q.peak[r] = -INF;
      q.total[r] = 0;
    }
    const float before = q.peak[r], highest = highest_of(row, width), peak = highest > before ? highest : before;
    q.keep[r] = peak > before ? exp(splat(before - peak))[0] : 1;
    q.peak[r] = peak;
    q.total[r] = q.total[r] * q.keep[r] + exponentials(row, width, peak == -INF ? 0 : peak);
  }
}

void finish(const GlobalAttention& call, const Queries& q) {
  for (int64_t r = 0; r < q.count; ++r) {
    float* out = q.out + r * call.value_pitch;
    const float factor = q.total[r] == 0 ? 1 : 1 / q.total[r];
    for (int64_t c = 0; c < call.value_channels; ++c) {
      out[c] *= factor;
    }
    q.lse[r] = (q.peak[r] == -INF ? 0 : q.peak[r]) + __builtin_logf(q.total[r]);
  }
  store_rows(call.out, call, q, q.out, call.value_pitch);
  store_rows(call.lse, call, q, q.lse, 1);
}

void prepare_backward(const GlobalAttention& call, const Queries& q) {
  prepare(call, q);
  load_rows(call.grad, call, q, q.grad, call.value_pitch);
  load_rows(call.out, call, q, q.out, call.value_pitch);
  load_rows(call.lse, call, q, q.lse, 1);
  if (call.grad_lse.data) {
    load_rows(call.grad_lse, call, q, q.keep, 1);
  }
  for (int64_t r = 0; r < q.count; ++r) {
    q.keep[r] = call.grad_lse.data && q.lse[r] != -INF ? q.keep[r] : 0;
    q.total[r] = dot_row(q.grad + r * call.value_pitch, q.out + r * call.value_pitch, call.value_channels) - q.keep[r];
    q.lse[r] = q.lse[r] == -INF ? 0 : q.lse[r];  // the query has no key
  }
}

void softmax_backward(const GlobalAttention& call, const Queries& q, Tile logits, Tile grad) {
  const int64_t width = logits.end - logits.begin;
  for (int64_t r = 0; r < q.count; ++r) {
    drop_keys(call, q, r, logits);
    float* weights = logits.data + r * logits.pitch;
    float* d = grad.data + r * grad.pitch;
    const float lse = q.lse[r], mean = q.total[r];
    for (int64_t x = 0; x < width; x += LANES) {
      const Vec p = exp(load(weights + x) - lse);
      store(weights + x, p);
      store(d + x, (load(d + x) - mean) * p);
    }
    if (call.d_key_bias) {
      float* d_keys = call.d_key_bias + q.map * call.keys + logits.begin;
      for (int64_t x = 0; x < width; ++x) {
        d_keys[x] += d[x];
      }
    }
  }
}

void gradients(const GlobalAttention& call, const Queries& q, Tile grad) {
  for (int64_t r = 0; r < q.count; ++r) {
    const float* d = grad.data + r * grad.pitch;
    if (call.d_window.data || call.d_outside.data) {
      float* d_window = q.window + r * call.window_pitch;
      if (grad.begin == 0) {
        __builtin_memset(d_window, 0, call.window_pitch * sizeof(float));
      }
      for_runs(call, q.first + r, grad.begin, grad.end, [&](int64_t key, int64_t entry, int64_t length) {
        __builtin_memcpy(d_window + entry, d + key - grad.begin, length * sizeof(float));
      });
    }
    if (call.d_axis_bias[0].data || call.d_axis_bias[1].data || call.d_axis_bias[2].data) {
      float* own[3];
      for (int64_t axis = 0; axis < 3; ++axis) {
        own[axis] = q.axis_bias[axis] + r * call.axis_pitch[axis];
        if (grad.begin == 0) {
          __builtin_memset(own[axis], 0, call.axis_pitch[axis] * sizeof(float));
        }
      }
      for_key_rows(call, grad.begin, grad.end, [&](int64_t key, int64_t length, const int64_t* place) {
        const float* from = d + key - grad.begin;
        float* last = own[2] + place[2];
        Vec of_row{};
        for (int64_t x = 0; x < length; x += LANES) {
          const Vec v = keep(load(from + x), x, length);
          store(last + x, load(last + x) + v);
          of_row += v;
        }
        const float all_of_row = total(of_row);
        own[0][place[0]] += all_of_row;
        own[1][place[1]] += all_of_row;
      });
    }
  }
}

void finish_backward(const GlobalAttention& call, const Queries& q) {
  // The gradients of all logits of a query sum to that of its log-sum-exp.
  for (int64_t r = 0; r < q.count && call.d_outside.data; ++r) {
    q.outside[r] = q.keep[r] - sum(q.window + r * call.window_pitch, call.entries);
  }
  if (call.d_query.data) {
    store_rows(call.d_query, call, q, q.query, call.query_pitch);
  }
  if (call.d_window.data) {
    store_rows(call.d_window, call, q, q.window, call.window_pitch);
  }
  if (call.d_outside.data) {
    store_rows(call.d_outside, call, q, q.outside, 1);
  }
  for (int64_t axis = 0; axis < 3; ++axis) {
    if (call.d_axis_bias[axis].data) {
      store_rows(call.d_axis_bias[axis], call, q, q.axis_bias[axis], call.axis_pitch[axis]);
    }
  }
}

}  // namespace global

constexpr GlobalAttentionKernels global_attention{
    LANES,
    product,
    product_of_pairs,
    pair_columns,
    pair_rows,
    global::pack,
    global::prepare,
    global::positions,
    global::softmax,
    global::finish,
    global::prepare_backward,
    global::softmax_backward,
    global::gradients,
    global::finish_backward,
};
