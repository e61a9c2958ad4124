// grid_attention, one arm: attention within each line, merged with the result of the previous arms. Lines share no
// data, so the result does not depend on the number of threads.

// The line and the coordinate of a row, for lines stored one after the other.
struct Query {
  Query(int64_t row, int64_t length) : line(row / length), x(row % length) {}

  void next(int64_t length) {
    if (++x == length) {
      ++line;
      x = 0;
    }
  }

  int64_t line, x;
};

// Computes the logits of a query from its products with the keys of its group.
struct Logits {
  Vec at(int64_t column, const float* products) const {
    const Ints key = lanes() + static_cast<int32_t>(column - first);  // coordinate on the line
    const Ints visible = (key >= 0) & (key < length) & (key != without);
    return visible ? load(products + column) * scale + position(column - first, key) : splat(-INF);
  }

  Vec position(int64_t start, const Ints& key) const {
    if (radius < 0 || start > x + radius || start + LANES <= x - radius) {
      return splat(outside);
    }
    Vec own = load(window + start);
    if (without >= 0) {
      own = key < x ? own : load(window + start - 1);
    }
    const Ints inside = (key >= x - radius) & (key <= x + radius);
    return inside ? own : splat(outside);
  }

  int32_t first, length;  // position of the line in the group
  int32_t x, without;     // coordinate of the query; coordinate that is not a key, or −1
  int32_t radius;         // negative if there are no window logits
  float scale, outside;
  const float* window;  // key j of the line has entry window[j], or window[j − 1] after a missing centre
};

// The lines of an item in scratch memory, with their logits and weights.
struct Arm {
  Arm(const GridAttention& call, Arena& arena)
      : call(call),
        length(call.length),
        radius(call.window_size / 2),
        group(call.fold * call.length),
        rows(round_up(call.lines * call.length, LANES) + LANES),
        pitch(pitch_of(group)),
        tile(max_of(16, min_of(group, 16384 / pitch / 8 * 8))),
        query_pitch(pitch_of(call.query.channels)),
        value_pitch(pitch_of(call.value.channels)),
        window_pitch(pitch_of(call.window.channels)),
        margin(round_up(length, LANES) + LANES),
        factors(call.query, call.key, call.value),
        query(arena.take<float>(rows * query_pitch)),
        key(arena.take<float>(rows * query_pitch)),
        value(arena.take<float>(rows * value_pitch)),
        keys(arena.take<float>(round_up(call.query.channels, LANES) * pitch)),
        window(arena.take<float>(call.window.data ? rows * window_pitch + 2 * margin : 0) + margin),
        outside(arena.take<float>(rows)),
        logits(arena.take<float>(tile * pitch + LANES)) {}

  // Calls body() for the lines of each item.
  template <typename Body>
  void for_items(int64_t begin, int64_t end, const Body& body) {
    const int64_t parts = (call.inner + call.lines - 1) / call.lines;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t map = item / parts / call.outer, first = item % parts * call.lines;
      place = {map / call.heads, map % call.heads, item / parts % call.outer, first,
               min_of(call.lines, call.inner - first)};
      load();
      body();
    }
  }

  void load() {
    load_lines(call.query, place, length, query, query_pitch);
    load_lines(call.key, place, length, key, query_pitch);
    load_lines(call.value, place, length, value, value_pitch);
    if (!call.window.data) {
      return;
    }
    load_lines(call.window, place, length, window, window_pitch);
    if (call.outside.data) {
      load_lines(call.outside, place, length, outside, 1);
    } else {
      fill(outside, place.count * length, call.outside_value);
    }
  }

  // Prepares each line of a group, as a factor of a product that sums over its positions.
  void over_lines(float* rows, int64_t n, int64_t channels, int64_t pitch) const {
    for (int64_t start = 0; start < n; start += length) {
      factors.over_rows(rows + start * pitch, length, channels, pitch, rows + start * pitch);
    }
  }

  // For the query in row `row` of the item, at coordinate x of the line that starts at `first` in its group.
  Logits logits_of(int64_t row, int64_t x, int64_t first) const {
    const auto small = [](int64_t n) { return static_cast<int32_t>(n); };
    return {small(first),
            small(length),
            small(x),
            small(call.own ? -1 : x),
            small(call.window.data ? radius : -1),
            call.scale,
            call.window.data ? outside[row] : 0,
            window + row * window_pitch + radius - x};
  }

  const GridAttention& call;
  Place place{};
  const int64_t length, radius, group, rows, pitch;
  const int64_t tile;  // queries per tile of logits
  const int64_t query_pitch, value_pitch, window_pitch;
  const int64_t margin;  // padding before and after the windows: vectors may extend beyond them
  const Factors factors;
  float* query;
  float* key;
  float* value;
  float* keys;  // transposed
  float* window;
  float* outside;
  float* logits;
};

