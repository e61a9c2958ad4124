// local_attention: processes LANES queries together. The logits of a query are a column of n entries. Rows of keys and
// values are loaded into a ring buffer of the rows in reach. The backward pass first computes the weights and the
// gradients of logits for the queries of a row. When all queries in reach of a row are done, it computes the gradients
// of its keys and values as sums over these queries. There are no data races, and the result does not depend on the
// number of threads.

// The keys and values in reach of a row, and the weights of LANES of its queries.
struct Local {
  Local(const LocalAttention& call, Arena& arena, int64_t rounds_kept)
      : call(call),
        area(call.height, call.width, call.kernel, call.dilation, call.padded),
        channels(call.key.channels / call.group),
        value_channels(call.value.channels / call.group),
        content(call.query.data != nullptr),
        rounds(content ? call.iterations - 1 : 0),
        one(content && is_same(call.key, call.value)),
        values(arena, area, call.value.channels),
        keys(one ? values : Ring(arena, area, call.key.channels)),
        mask(arena, area, call.mask.channels),
        zeros(arena.take<float>(call.padded ? call.value.channels * area.pitch : 0) + area.margin),
        window(arena.take<float>(call.window.channels * area.pitch)),
        logits(arena.take<float>(area.count * LANES)),
        weights(arena.take<float>((rounds_kept + 1) * area.count * LANES)),
        total(arena.take<float>((rounds_kept + 1) * channels * LANES)),
        entries(arena.take<Entry>(area.count)),
        key_at(arena.take<const float*>(area.count)),
        value_at(arena.take<const float*>(area.count)),
        weight_at(arena.take<const float*>(area.count)) {}

  // Resets the ring buffer: it will start with the first neighbour row of row y.
  void start(int64_t batch, int64_t head, int64_t y) {
    this->batch = batch;
    this->head = head;
    next = max_of(0, y - area.radius);
  }

  void move_to(int64_t y) {
    for (; next <= min_of(area.height - 1, y + area.radius); ++next) {
      if (call.mask.data) {
        load_row(call.mask, batch, 0, next, area.width, mask.row(next), area.pitch);
      }
      load_keys(call.value, values.row(next));
      if (content && !one) {
        load_keys(call.key, keys.row(next));
      }
    }
    if (call.window.data) {
      load_row(call.window, batch, head, y, area.width, window, area.pitch);
    }
    n = area.list(y, entries);
  }

  // Loads row `next` of the keys or values. Masked ones are 0: NaN would reach their neighbours, since 0 · NaN is NaN.
  void load_keys(const Map& map, float* row) const {
    load_row(map, batch, head, next, area.width, row, area.pitch);
    const float* is_key = mask.row(next);
    for (int64_t x = 0; call.mask.data && x < area.width; x += LANES) {
      bool all = true;
      for (int64_t i = 0; i < LANES; ++i) {
        all &= is_key[x + i] != 0;
      }
      for (int64_t c = 0; !all && c < map.channels; ++c) {
        float* to = row + c * area.pitch + x;
        store(to, load(is_key + x) == Vec{} ? Vec{} : load(to));
      }
    }
  }

  float* round(float* of, int64_t channels, int64_t number) const { return of + number * channels * LANES; }

