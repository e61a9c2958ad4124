#include "global_attention.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <list>
#include <optional>
#include <vector>

#include "../checks.h"
#include "../operator.h"
#include "capability.h"
#include "parallel_items.h"

namespace mmattn::global_attention_cpu {
namespace {

// Largest sides of a tile: a tile with its keys and values fits into the L2 cache. Pairs of bfloat16 are smaller and
// multiplied faster than memory delivers them, so more queries share them.
constexpr int64_t QUERIES = 128, QUERIES_OF_PAIRS = 256, KEYS = 384;
// The backward pass processes ROWS queries with all keys together, or several maps with up to MOST logits.
constexpr int64_t ROWS = 512, MOST = 4 << 20;

int64_t parts(int64_t count, int64_t size) { return (count + size - 1) / size; }

// The number of columns, rounded up to whole vectors.
int64_t whole_vectors(int64_t columns) { return parts(columns, 16) * 16; }

// The side of an even number of tiles, as equal as possible, to balance the threads. It does not depend on the number
// of threads, so neither do the results.
int64_t side_of(int64_t count, int64_t longest) {
  const int64_t pairs = std::max<int64_t>(1, parts(count, 2 * longest));
  return std::max<int64_t>(whole_vectors(parts(count, 2 * pairs)), 16);
}

// The number of leading keys that any of the queries attends to.
int64_t seen_by(const GlobalAttention& call, const Queries& q) {
  return call.is_causal ? call.before + q.first + q.count : call.keys;
}

template <typename Work>
void parallel(int64_t count, const Work& work) {
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      work(i);
    }
  });
}

float* data(const Tensor& x, int64_t number) { return x.data_ptr<float>() + number * x.stride(0); }

// Appends an empty gradient to `grads`.
Volume gradient_of(const Tensor& x, std::vector<Tensor>& grads) {
  return volume_of(grads.emplace_back(at::empty(x.sizes(), x.options())));
}

// A call, and the tensors that own its memory.
struct Operands {
  explicit Operands(const Call& given) {
    const Tensor &query = given.tensor("query"), &key = given.tensor("key"), &value = given.tensor("value");
    const optional<Tensor> window = given.optional_tensor("window_bias"),
                           outside = given.optional_tensor("outside_bias");
    const std::vector<Tensor> axis_bias = given.tensors("axis_bias");
    const optional<Tensor> key_bias = given.optional_tensor("key_bias"), key_mask = given.optional_tensor("key_mask");
    const std::vector<int64_t> window_size = given.integers("window_size");
    call.outside_value = static_cast<float>(given.number("outside_value"));
    call.scale = static_cast<float>(given.number("scale"));
    call.is_causal = given.flag("is_causal");
    call.batch = query.size(0);
    call.heads = query.size(1);
    call.queries = call.keys = 1;
    call.channels = query.size(-1);
    call.value_channels = value.size(-1);
    call.query_pitch = pitch_of(call.channels);
    call.value_pitch = pitch_of(call.value_channels);
    const int64_t missing = 3 - (query.dim() - 3);
    for (int64_t axis = 0; axis < 3; ++axis) {
      const bool there = axis >= missing;
      call.size[axis] = there ? query.size(2 + axis - missing) : 1;
      call.key_size[axis] = there ? key.size(2 + axis - missing) : 1;
      call.queries *= call.size[axis];
      call.keys *= call.key_size[axis];
      call.reach[axis] = there && window ? window_size[axis - missing] / 2 : 0;
      call.axis_pitch[axis] = axis_bias.empty() ? 0 : pitch_of(call.key_size[axis]) + 16;
      if (there && !axis_bias.empty()) {
        call.axis_bias[axis] = volume_of(axis_bias[axis - missing]);
      }
    }
    call.query = volume_of(query);
    call.key = volume_of(key);
    call.value = volume_of(value);
    call.paired = kernels.product_of_pairs && call.query.bfloat16 && call.key.bfloat16 && call.value.bfloat16;
    product = call.paired ? kernels.product_of_pairs : kernels.product;
    call.query_tile = side_of(call.queries, call.paired ? QUERIES_OF_PAIRS : QUERIES);
    call.key_tile = side_of(call.keys, KEYS);
    call.tile_pitch = pitch_of(call.key_tile);
    call.before = call.keys - call.queries;
    scales.assign(KEYS, call.scale);
    if (window) {
      call.entries = window->size(-1);
      call.window_pitch = pitch_of(call.entries);
      call.window = volume_of(*window);
    }
    if (outside) {
      call.outside = numbers_of(*outside);
    }
    if (key_bias) {
      call.key_bias = keep(key_bias->to(at::kFloat).contiguous()).const_data_ptr<float>();
    }
    if (key_mask) {
      call.key_mask = keep(key_mask->contiguous()).const_data_ptr<bool>();
    }
  }

