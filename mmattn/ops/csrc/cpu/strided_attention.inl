// strided_attention: a group of queries with its keys is a dense product, computed in tiles of queries.

// Positions of a map: `count` on each axis, starting at `first`.
struct Box {
  int64_t positions() const { return count[0] * count[1] * count[2]; }

  int64_t first[3], count[3];
};

// The queries or keys of a group.
Box queries_of(const StridedAttention& call, const int64_t* group) {
  Box box;
  for (int a = 0; a < 3; ++a) {
    const StridedAxis& axis = call.axis[a];
    box.first[a] = axis.apart ? group[a] : group[a] * axis.length;
    box.count[a] = max_of(0, min_of(axis.length, (axis.size - box.first[a] + axis.step - 1) / axis.step));
  }
  return box;
}

Box keys_of(const StridedAttention& call, const int64_t* group) {
  Box box;
  for (int a = 0; a < 3; ++a) {
    const StridedAxis& axis = call.axis[a];
    const int64_t first = axis.apart ? group[a] : group[a] * axis.length;
    box.first[a] = max_of(0, first - axis.before);
    const int64_t last = axis.apart ? axis.keys : min_of(axis.keys, first + axis.length + axis.after);
    box.count[a] = max_of(0, (last - box.first[a] + axis.step - 1) / axis.step);
  }
  return box;
}

// The part of a volume that belongs to a group: (T, H, W, channels).
struct Part {
  Part(const StridedAttention& call, const Volume& volume, int64_t batch, int64_t head, const Box& box)
      : volume(volume), box(box) {
    int64_t offset = batch * volume.stride[0] + head * volume.stride[1];
    for (int a = 0; a < 3; ++a) {
      offset += box.first[a] * volume.stride[2 + a];
      this->volume.stride[2 + a] *= call.axis[a].step;
    }
    this->volume.data = static_cast<char*>(volume.data) + offset * (volume.bfloat16 ? 2 : 4);
  }

  // Loads each position into a row.
  void load(float* to, int64_t pitch) const {
    const int64_t lines = box.count[1] * box.count[2];
    for (int64_t t = 0; t < box.count[0]; ++t) {
      load_lines(volume, {0, 0, t, 0, box.count[1]}, box.count[2], to + t * lines * pitch, pitch);
    }
  }

  // Calls body(row, number) for each row and the address of its channels.
  template <typename T, typename Body>
  void for_rows(const Body& body) const {
    int64_t row = 0;
    for (int64_t t = 0; t < box.count[0]; ++t) {
      for (int64_t y = 0; y < box.count[1]; ++y) {
        T* line = line_of<T>(volume, {0, 0, t, y, 1});
        for (int64_t x = 0; x < box.count[2]; ++x) {
          body(row++, line + x * volume.stride[4]);
        }
      }
    }
  }

  void store(const float* from, int64_t pitch, bool add) const {
    for_rows<float>([&](int64_t row, float* to) {
      const float one = 1;
      const Target target{to, 0, nullptr, add ? &one : nullptr};
      for (int64_t c = 0; c < volume.channels; c += LANES) {
        put(mmattn::load(from + row * pitch + c), target, 0, to + c, volume.channels - c);
      }
    });
  }

  Volume volume;
  const Box& box;
};

// The operands, logits and weights of a group.
struct StridedGroup {
  StridedGroup(const StridedAttention& call, Arena& arena)
      : call(call),
        most_queries(call.axis[0].length * call.axis[1].length * call.axis[2].length),
        most_keys(keys_on(0) * keys_on(1) * keys_on(2)),
        pitch(pitch_of(most_keys)),
        tile(max_of(16, min_of(most_queries, 16384 / pitch / 8 * 8))),
        query_pitch(pitch_of(call.query.channels)),
        value_pitch(pitch_of(call.value.channels)),
        factors(call.query, call.key, call.value),
        query(arena.take<float>(round_up(most_queries, LANES) * query_pitch)),
        key(arena.take<float>(round_up(most_keys, LANES) * query_pitch)),
        value(arena.take<float>(round_up(most_keys, LANES) * value_pitch)),
        keys(arena.take<float>(round_up(call.query.channels, LANES) * pitch)),
        logits(arena.take<float>(tile * pitch + LANES)),
        plane(arena.take<float>(pitch + LANES)),
        scales(arena.take<float>(max_of(tile, most_keys) + LANES)) {
    for (int a = 0; a < 3; ++a) {
      table_pitch[a] = pitch_of(call.table[a].channels);
      table[a] = arena.take<float>(call.positional ? most_queries * table_pitch[a] + LANES : 0);
      along[a] = arena.take<float>(keys_on(a) + LANES);
    }
  }