  // Sets the pointers to the neighbours of the queries at x, for one head of the group, and returns their weights,
  // (n, LANES). `query` is the scaled row of queries. The squashed sum of keys of pass t is written to `towards` +
  // `step` · t. If `step` is not 0, the weights and sums of all passes are kept.
  float* weigh(int64_t member, int64_t x, const float* query, float* towards, int64_t pitch, int64_t step) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = x + entries[i].shift;
      value_at[i] = (area.is_inside(entries[i].row) ? values.row(entries[i].row) : zeros) +
                    member * value_channels * area.pitch + at;
      key_at[i] = content ? keys.row(entries[i].row) + member * channels * area.pitch + at : nullptr;
    }
    for (int64_t i = 0; i < n; ++i) {
      store(logits + i * LANES, Vec{});
    }
    if (content) {
      dot(query, area.pitch, key_at, area.pitch, channels, n, logits);
    }
    drop_keys(x);
    for (int64_t t = 0; t < rounds; ++t) {
      float* p = round(weights, area.count, step ? t : 0);
      float* sum = round(total, channels, step ? t : 0);
      softmax(logits, n, p);
      sum_over(p, key_at, channels, sum);
      squash(sum, towards + step * t, pitch, x);
      dot(towards + step * t, pitch, key_at, area.pitch, channels, n, logits);
      drop_keys(x);
    }
    if (call.window.data) {
      const float* own = window + member * area.count * area.pitch + x;
      for (int64_t i = 0; i < n; ++i) {
        store(logits + i * LANES, load(logits + i * LANES) + load(own + entries[i].number * area.pitch));
      }
      drop_keys(x);
    }
    float* p = round(weights, area.count, step ? rounds : 0);
    sums = softmax(logits, n, p);
    return p;
  }

  // Writes −∞ for the pairs of the queries at x whose key is masked or outside the map.
  void drop_keys(int64_t x) const {
    for (int64_t i = 0; i < n && call.mask.data; ++i) {
      const Vec is_key = load(mask.row(entries[i].row) + x + entries[i].shift);
      store(logits + i * LANES, is_key == Vec{} ? splat(-INF) : load(logits + i * LANES));
    }
    if (!call.padded) {
      drop_outside(area, entries, n, x, logits);
    }
  }

  // Calls with(lane, number) for the numbers of the queries at x, of one head of the group, in a map of one channel.
  template <typename With>
  void for_numbers(const Map& map, int64_t member, int64_t y, int64_t x, const With& with) const {
    float* row = row_of<float>(map, batch, head * call.group + member, y);
    for (int64_t i = 0; i < min_of(LANES, area.width - x); ++i) {
      with(i, row[(x + i) * map.stride[3]]);
    }
  }

  // out (channels, LANES) = Σ_i p_i b_i
  void sum_over(const float* p, const float* const* b, int64_t channels, float* out, int64_t pitch = LANES) {
    for (int64_t i = 0; i < n; ++i) {
      weight_at[i] = p + i * LANES;
    }
    gather(weight_at, b, area.pitch, channels, n, out, pitch);
  }

  // ‖x‖²/(1 + ‖x‖²) · x/‖x‖ over the channels of x (channels, LANES), 0 at 0
  void squash(const float* x, float* out, int64_t pitch, int64_t at) const {
    const Vec size = norm(x).size;
    const Vec factor = size / (1.0f + size * size);
    for (int64_t c = 0; c < channels; ++c) {
      store(out + c * pitch, keep(load(x + c * LANES) * factor, at, area.width));
    }
  }

  // The gradient of squash at x from the gradient of its output. squash is differentiable at 0 (‖x‖ is not), with
  // derivative 0.
  void squash_backward(float* grad, const float* x, float* out, int64_t pitch, int64_t at) const {
    const auto [size, unit, peak] = norm(x);
    Vec along{};
    for (int64_t c = 0; c < channels; ++c) {
      along += load(grad + c * LANES) * (load(x + c * LANES) / peak);
    }
    along /= max(unit, splat(TINY));
    const Vec square = size * size;
    const Vec across = size / (1.0f + square);
    along *= (1.0f - square) / ((1.0f + square) * (1.0f + square));
    for (int64_t c = 0; c < channels; ++c) {
      const Vec d = load(grad + c * LANES) * across + load(x + c * LANES) * along;
      store(out + c * pitch, keep(d, at, area.width));
    }
  }

  static constexpr float TINY = 1.17549435e-38f;

  // ‖x‖ = peak · unit, without underflow of the squares of small components.
  struct Norm {
    Vec size, unit, peak;
  };

  Norm norm(const float* x) const {
    Vec peak = splat(TINY), unit{};
    for (int64_t c = 0; c < channels; ++c) {
      peak = max(abs(load(x + c * LANES)), peak);
    }
    for (int64_t c = 0; c < channels; ++c) {
      const Vec part = load(x + c * LANES) / peak;
      unit += part * part;
    }
    unit = sqrt(unit);
    return {peak * unit, unit, peak};
  }

  const LocalAttention& call;
  const Neighbourhood area;
  const int64_t channels, value_channels;  // per head
  const bool content;
  const int64_t rounds;
  const bool one;  // keys and values are the same tensor
  Ring values, keys, mask;
  float* zeros;  // a row of padding
  float* window;
  float* logits;
  float* weights;  // (passes, n, LANES)
  float* total;    // (passes, D, LANES)
  Entry* entries;
  const float** key_at;
  const float** value_at;
  const float** weight_at;
  Sums sums{};  // of the last softmax
  int64_t batch = 0, head = 0, next = 0, n = 0;
};