  const Tensor& keep(const Tensor& x) { return kept.emplace_back(x); }

  bool has_positions() const { return call.window.data || call.axis_bias[2].data || call.key_bias; }

  // Return rows as a factor of a product that sums over their columns, or over the rows. Pairs are written to `to`.
  const float* over_columns(const float* from, int64_t count, int64_t width, int64_t pitch, float* to) const {
    if (!call.paired) {
      return from;
    }
    kernels.pair_columns(from, count, width, pitch, to);
    return to;
  }
  const float* over_rows(const float* from, int64_t count, int64_t width, int64_t pitch, float* to) const {
    if (!call.paired) {
      return from;
    }
    kernels.pair_rows(from, count, width, pitch, to);
    return to;
  }

  // Writes the logits of a tile from its keys, (channels, keys), including masked keys.
  void logits(const Queries& q, const Vectors& keys, const Tile& to) const {
    if (has_positions()) {
      kernels.positions(call, q, to);
    }
    product(q.count, whole_vectors(to.end - to.begin), call.channels, {q.left_query, call.query_pitch, 1}, keys,
            {to.data, to.pitch, scales.data(), has_positions() ? all() : nullptr});
  }

  // Memory for tiles of logits, with one extra vector.
  Tensor tiles(int64_t count) const { return floats({count, call.query_tile * call.tile_pitch + 16}); }

  // Factors of 1, for a Target that adds to the previous values of all rows.
  static const float* all() {
    static const std::vector<float> ones(KEYS, 1);
    return ones.data();
  }

  const GlobalAttentionKernels& kernels = cpu_capability().global_attention;
  Product product;
  GlobalAttention call{};
  std::vector<float> scales;  // factors of `scale`, for a Target
  std::list<Tensor> kept;
};

// Memory for the data of the queries of `tiles` tiles.
struct Memory {
  Memory(const GlobalAttention& call, int64_t tiles, bool backward)
      : call(call), grad(backward ? call.value_pitch : 0), both(backward && call.paired) {
    const int64_t axes = call.axis_pitch[0] + call.axis_pitch[1] + call.axis_pitch[2];
    const int64_t left = both ? call.query_pitch + call.value_pitch : 0;
    const int64_t row = call.query_pitch + call.window_pitch + call.value_pitch + grad + left + axes + 5;
    all = floats({tiles, whole_vectors(call.query_tile * row)});
  }

  // The queries of a map, starting at `first`, in the memory of one tile.
  Queries tile(int64_t number, int64_t map, int64_t first) const {
    Queries q{map, first, std::min(call.query_tile, call.queries - first)};
    float* next = data(all, number);
    const auto take = [&](float*& rows, int64_t width) {
      rows = next;
      next += call.query_tile * width;
    };
    take(q.query, call.query_pitch);
    take(q.window, call.window_pitch);
    take(q.out, call.value_pitch);
    take(q.grad, grad);
    q.left_query = q.query;
    q.left_grad = q.grad;
    if (both) {
      take(q.left_query, call.query_pitch);
      take(q.left_grad, call.value_pitch);
    }
    for (int64_t axis = 0; axis < 3; ++axis) {
      take(q.axis_bias[axis], call.axis_pitch[axis]);
    }
    for (float** each : {&q.outside, &q.peak, &q.keep, &q.total, &q.lse}) {
      take(*each, 1);
    }
    return q;
  }

  const GlobalAttention& call;
  const int64_t grad;
  const bool both;  // left and right factors differ, and both are needed
  Tensor all;
};

// The keys or values of all maps, packed for the products of the tiles as (keys, channels) or (channels, keys).
// Row-major access would miss the TLB and conflict in the cache.
struct Packed {
  Packed(const GlobalAttention& call, const Volume& from, bool transposed)
      : tiles(parts(call.keys, call.key_tile)), lanes(cpu_capability().global_attention.lanes) {
    const int64_t columns = transposed ? call.key_tile : from.channels;
    const int64_t count = transposed ? from.channels : call.key_tile;
    height = call.paired ? parts(count, 2) : count;
    const int64_t pitch = pitch_of(columns), all = call.batch * call.heads * tiles;
    size = height * whole_vectors(columns);
    // The packed tiles, followed by scratch memory for each thread.
    vectors = floats({all * size + at::get_num_threads() * count * pitch});
    // Zero the padding columns: uninitialised memory may hold denormal numbers, which slow down products.
    std::fill(data_at(all * size), data_at(vectors.numel()), 0.0f);
    parallel(all, [&](int64_t i) {
      const int64_t begin = i % tiles * call.key_tile, end = std::min(call.keys, begin + call.key_tile);
      const Tile rows{data_at(all * size) + at::get_thread_num() * count * pitch, pitch, begin, end};
      cpu_capability().global_attention.pack(call, from, i / tiles, transposed, rows, height, data_at(i * size));
    });
  }