  int64_t keys_on(int a) const {
    const StridedAxis& axis = call.axis[a];
    return axis.apart ? (axis.keys + axis.step - 1) / axis.step
                      : min_of(axis.keys, axis.before + axis.length + axis.after);
  }

  // Calls body() for the groups [begin, end), or for those of them in a slab.
  template <typename Body>
  void for_groups(int64_t begin, int64_t end, const Body& body, int64_t slab = -1) {
    fill(scales, max_of(tile, most_keys), call.scale);
    for (int64_t item = begin; item < end; ++item) {
      int64_t rest = item, group[3];
      for (int a = 2; a >= 0; --a) {
        group[a] = rest % call.axis[a].groups;
        rest /= call.axis[a].groups;
      }
      if (slab >= 0 && group[call.slab_axis] / call.slab != slab) {
        continue;
      }
      head = rest % call.heads;
      batch = rest / call.heads;
      queries = queries_of(call, group);
      seen = keys_of(call, group);
      n = queries.positions();
      m = seen.positions();
      if (n > 0) {
        load();
        body();
      }
    }
  }

  Part of_queries(const Volume& volume) const { return {call, volume, batch, head, queries}; }
  Part of_keys(const Volume& volume) const { return {call, volume, batch, head, seen}; }

  void load() {
    of_queries(call.query).load(query, query_pitch);
    of_keys(call.key).load(key, query_pitch);
    of_keys(call.value).load(value, value_pitch);
    transpose(key, query_pitch, m, call.query.channels, keys, pitch);
    factors.over_rows(keys, call.query.channels, m, pitch, keys);
    for (int a = 0; a < 3 && call.positional; ++a) {
      of_queries(call.table[a]).load(table[a], table_pitch[a]);
    }
  }

  // The entry, in the table of an axis, of the offset from a query to the first key of the group.
  int64_t entry(int a, int64_t at) const {
    const StridedAxis& axis = call.axis[a];
    return (seen.first[a] - queries.first[a]) / axis.step - at + axis.centre;
  }

  // Adds to the logits `s` of a query its position logits, and −∞ for keys that it does not attend to.
  void add_positions(int64_t row, const int64_t* at, float* s) {
    for (int a = 0; a < 3; ++a) {
      // Keys [begin, end) of the axis are entries of the table.
      const int64_t first = entry(a, at[a]), count = seen.count[a];
      const int64_t begin = min_of(max_of(-first, 0), count);
      const int64_t end = max_of(begin, min_of(call.axis[a].entries - first, count));
      const float* own = table[a] + row * table_pitch[a] + first;
      fill(along[a], begin, -INF);
      for (int64_t j = begin; j < end; j += LANES) {
        store(along[a] + j, call.positional ? mmattn::load(own + j) : Vec{});
      }
      fill(along[a] + end, count - end, -INF);
    }
    const int64_t width = seen.count[2], lines = seen.count[1] * width;
    for (int64_t y = 0; y < seen.count[1]; ++y) {
      for (int64_t x = 0; x < width; x += LANES) {
        store(plane + y * width + x, mmattn::load(along[2] + x) + along[1][y]);
      }
    }
    // Lanes beyond a frame's keys, up to LANES − 1 beyond the row of logits, get 0 added.
    for (int64_t t = 0; t < seen.count[0]; ++t) {
      for (int64_t i = 0; i < lines; i += LANES) {
        const Vec more = keep(mmattn::load(plane + i) + along[0][t], i, lines);
        float* to = s + t * lines + i;
        store(to, more == splat(-INF) ? more : mmattn::load(to) + more);
      }
    }
  }

  // Computes the logits of a tile of queries in place of the products with the keys, and calls weigh(i, logits, at).
  template <typename Weigh>
  void for_queries(int64_t start, int64_t count, const Weigh& weigh) {
    float* own = query + start * query_pitch;
    factors.product(count, round_up(m, LANES), call.query.channels,
                    {factors.over_columns(own, count, call.query.channels, query_pitch, own), query_pitch, 1},
                    {keys, pitch, LANES}, {logits, pitch, scales});
    const bool adds = call.positional || call.masked;
    int64_t at[] = {start / (queries.count[1] * queries.count[2]), start / queries.count[2] % queries.count[1],
                    start % queries.count[2]};
    for (int64_t i = 0; i < count; ++i) {
      float* s = logits + i * pitch;
      if (adds) {
        add_positions(start + i, at, s);
      }
      for (int64_t j = m; j < round_up(m, LANES); ++j) {
        s[j] = -INF;
      }
      weigh(i, s, at);
      for (int a = 2; a >= 0 && ++at[a] == queries.count[a] && a > 0; --a) {
        at[a] = 0;
      }
    }
  }