// The numbers of a line, one per position.
inline float* line_numbers(const Volume& volume, const Place& at, int64_t line) {
  return line_of<float>(volume, at, line);
}

int64_t grid_attention(const GridAttention& call, int64_t begin, int64_t end, void* scratch) {
  Arena arena(scratch);
  Arm arm(call, arena);
  const int64_t L = arm.length;
  float* peak = arena.take<float>(arm.tile + LANES);
  float* sum = arena.take<float>(arm.tile + LANES);
  float* gain = arena.take<float>(arm.tile + LANES);
  float* keep = arena.take<float>(arm.tile + LANES);
  if (!scratch) {
    return arena.used;
  }

  // Replaces the logits of the queries [row, row + count) of the group at `start` by weights, and computes the factors
  // that merge them with the previous arms.
  const auto weigh = [&](int64_t start, int64_t row, int64_t count, int64_t width) {
    const int64_t first = start / L;
    Query query(row, L);
    for (int64_t i = 0; i < count; ++i, query.next(L)) {
      const auto [line, x] = query;
      const Logits logits = arm.logits_of(start + row + i, x, line * L);
      float* p = arm.logits + i * arm.pitch;
      Vec peaks = splat(-INF);
      for (int64_t j = 0; j < width; j += LANES) {
        const Vec v = logits.at(j, p);
        store(p + j, v);
        peaks = max(v, peaks);
      }
      float* so_far = line_numbers(call.peak, arm.place, first + line) + x * call.peak.stride[4];
      float* weight = line_numbers(call.total, arm.place, first + line) + x * call.total.stride[4];
      peak[i] = call.first ? -INF : *so_far;
      keep[i] = call.first ? 0 : *weight;
      const float now = highest(peaks);
      *so_far = now > peak[i] ? now : peak[i];
      gain[i] = *so_far == -INF ? 0 : *so_far;
      sum[i] = exponentials(p, width, gain[i]);
    }
    for (int64_t i = 0; i < count; i += LANES) {
      const Vec before = load(keep + i) * exp(load(peak + i) - load(gain + i));
      const Vec all_of_it = before + load(sum + i);
      const Vec share = all_of_it == Vec{} ? Vec{} : 1.0f / all_of_it;
      store(sum + i, all_of_it);
      store(gain + i, share);
      store(keep + i, before * share);
    }
    query = {row, L};
    for (int64_t i = 0; i < count; ++i, query.next(L)) {
      line_numbers(call.total, arm.place, first + query.line)[query.x * call.total.stride[4]] = sum[i];
    }
  };

  arm.for_items(begin, end, [&] {
    for (int64_t start = 0; start < arm.place.count * L; start += arm.group) {
      const int64_t n = min_of(arm.group, arm.place.count * L - start), width = round_up(n, LANES);
      transpose(arm.key + start * arm.query_pitch, arm.query_pitch, n, call.query.channels, arm.keys, arm.pitch);
      arm.factors.over_rows(arm.keys, call.query.channels, n, arm.pitch, arm.keys);
      arm.over_lines(arm.value + start * arm.value_pitch, n, call.value.channels, arm.value_pitch);
      for (int64_t row = 0; row < n; row += arm.tile) {
        const int64_t count = min_of(arm.tile, n - row);
        float* query = arm.query + (start + row) * arm.query_pitch;
        arm.factors.over_columns(query, count, call.query.channels, arm.query_pitch, query);
        arm.factors.product(count, width, call.query.channels, {query, arm.query_pitch, 1},
                            {arm.keys, arm.pitch, LANES}, {arm.logits, arm.pitch});
        weigh(start, row, count, width);
        for (int64_t i = 0; i < count;) {  // for each line, or the part of it in the tile
          const int64_t line = (row + i) / L, x = (row + i) % L, queries = min_of(count - i, L - x);
          float* out = line_numbers(call.out, arm.place, start / L + line) + x * call.out.stride[4];
          float* weights = arm.logits + i * arm.pitch + line * L;
          arm.factors.over_columns(weights, queries, L, arm.pitch, weights);
          arm.factors.product(queries, call.value.channels, L, {weights, arm.pitch, 1},
                              {arm.value + (start + line * L) * arm.value_pitch, arm.value_pitch, LANES},
                              {out, call.out.stride[4], gain + i, call.first ? nullptr : keep + i});
          i += queries;
        }
      }
    }
  });
  return arena.used;
}