  float* data_at(int64_t offset) const { return vectors.data_ptr<float>() + offset; }

  Vectors tile(int64_t map, int64_t number) const {
    return {data_at((map * tiles + number) * size), lanes, height * lanes};
  }

  int64_t tiles, lanes, height, size;
  Tensor vectors;
};

std::vector<Tensor> global_attention(const Call& given) {
  Operands of(given);
  GlobalAttention& call = of.call;
  const Tensor& value = given.tensor("value");
  std::vector<int64_t> size = given.tensor("query").sizes().vec();
  size.back() = value.size(-1);
  const Tensor out = empty_laid_out_as(value, size);
  size.pop_back();
  const Tensor lse = floats(size);
  call.out = volume_of(out);
  call.lse = numbers_of(lse);
  const GlobalAttentionKernels& kernels = of.kernels;
  const int64_t tiles = parts(call.queries, call.query_tile), threads = at::get_num_threads();
  const Memory memory(call, threads, false);
  const Packed keys(call, call.key, true), values(call, call.value, false);
  const Tensor logits = of.tiles(threads);
  parallel(call.batch * call.heads * tiles, [&](int64_t i) {
    const int64_t thread = at::get_thread_num();
    const Queries q = memory.tile(thread, i / tiles, i % tiles * call.query_tile);
    kernels.prepare(call, q);
    of.over_columns(q.query, q.count, call.channels, call.query_pitch, q.left_query);
    const int64_t seen = seen_by(call, q);
    for (int64_t begin = 0; begin < seen; begin += call.key_tile) {
      const int64_t number = begin / call.key_tile;
      const Tile tile{data(logits, thread), call.tile_pitch, begin, std::min(seen, begin + call.key_tile)};
      const int64_t width = tile.end - begin;
      of.logits(q, keys.tile(q.map, number), tile);
      kernels.softmax(call, q, tile);
      const float* weights = of.over_columns(tile.data, q.count, width, tile.pitch, tile.data);
      of.product(q.count, call.value_channels, width, {weights, tile.pitch, 1}, values.tile(q.map, number),
                 {q.out, call.value_pitch, nullptr, begin > 0 ? q.keep : nullptr});
    }
    kernels.finish(call, q);
  });
  return {out, lse};
}