  const StridedAttention& call;
  const int64_t most_queries, most_keys, pitch;
  const int64_t tile;  // queries per tile of logits
  const int64_t query_pitch, value_pitch;
  const Factors factors;
  float* query;
  float* key;
  float* value;
  float* keys;  // transposed
  float* logits;
  float* plane;
  float* scales;  // factors of `scale`, for a Target
  int64_t table_pitch[3];
  float* table[3];
  float* along[3];
  int64_t batch = 0, head = 0, n = 0, m = 0;
  Box queries{}, seen{};
};

int64_t strided_attention(const StridedAttention& call, int64_t begin, int64_t end, void* scratch) {
  Arena arena(scratch);
  StridedGroup group(call, arena);
  float* out = arena.take<float>(group.most_queries * group.value_pitch);
  float* lse = arena.take<float>(group.most_queries);
  float* gain = arena.take<float>(group.tile);
  if (!scratch) {
    return arena.used;
  }
  group.for_groups(begin, end, [&] {
    group.factors.over_rows(group.value, group.m, call.value.channels, group.value_pitch, group.value);
    for (int64_t start = 0; start < group.n; start += group.tile) {
      const int64_t count = min_of(group.tile, group.n - start);
      group.for_queries(start, count, [&](int64_t i, float* p, const int64_t*) {
        const float peak = highest_of(p, group.m);
        const float shift = peak == -INF ? 0 : peak;
        const float sum = exponentials(p, group.m, shift);
        gain[i] = sum == 0 ? 0 : 1 / sum;
        lse[start + i] = shift + __builtin_logf(sum);
      });
      const float* weights = group.factors.over_columns(group.logits, count, group.m, group.pitch, group.logits);
      group.factors.product(count, call.value.channels, group.m, {weights, group.pitch, 1},
                            {group.value, group.value_pitch, LANES},
                            {out + start * group.value_pitch, group.value_pitch, gain});
    }
    group.of_queries(call.out).store(out, group.value_pitch, false);
    group.of_queries(call.lse).store(lse, 1, false);
  });
  return arena.used;
}