// Calls rows(batch, head, y0, y1) for the rows of each map.
template <typename Rows>
void for_maps(const LocalAttention& call, int64_t begin, int64_t end, const Rows& rows) {
  while (begin < end) {
    const int64_t map = begin / call.height, y0 = begin % call.height;
    const int64_t y1 = min_of(call.height, y0 + end - begin);
    rows(map / call.heads, map % call.heads, y0, y1);
    begin += y1 - y0;
  }
}

void scale_row(float* row, int64_t channels, int64_t pitch, int64_t width, float scale) {
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t x = 0; x < width; x += LANES) {
      store(row + c * pitch + x, load(row + c * pitch + x) * scale);
    }
  }
}

int64_t local_attention(const LocalAttention& call, int64_t begin, int64_t end, void* scratch) {
  Arena arena(scratch);
  Local local(call, arena, 0);
  const Neighbourhood& area = local.area;
  float* query = arena.take<float>(call.query.channels * area.pitch);
  float* towards = arena.take<float>(local.channels * LANES);
  float* out = arena.take<float>(call.value.channels * area.pitch);
  if (!scratch) {
    return arena.used;
  }
  for_maps(call, begin, end, [&](int64_t batch, int64_t head, int64_t y0, int64_t y1) {
    local.start(batch, head, y0);
    for (int64_t y = y0; y < y1; ++y) {
      local.move_to(y);
      if (local.content) {
        load_row(call.query, batch, head, y, area.width, query, area.pitch);
        scale_row(query, call.query.channels, area.pitch, area.width, call.scale);
      }
      for (int64_t member = 0; member < call.group; ++member) {
        const float* own = query + member * local.channels * area.pitch;
        float* to = out + member * local.value_channels * area.pitch;
        for (int64_t x = 0; x < area.width; x += LANES) {
          const float* p = local.weigh(member, x, own + x, towards, LANES, 0);
          local.sum_over(p, local.value_at, local.value_channels, to + x, area.pitch);
          if (call.lse.data) {
            local.for_numbers(call.lse, member, y, x, [&](int64_t i, float& lse) {
              lse = local.sums.peak[i] + __builtin_logf(local.sums.sum[i]);
            });
          }
        }
      }
      store_row(call.out, batch, head, y, area.width, out, area.pitch);
    }
  });
  return arena.used;
}

struct LocalBackward {
  LocalBackward(const LocalAttention& call, Arena& arena)
      : call(call),
        local(call, arena, max_of(0, call.iterations - 1)),
        terms(local.content ? 2 * local.rounds + 1 : 1),
        weights(arena, local.area, call.group * local.area.count),
        grads(arena, local.area, call.value.channels),
        key_weights(arena, local.area, terms * call.group * local.area.count),
        key_vectors(arena, local.area, terms * call.key.channels),
        d_logits(arena.take<float>(local.area.count * LANES)),
        d_sum(arena.take<float>(local.channels * LANES)),
        row(arena.take<float>(max_of(call.key.channels, call.value.channels) * local.area.pitch)),
        grad_at(arena.take<const float*>(local.area.count)) {}