int64_t grid_attention_backward(const GridAttention& call, int64_t begin, int64_t end, void* scratch) {
  Arena arena(scratch);
  Arm arm(call, arena);
  const int64_t L = arm.length, C = call.value.channels, D = call.query.channels, entries = call.window.channels;
  const Factors& factors = arm.factors;
  float* grad = arena.take<float>(arm.rows * arm.value_pitch);
  float* out = arena.take<float>(call.first ? arm.rows * arm.value_pitch : 0);
  float* values = arena.take<float>(round_up(C, LANES) * arm.pitch);  // transposed
  float* lse = arena.take<float>(arm.rows);
  float* mean = arena.take<float>(arm.rows);
  float* d_logits = arena.take<float>(arm.tile * arm.pitch + 4 * LANES) + 2 * LANES;
  float* ones = arena.take<float>(max_of(arm.group, arm.tile));
  // The queries and gradients of a tile as left factors, if they differ from the right ones.
  float* left_query = arena.take<float>(arm.factors.paired ? arm.tile * arm.query_pitch : 0);
  float* left_grad = arena.take<float>(arm.factors.paired ? arm.tile * arm.value_pitch : 0);
  if (!scratch) {
    return arena.used;
  }
  fill(ones, max_of(arm.group, arm.tile), 1);

  const auto means = [&] {
    load_lines(call.out, arm.place, L, out, arm.value_pitch);
    if (call.grad_lse.data) {
      load_lines(call.grad_lse, arm.place, L, mean, 1);
    }
    Query query(0, L);
    for (int64_t row = 0; row < arm.place.count * L; ++row, query.next(L)) {
      line_numbers(call.mean, arm.place, query.line)[query.x * call.mean.stride[4]] =
          dot_row(grad + row * arm.value_pitch, out + row * arm.value_pitch, C) - (call.grad_lse.data ? mean[row] : 0);
    }
  };

  // Stores the gradients of the window logits of a query; 0 for entries without a key.
  const auto put_window = [&](int64_t line, int64_t x, const float* d) {
    float* to = line_numbers(call.d_window, arm.place, line) + x * call.d_window.stride[4];
    const int32_t centre = static_cast<int32_t>(call.own ? entries : arm.radius);  // no entry is omitted if `own`
    for (int64_t entry = 0; entry < entries; entry += LANES) {
      const int64_t key = entry + x - arm.radius;
      Vec v{};
      if (key < L && key + LANES >= 0) {
        const Ints behind = lanes() + static_cast<int32_t>(entry) >= centre;  // true is −1
        const Ints at = lanes() + static_cast<int32_t>(key) - behind;
        v = (at >= 0) & (at < static_cast<int32_t>(L)) ? (behind ? load(d + key + 1) : load(d + key)) : Vec{};
      }
      if (entry + LANES <= entries) {
        store(to + entry, v);
      } else {
        put_some(v, to + entry, nullptr, entries - entry);
      }
    }
  };

  // For the queries [row, row + count) of the group at `start`: replaces logits by weights, and the gradients of
  // weights by the gradients of logits times scale.
  const auto weigh = [&](int64_t start, int64_t row, int64_t count, int64_t width) {
    Query query(row, L);
    for (int64_t i = 0; i < count; ++i, query.next(L)) {
      const auto [line, x] = query;
      const int64_t at = start + row + i;
      const Logits logits = arm.logits_of(at, x, line * L);
      const Vec shift = splat(lse[at] == -INF ? 0 : lse[at]);
      float* p = arm.logits + i * arm.pitch;
      float* d = d_logits + i * arm.pitch;
      for (int64_t j = 0; j < width; j += LANES) {
        const Vec v = exp(logits.at(j, p) - shift);
        store(p + j, v);
        store(d + j, v * (load(d + j) - mean[at]));
      }
      if (call.d_window.data) {
        put_window(start / L + line, x, d + line * L);
      }
      for (int64_t j = 0; j < width; j += LANES) {
        store(d + j, load(d + j) * call.scale);
      }
    }
  };

  arm.for_items(begin, end, [&] {
    load_lines(call.grad, arm.place, L, grad, arm.value_pitch);
    if (call.first) {
      means();
    }
    load_lines(call.lse, arm.place, L, lse, 1);
    load_lines(call.mean, arm.place, L, mean, 1);
    for (int64_t start = 0; start < arm.place.count * L; start += arm.group) {
      const int64_t n = min_of(arm.group, arm.place.count * L - start), width = round_up(n, LANES);
      transpose(arm.key + start * arm.query_pitch, arm.query_pitch, n, D, arm.keys, arm.pitch);
      transpose(arm.value + start * arm.value_pitch, arm.value_pitch, n, C, values, arm.pitch);
      factors.over_rows(arm.keys, D, n, arm.pitch, arm.keys);
      factors.over_rows(values, C, n, arm.pitch, values);
      arm.over_lines(arm.key + start * arm.query_pitch, n, D, arm.query_pitch);
      for (int64_t row = 0; row < n; row += arm.tile) {
        const int64_t count = min_of(arm.tile, n - row);
        const float* left =
            factors.over_columns(arm.query + (start + row) * arm.query_pitch, count, D, arm.query_pitch, left_query);
        factors.product(count, width, D, {left, arm.query_pitch, 1}, {arm.keys, arm.pitch, LANES},
                        {arm.logits, arm.pitch});
        left = factors.over_columns(grad + (start + row) * arm.value_pitch, count, C, arm.value_pitch, left_grad);
        factors.product(count, width, C, {left, arm.value_pitch, 1}, {values, arm.pitch, LANES}, {d_logits, arm.pitch});
        weigh(start, row, count, width);
        for (int64_t i = 0; i < count;) {
          const int64_t line = (row + i) / L, x = (row + i) % L, queries = min_of(count - i, L - x);
          const int64_t first = start + line * L, pairs = i * arm.pitch + line * L;
          const auto to = [&](const Volume& volume, int64_t position, bool add) -> Target {
            float* data = line_numbers(volume, arm.place, first / L) + position * volume.stride[4];
            return {data, volume.stride[4], nullptr, add ? ones : nullptr};
          };
          const bool add = !call.first || x > 0;
          float* const weights = arm.logits + pairs;
          float* const d = d_logits + pairs;
          if (call.d_value.data) {
            float* right = grad + (first + x) * arm.value_pitch;
            factors.over_rows(right, queries, C, arm.value_pitch, right);
            factors.over_rows(weights, queries, L, arm.pitch, weights);
            factors.product(L, C, queries, {weights, 1, arm.pitch}, {right, arm.value_pitch, LANES},
                            to(call.d_value, 0, add));
          }
          if (call.d_key.data) {
            float* right = arm.query + (first + x) * arm.query_pitch;
            factors.over_rows(right, queries, D, arm.query_pitch, right);
            left = factors.over_rows(d, queries, L, arm.pitch, weights);
            factors.product(L, D, queries, {left, 1, arm.pitch}, {right, arm.query_pitch, LANES},
                            to(call.d_key, 0, add));
          }
          if (call.d_query.data) {
            factors.over_columns(d, queries, L, arm.pitch, d);
            factors.product(queries, D, L, {d, arm.pitch, 1},
                            {arm.key + first * arm.query_pitch, arm.query_pitch, LANES},
                            to(call.d_query, x, !call.first));
          }
          i += queries;
        }
      }
    }
  });
  return arena.used;
}