int64_t strided_attention_backward(const StridedAttention& call, int64_t begin, int64_t end, void* scratch) {
  Arena arena(scratch);
  StridedGroup group(call, arena);
  const int64_t C = call.value.channels, D = call.query.channels, pitch = group.pitch;
  float* grad = arena.take<float>(group.most_queries * group.value_pitch);
  float* out = arena.take<float>(group.most_queries * group.value_pitch);
  float* values = arena.take<float>(round_up(C, LANES) * pitch);  // transposed
  float* mean = arena.take<float>(group.most_queries);
  float* lse = arena.take<float>(group.most_queries);
  float* d_logits = arena.take<float>(group.tile * pitch);
  float* d_query = arena.take<float>(group.most_queries * group.query_pitch);
  float* d_key = arena.take<float>(group.most_keys * group.query_pitch);
  float* d_value = arena.take<float>(group.most_keys * group.value_pitch);
  float* ones = arena.take<float>(group.most_keys + LANES);
  float* right_query = arena.take<float>(group.factors.paired ? group.tile * group.query_pitch : 0);
  float* right_grad = arena.take<float>(group.factors.paired ? group.tile * group.value_pitch : 0);
  float* d_table[3];
  for (int a = 0; a < 3; ++a) {
    d_table[a] = arena.take<float>(call.positional ? group.most_queries * group.table_pitch[a] : 0);
  }
  if (!scratch) {
    return arena.used;
  }
  fill(ones, group.most_keys, 1);

  // The gradients of the tables of a query: sums of the gradients of its logits over the keys of each offset.
  const auto sum_tables = [&](int64_t row, const int64_t* at, const float* d) {
    const Box& seen = group.seen;
    const int64_t width = seen.count[2], lines = seen.count[1] * width;
    float* own[3];
    for (int a = 0; a < 3; ++a) {
      own[a] = d_table[a] + row * group.table_pitch[a];
      fill(own[a], call.table[a].channels, 0);
    }
    fill(group.plane, lines, 0);
    const int64_t first[] = {group.entry(0, at[0]), group.entry(1, at[1]), group.entry(2, at[2])};
    const auto add = [&](int a, int64_t j, float x) {
      if (first[a] + j >= 0 && first[a] + j < call.axis[a].entries) {
        own[a][first[a] + j] += x;
      }
    };
    for (int64_t t = 0; t < seen.count[0]; ++t) {
      Vec sum{};
      for (int64_t i = 0; i < lines; i += LANES) {
        const Vec v = load(d + t * lines + i);
        const Vec kept = i + LANES <= lines ? v : lanes() < static_cast<int32_t>(lines - i) ? v : Vec{};
        store(group.plane + i, load(group.plane + i) + kept);
        sum += kept;
      }
      add(0, t, total(sum));
    }
    for (int64_t y = 0; y < seen.count[1]; ++y) {
      float sum = 0;
      for (int64_t x = 0; x < width; ++x) {
        sum += group.plane[y * width + x];
        add(2, x, group.plane[y * width + x]);
      }
      add(1, y, sum);
    }
  };

  const auto attend = [&] {
    const int64_t m = group.m;
    group.of_queries(call.grad).load(grad, group.value_pitch);
    group.of_queries(call.lse).load(lse, 1);
    group.of_queries(call.out).load(out, group.value_pitch);
    if (call.grad_lse.data) {
      group.of_queries(call.grad_lse).load(mean, 1);
    }
    for (int64_t row = 0; row < group.n; ++row) {
      mean[row] = dot_row(grad + row * group.value_pitch, out + row * group.value_pitch, C) -
                  (call.grad_lse.data ? mean[row] : 0);
    }
    transpose(group.value, group.value_pitch, m, C, values, pitch);
    group.factors.over_rows(values, C, m, pitch, values);
    group.factors.over_rows(group.key, m, D, group.query_pitch, group.key);
    for (int64_t start = 0; start < group.n; start += group.tile) {
      const int64_t count = min_of(group.tile, group.n - start);
      float* own_grad = grad + start * group.value_pitch;
      const float* queries =
          group.factors.over_rows(group.query + start * group.query_pitch, count, D, group.query_pitch, right_query);
      const float* grads = group.factors.over_rows(own_grad, count, C, group.value_pitch, right_grad);
      group.factors.product(
          count, round_up(m, LANES), C,
          {group.factors.over_columns(own_grad, count, C, group.value_pitch, own_grad), group.value_pitch, 1},
          {values, pitch, LANES}, {d_logits, pitch});
      group.for_queries(start, count, [&](int64_t i, float* p, const int64_t* at) {
        const int64_t row = start + i;
        float* d = d_logits + i * pitch;
        exponentials(p, m, lse[row] == -INF ? 0 : lse[row]);
        for (int64_t j = 0; j < m; j += LANES) {
          store(d + j, load(p + j) * (load(d + j) - mean[row]));
        }
        if (call.d_table[0].data || call.d_table[1].data || call.d_table[2].data) {
          sum_tables(row, at, d);
        }
      });
      const float* keep = start > 0 ? ones : nullptr;
      if (call.d_value.data) {
        const float* left = group.factors.over_rows(group.logits, count, m, pitch, group.logits);
        group.factors.product(m, C, count, {left, 1, pitch}, {grads, group.value_pitch, LANES},
                              {d_value, group.value_pitch, nullptr, keep});
      }
      if (call.d_key.data) {
        const float* left = group.factors.over_rows(d_logits, count, m, pitch, group.logits);
        group.factors.product(m, D, count, {left, 1, pitch}, {queries, group.query_pitch, LANES},
                              {d_key, group.query_pitch, group.scales, keep});
      }
      if (call.d_query.data) {
        const float* left = group.factors.over_columns(d_logits, count, m, pitch, d_logits);
        group.factors.product(count, D, m, {left, pitch, 1}, {group.key, group.query_pitch, LANES},
                              {d_query + start * group.query_pitch, group.query_pitch, group.scales});
      }
    }
    if (call.d_query.data) {
      group.of_queries(call.d_query).store(d_query, group.query_pitch, false);
    }
    if (call.d_key.data) {
      group.of_keys(call.d_key).store(d_key, group.query_pitch, call.masked);
    }
    if (call.d_value.data) {
      group.of_keys(call.d_value).store(d_value, group.value_pitch, call.masked);
    }
    for (int a = 0; a < 3; ++a) {
      if (call.d_table[a].data) {
        group.of_queries(call.d_table[a]).store(d_table[a], group.table_pitch[a], false);
      }
    }
  };

  if (!call.masked) {
    group.for_groups(begin, end, attend);
    return arena.used;
  }
  const int64_t groups = call.axis[0].groups * call.axis[1].groups * call.axis[2].groups;
  const int64_t slabs = (call.slabs + 1 - call.parity) / 2;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t map = item / slabs;
    group.for_groups(map * groups, (map + 1) * groups, attend, item % slabs * 2 + call.parity);
  }
  return arena.used;
}