std::vector<Tensor> global_attention_backward(const Call& given) {
  Operands of(given);
  GlobalAttention& call = of.call;
  call.grad = volume_of(given.tensor("grad"));
  call.out = volume_of(given.tensor("out"));
  call.lse = numbers_of(given.tensor("lse"));
  call.grad_lse = numbers_of(given.optional_tensor("grad_lse"));
  std::vector<Tensor> grads;
  const auto own = [&](const Tensor& x) { return gradient_of(x, grads); };
  // A gradient that is a sum over the queries, in float32.
  const auto sum = [&](const Tensor& x) {
    return grads.emplace_back(at::zeros(x.sizes(), at::kFloat)).data_ptr<float>();
  };
  call.d_query = given.needs("query") ? own(given.tensor("query")) : Volume{};
  float* const d_key = given.needs("key") ? sum(given.tensor("key")) : nullptr;
  float* const d_value = given.needs("value") ? sum(given.tensor("value")) : nullptr;
  if (given.needs("window_bias")) {
    call.d_window = own(*given.optional_tensor("window_bias"));
  }
  if (given.needs("outside_bias")) {
    const Tensor outside = *given.optional_tensor("outside_bias");
    call.d_outside = numbers_of(grads.emplace_back(at::empty(outside.sizes(), outside.options())));
  }
  const std::vector<Tensor> axis_bias = given.tensors("axis_bias");
  for (size_t axis = 0; axis < axis_bias.size(); ++axis) {
    if (given.needs("axis_bias", axis)) {
      call.d_axis_bias[3 - axis_bias.size() + axis] = own(axis_bias[axis]);
    }
  }
  if (given.needs("key_bias")) {
    call.d_key_bias = sum(*given.optional_tensor("key_bias"));
  }

  const GlobalAttentionKernels& kernels = of.kernels;
  const int64_t maps = call.batch * call.heads, D = call.channels, Dv = call.value_channels;
  const int64_t block = std::clamp<int64_t>(parts(call.queries, call.query_tile), 1, ROWS / call.query_tile);
  const int64_t key_tiles = parts(call.keys, call.key_tile), pitch = call.tile_pitch;
  const Packed keys_across(call, call.key, true), values_across(call, call.value, true);
  const optional<Packed> keys =
      call.d_query.data ? optional<Packed>(std::in_place, call, call.key, false) : std::nullopt;
  const int64_t logits = block * key_tiles * call.query_tile * pitch;
  const int64_t together = std::clamp<int64_t>(MOST / logits, 1, maps);
  const Memory memory(call, together * block, true);
  const Tensor d_logits = of.tiles(together * key_tiles * block);
  const Tensor weights = of.tiles(at::get_num_threads());
  for (int64_t map = 0; map < maps; map += together) {
    for (int64_t start = 0; start < call.queries; start += block * call.query_tile) {
      const int64_t tiles = std::min(block, parts(call.queries - start, call.query_tile));
      const int64_t work = std::min(together, maps - map);
      const auto queries = [&](int64_t m, int64_t tile) {
        return memory.tile(m * block + tile, map + m, start + tile * call.query_tile);
      };
      const auto grad_of = [&](int64_t m, int64_t tile, int64_t key_tile, const Queries& q) {
        const int64_t begin = key_tile * call.key_tile, seen = seen_by(call, q);
        float* tiles = data(d_logits, (m * key_tiles + key_tile) * block + tile);
        return Tile{tiles, pitch, begin, std::min(seen, begin + call.key_tile)};
      };
      parallel(work * tiles, [&](int64_t i) {
        const Queries q = queries(i / tiles, i % tiles);
        kernels.prepare_backward(call, q);
        of.over_columns(q.query, q.count, D, call.query_pitch, q.left_query);
        of.over_columns(q.grad, q.count, Dv, call.value_pitch, q.left_grad);
        of.over_rows(q.query, q.count, D, call.query_pitch, q.query);
        of.over_rows(q.grad, q.count, Dv, call.value_pitch, q.grad);
      });
      // A thread owns its keys: their gradients are sums over the queries, in order.
      parallel(work * key_tiles, [&](int64_t i) {
        const int64_t m = i / key_tiles, key_tile = i % key_tiles;
        for (int64_t tile = 0; tile < tiles; ++tile) {
          const Queries q = queries(m, tile);
          const Tile d = grad_of(m, tile, key_tile, q);
          const int64_t width = d.end - d.begin, row = q.map * call.keys + d.begin;
          if (width <= 0) {
            continue;
          }
          const Tile p{data(weights, at::get_thread_num()), pitch, d.begin, d.end};
          of.logits(q, keys_across.tile(q.map, key_tile), p);
          of.product(q.count, whole_vectors(width), Dv, {q.left_grad, call.value_pitch, 1},
                     values_across.tile(q.map, key_tile), {d.data, pitch});
          kernels.softmax_backward(call, q, p, d);
          // Sums over the queries: the weights of a key are a column of the tile.
          if (d_value) {
            const float* left = of.over_rows(p.data, q.count, width, pitch, p.data);
            of.product(width, Dv, q.count, {left, 1, pitch}, {q.grad, call.value_pitch, kernels.lanes},
                       {d_value + row * Dv, Dv, nullptr, of.all()});
          }
          if (d_key) {
            const float* left = of.over_rows(d.data, q.count, width, pitch, p.data);
            of.product(width, D, q.count, {left, 1, pitch}, {q.query, call.query_pitch, kernels.lanes},
                       {d_key + row * D, D, of.scales.data(), of.all()});
          }
        }
      });
      parallel(work * tiles, [&](int64_t i) {
        const Queries q = queries(i / tiles, i % tiles);
        for (int64_t key_tile = 0; key_tile < key_tiles; ++key_tile) {
          const Tile d = grad_of(i / tiles, i % tiles, key_tile, q);
          if (d.begin < d.end) {
            kernels.gradients(call, q, d);
            if (call.d_query.data) {
              const int64_t width = d.end - d.begin;
              const float* left = of.over_columns(d.data, q.count, width, pitch, d.data);
              of.product(q.count, D, width, {left, pitch, 1}, keys->tile(q.map, key_tile),
                         {q.query, call.query_pitch, of.scales.data(), key_tile > 0 ? of.all() : nullptr});
            }
          }
        }
        kernels.finish_backward(call, q);
      });
    }
  }
  // Cast the gradients that are sums to the dtypes of their tensors.
  size_t next = call.d_query.data ? 1 : 0;
  for (const char* name : {"key", "value"}) {
    if (given.needs(name)) {
      grads[next] = grads[next].to(given.tensor(name).scalar_type());
      ++next;
    }
  }
  if (call.d_key_bias) {
    grads.back() = grads.back().to(given.optional_tensor("key_bias")->scalar_type());
  }
  return grads;
}

bool can_run(const Call& given) { return can_run_on(given, {"query", "key"}); }

}  // namespace

TORCH_LIBRARY_IMPL(mmattn, CPU, m) {
  m.impl("global_attention", on_cpu<check_global_attention, global_attention, can_run>());
  m.impl("global_attention_backward", on_cpu<check_global_attention, global_attention_backward, can_run>());
}

}  // namespace mmattn::global_attention_cpu