  // Computes the weights and the gradients of logits for the queries of row y; if `own`, also the gradients of the
  // queries and of their window logits.
  void queries(int64_t batch, int64_t head, int64_t y, bool own) {
    const Neighbourhood& area = local.area;
    local.move_to(y);
    load_row(call.grad, batch, head, y, area.width, grads.row(y), area.pitch);
    if (local.content) {
      float* query = key_vector(y, terms - 1, 0);
      load_row(call.query, batch, head, y, area.width, query, area.pitch);
      scale_row(query, call.query.channels, area.pitch, area.width, call.scale);
    }
    for (int64_t member = 0; member < call.group; ++member) {
      for (int64_t x = 0; x < area.width; x += LANES) {
        queries_at(member, y, x, own);
      }
    }
    if (!own) {
      return;
    }
    if (call.d_query.data) {
      scale_row(row, call.query.channels, area.pitch, area.width, call.scale);
      store_row(call.d_query, batch, head, y, area.width, row, area.pitch);
    }
    if (call.d_window.data) {
      clear_absent(y);
      store_row(call.d_window, batch, head, y, area.width, key_weight(y, 0, 0), area.pitch);
    }
  }

  void queries_at(int64_t member, int64_t y, int64_t x, bool own) {
    const Neighbourhood& area = local.area;
    const int64_t D = local.channels, pitch = area.pitch, rounds = local.rounds;
    const float* grad = grads.row(y) + member * local.value_channels * pitch + x;
    const float* query = key_vector(y, terms - 1, member) + x;
    float* towards = key_vector(y, 2 * rounds - 2, member) + x;
    const float* p = local.weigh(member, x, query, towards, pitch, -2 * call.key.channels * pitch);
    put(p, weights.row(y) + member * area.count * pitch + x, x);
    compare(grad, local.value_at, local.value_channels);
    Vec d_lse{};
    if (call.grad_lse.data) {
      local.for_numbers(call.grad_lse, member, y, x, [&](int64_t i, float d) { d_lse[i] = d; });
    }
    softmax_backward(local.logits, p, local.n, d_logits, false, d_lse);
    put(d_logits, key_weight(y, 0, member) + x, x);
    for (int64_t t = rounds - 1; t >= 0; --t) {
      const int64_t term = 2 * (rounds - 1 - t) + 1;
      float* d_total = key_vector(y, term, member) + x;
      p = local.round(local.weights, area.count, t);
      local.sum_over(d_logits, local.key_at, D, d_sum);
      local.squash_backward(d_sum, local.round(local.total, D, t), d_total, pitch, x);
      put(p, key_weight(y, term, member) + x, x);
      compare(d_total, local.key_at, D);
      softmax_backward(local.logits, p, local.n, d_logits, true);
      put(d_logits, key_weight(y, term + 1, member) + x, x);
    }
    if (call.d_query.data && own) {
      local.sum_over(d_logits, local.key_at, D, row + member * D * pitch + x, pitch);
    }
  }

  // Computes the gradients of the keys and values of row y.
  void sums(int64_t batch, int64_t head, int64_t y) {
    const Neighbourhood& area = local.area;
    const int64_t n = area.list_back(y, local.entries), K = area.count, D = local.channels, Dv = local.value_channels;
    for (int64_t member = 0; call.d_value.data && member < call.group; ++member) {
      for (int64_t x = 0; x < area.width; x += LANES) {
        sum(n, x, weights, member * K, grads, member * Dv, Dv, row + member * Dv * area.pitch + x, false);
      }
    }
    if (call.d_value.data) {
      store_row(call.d_value, batch, head, y, area.width, row, area.pitch);
    }
    if (!call.d_key.data) {
      return;
    }
    for (int64_t member = 0; member < call.group; ++member) {
      for (int64_t x = 0; x < area.width; x += LANES) {
        for (int64_t term = 0; term < terms; ++term) {
          const int64_t block = term * call.group + member;
          sum(n, x, key_weights, block * K, key_vectors, block * D, D, row + member * D * area.pitch + x, term > 0);
        }
      }
    }
    store_row(call.d_key, batch, head, y, area.width, row, area.pitch);
  }

  float* key_weight(int64_t y, int64_t term, int64_t member) const {
    return key_weights.row(y) + (term * call.group + member) * local.area.count * local.area.pitch;
  }

  float* key_vector(int64_t y, int64_t term, int64_t member) const {
    return key_vectors.row(y) + (term * call.group + member) * local.channels * local.area.pitch;
  }

  // logits = a · b_i
  void compare(const float* a, const float* const* b, int64_t channels) {
    for (int64_t i = 0; i < local.n; ++i) {
      store(local.logits + i * LANES, Vec{});
    }
    dot(a, local.area.pitch, b, local.area.pitch, channels, local.n, local.logits);
  }

  // Stores numbers of the pairs of the queries at x in the rows of their entries.
  void put(const float* from, float* to, int64_t x) const {
    for (int64_t i = 0; i < local.n; ++i) {
      store(to + local.entries[i].number * local.area.pitch, keep(load(from + i * LANES), x, local.area.width));
    }
  }

  // Sets the gradients of entries without a key, for row y, to 0.
  void clear_absent(int64_t y) const {
    for (int64_t entry = 0, i = 0; entry < local.area.count; ++entry) {
      if (i < local.n && local.entries[i].number == entry) {
        ++i;
        continue;
      }
      for (int64_t member = 0; member < call.group; ++member) {
        float* numbers = key_weight(y, 0, member) + entry * local.area.pitch;
        __builtin_memset(numbers, 0, local.area.width * sizeof(float));
      }
    }
  }

  // to = Σ weights · vectors at x over the n queries that attend to these positions; to += … if `add`.
  void sum(int64_t n, int64_t x, const Ring& of_weights, int64_t weight, const Ring& of_vectors, int64_t channel,
           int64_t channels, float* to, bool add) {
    const int64_t pitch = local.area.pitch;
    for (int64_t i = 0; i < n; ++i) {
      const Entry& e = local.entries[i];
      local.weight_at[i] = of_weights.row(e.row) + (weight + e.number) * pitch + x + e.shift;
      grad_at[i] = of_vectors.row(e.row) + channel * pitch + x + e.shift;
    }
    gather(local.weight_at, grad_at, pitch, channels, n, to, pitch, add);
  }

  const LocalAttention& call;
  Local local;
  const int64_t terms;  // terms of the gradients of keys
  Ring weights, grads;  // weights of the pairs, (K, W), and dy of each query, of which d_value is the sum
  // First the gradients of the last logits, with the vectors that were multiplied with the keys. Then, for each pass
  // from the last to the first: its weights, with the gradient of its sum of keys; and the gradients of the logits
  // before it, with the vectors that were multiplied with the keys.
  Ring key_weights, key_vectors;
  float* d_logits;
  float* d_sum;
  float* row;
  const float** grad_at;
};

int64_t local_attention_backward(const LocalAttention& call, int64_t begin, int64_t end, void* scratch) {
  Arena arena(scratch);
  LocalBackward work(call, arena);
  if (!scratch) {
    return arena.used;
  }
  const Neighbourhood& area = work.local.area;
  for_maps(call, begin, end, [&](int64_t batch, int64_t head, int64_t y0, int64_t y1) {
    int64_t next = max_of(0, y0 - area.radius);
    work.local.start(batch, head, next);
    for (int64_t y = y0; y < y1; ++y) {
      for (; next <= min_of(area.height - 1, y + area.radius); ++next) {
        work.queries(batch, head, next, y0 <= next && next < y1);
      }
      work.sums(batch, head, y);
    }
  });
  return arena.used;
}
