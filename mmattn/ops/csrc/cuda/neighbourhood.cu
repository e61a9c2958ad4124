// A group of lanes processes one query: its channels, in quads, and its k0·k1 entries are divided among the lanes. If
// channels are contiguous, a group has up to one lane per quad; otherwise it has one lane, so that the lanes of a warp
// read adjacent positions. Neighbouring queries share keys and values through the caches; logits are in shared memory.
// The backward pass loops over queries and stores weights and gradients of logits, then over keys, each of which sums
// over the queries in reach. It does not scatter.
#include "neighbourhood.h"

#include <climits>
#include <cmath>

#include "device.cuh"

namespace mmattn::cuda {
namespace {

constexpr int QUADS = 4;  // quads of channels that a lane holds in registers

struct Position {
  int batch, head, y, x;
};

__device__ Position position(const Neighbourhood& call, int64_t n) {
  const int64_t row = n / call.width, map = row / call.height;
  return {static_cast<int>(map / call.heads), static_cast<int>(map % call.heads), static_cast<int>(row % call.height),
          static_cast<int>(n % call.width)};
}

__device__ int64_t offset(const Map& map, const Position& at) {
  return at.batch * map.stride[0] + at.head * map.stride[1] + at.y * map.stride[3] + at.x * map.stride[4];
}

// The lanes of a query.
struct Group {
  int lanes, lane;
  unsigned mask;

  __device__ explicit Group(int lanes)
      : lanes(lanes), lane(threadIdx.x % lanes), mask((~0u >> (32 - lanes)) << (threadIdx.x % 32 - lane)) {}

  __device__ float sum(float x) const {
    for (int other = lanes / 2; other > 0; other /= 2) {
      x += __shfl_xor_sync(mask, x, other);
    }
    return x;
  }

  __device__ float max(float x) const {
    for (int other = lanes / 2; other > 0; other /= 2) {
      x = most(x, __shfl_xor_sync(mask, x, other));
    }
    return x;
  }

  __device__ void sync() const { __syncwarp(mask); }
};

// The neighbours of a position inside the map.
struct Reach {
  const Neighbourhood& call;
  Position at;
  int begin[2], end[2];  // rows and columns of the kernel

  __device__ Reach(const Neighbourhood& call, const Position& at) : call(call), at(at) {
    const int place[] = {at.y, at.x}, size[] = {call.height, call.width};
#pragma unroll
    for (int axis = 0; axis < 2; ++axis) {
      const int radius = call.kernel[axis] / 2;
      begin[axis] = radius - min(radius, place[axis] / call.dilation);
      end[axis] = radius + min(radius, (size[axis] - 1 - place[axis]) / call.dilation) + 1;
    }
  }

  __device__ bool has(int entry) const {
    const int row = entry / call.kernel[1], column = entry % call.kernel[1];
    return row >= begin[0] && row < end[0] && column >= begin[1] && column < end[1];
  }

  // Calls visit(entry, position).
  template <typename Visit>
  __device__ void each(const Visit& visit) const {
    for (int row = begin[0]; row < end[0]; ++row) {
      const int y = at.y + (row - call.kernel[0] / 2) * call.dilation;
      for (int column = begin[1]; column < end[1]; ++column) {
        const int x = at.x + (column - call.kernel[1] / 2) * call.dilation;
        visit(row * call.kernel[1] + column, Position{at.batch, at.head, y, x});
      }
    }
  }
};

// Numbers of a query in shared memory, interleaved with those of the other queries of the block.
struct Numbers {
  float* data;
  int pitch;

  __device__ float& operator[](int i) const { return data[i * pitch]; }
  __device__ Numbers from(int i) const { return {data + i * pitch, pitch}; }
};

__device__ float4 load4(const Numbers& x, int c) { return {x[c], x[c + 1], x[c + 2], x[c + 3]}; }

__device__ void store4(const Numbers& x, int c, float4 numbers) {
  x[c] = numbers.x;
  x[c + 1] = numbers.y;
  x[c + 2] = numbers.z;
  x[c + 3] = numbers.w;
}

__host__ __device__ inline int rounded(int channels) { return (channels + 3) / 4 * 4; }

// The count of numbers in shared memory per query.
__host__ __device__ inline int64_t numbers(const Neighbourhood& call, bool backward) {
  const int64_t entries = int64_t{call.kernel[0]} * call.kernel[1], rounds = call.iterations - 1;
  const int64_t sums = rounded(call.key.channels);
  if (!backward) {
    return entries + (rounds ? entries + sums : 0);
  }
  return 2 * entries + rounds * (entries + sums) + (rounds ? sums : 0);
}

template <Dtype dtype>
struct Query {
  const Neighbourhood& call;
  const Group group;
  const Position at;
  const Reach reach;
  const int entries, rounds;
  const bool keep;       // keep the weights and sums of each pass
  const Numbers logits;  // finally the weights of the values
  const Numbers passes;  // weights of each pass before the last
  const Numbers sums;    // sums of keys with these weights
  const Numbers d_logits, d_sum;

  __device__ Query(const Neighbourhood& call, int64_t n, bool backward)
      : call(call),
        group(call.lanes),
        at(position(call, n)),
        reach(call, at),
        entries(call.kernel[0] * call.kernel[1]),
        rounds(call.iterations - 1),
        keep(backward),
        logits{shared_memory() + threadIdx.x / call.lanes, static_cast<int>(blockDim.x) / call.lanes + 1},
        passes(logits.from(entries)),
        sums(passes.from((backward ? rounds : 1) * entries)),
        d_logits(sums.from(rounds * rounded(call.key.channels))),
        d_sum(d_logits.from(entries)) {}

  // Calls visit(i, c) for the quads of channels that this lane holds in registers.
  template <typename Visit>
  __device__ void quads(int base, const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
      visit(i, base + 4 * (group.lane + i * group.lanes));
    }
  }

  __device__ int step() const { return 4 * QUADS * group.lanes; }

  // to[e] += vector(c)ᵀ b_e
  template <typename Vector>
  __device__ void add_dot(const Vector& vector, const Map& b, const Numbers& to) const {
    for (int base = 0; base < b.channels; base += step()) {
      float4 a[QUADS];
      quads(base, [&](int i, int c) { a[i] = c < b.channels ? vector(c) : float4{}; });
      reach.each([&](int entry, const Position& there) {
        const int64_t from = offset(b, there);
        float product = 0;
        quads(base, [&](int i, int c) {
          if (c < b.channels) {
            product += dot(a[i], load4(b, from, c, dtype));
          }
        });
        product = group.sum(product);
        if (group.lane == 0) {
          to[entry] += product;
        }
      });
    }
    group.sync();
  }

  // Calls take(c, Σ_e weights[e] b_e) for each quad of channels.
  template <typename Take>
  __device__ void gather(const Numbers& weights, const Map& b, const Take& take) const {
    for (int base = 0; base < b.channels; base += step()) {
      float4 sum[QUADS] = {};
      reach.each([&](int entry, const Position& there) {
        const int64_t from = offset(b, there);
        const float weight = weights[entry];
        quads(base, [&](int i, int c) {
          if (c < b.channels) {
            sum[i] = sum[i] + weight * load4(b, from, c, dtype);
          }
        });
      });
      quads(base, [&](int i, int c) {
        if (c < b.channels) {
          take(c, sum[i]);
        }
      });
    }
  }

  // Calls visit(e) for the entries of this lane, including those outside the map.
  template <typename Visit>
  __device__ void each_entry(const Visit& visit) const {
    for (int entry = group.lane; entry < entries; entry += group.lanes) {
      visit(entry);
    }
    group.sync();
  }

  // Softmax; 0 if all logits are −∞.
  __device__ void softmax(const Numbers& to) const {
    float top = -INFINITY, total = 0;
    for (int entry = group.lane; entry < entries; entry += group.lanes) {
      top = most(top, logits[entry]);
    }
    top = group.max(top);
    top = top == -INFINITY ? 0 : top;
    each_entry([&](int entry) {
      const float e = __expf(logits[entry] - top);
      to[entry] = e;
      total += e;
    });
    total = group.sum(total);
    total = total == 0 ? 1 : total;
    each_entry([&](int entry) { to[entry] /= total; });
  }

  __device__ Numbers pass(int t) const { return passes.from(keep ? t * entries : 0); }
  __device__ Numbers sum(int t) const { return sums.from(keep ? t * rounded(call.key.channels) : 0); }

  // ‖x‖ of the squash ‖x‖²/(1 + ‖x‖²) · x/‖x‖
  __device__ float norm(const Numbers& x) const {
    float square = 0;
    for (int base = 0; base < call.key.channels; base += step()) {
      quads(base, [&](int, int c) {
        if (c < call.key.channels) {
          square += dot(load4(x, c), load4(x, c));
        }
      });
    }
    return sqrtf(group.sum(square));
  }

  __device__ static float squash(float norm) { return norm / (1 + norm * norm); }

  __device__ void weigh() const {
    each_entry([&](int entry) { logits[entry] = call.padded || reach.has(entry) ? 0 : -INFINITY; });
    if (call.query.data) {
      const int64_t own = offset(call.query, at);
      add_dot([&](int c) { return call.scale * load4(call.query, own, c, dtype); }, call.key, logits);
      for (int t = 0; t < rounds; ++t) {
        softmax(pass(t));
        const Numbers total = sum(t);
        gather(pass(t), call.key, [&](int c, float4 x) { store4(total, c, x); });
        const float factor = squash(norm(total));
        add_dot([&](int c) { return factor * load4(total, c); }, call.key, logits);
      }
    }
    if (call.window.data) {
      const int64_t own = offset(call.window, at);
      each_entry([&](int entry) {
        if (call.padded || reach.has(entry)) {
          logits[entry] += load(call.window, own + entry * call.window.stride[5]);
        }
      });
    }
    softmax(logits);
  }

  __device__ void forward() const {
    weigh();
    const int64_t own = offset(call.out, at);
    gather(logits, call.value, [&](int c, float4 x) { store4(call.out, own, c, x, dtype); });
  }

  // Replaces grad[e] of the weights p by the gradient of their logits, and adds it to `to`.
  __device__ void softmax_backward(const Numbers& grad, const Numbers& p, const Numbers& to, float keep) const {
    float mean = 0;
    for (int entry = group.lane; entry < entries; entry += group.lanes) {
      mean += grad[entry] * p[entry];
    }
    mean = group.sum(mean);
    each_entry([&](int entry) { to[entry] = keep * to[entry] + p[entry] * (grad[entry] - mean); });
  }

  __device__ void save(const Numbers& weights, int slot, int64_t n) const {
    each_entry([&](int entry) {
      call.weights.data[(int64_t{slot} * entries + entry) * call.weights.slot + n * call.weights.position] =
          weights[entry];
    });
  }

  __device__ void save4(int slot, int c, int64_t n, float4 x) const {
    const float each[] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      if (c + u < call.key.channels) {
        call.vectors.data[(int64_t{slot} * call.key.channels + c + u) * call.vectors.slot + n * call.vectors.position] =
            each[u];
      }
    }
  }

  __device__ void backward(int64_t n) const {
    weigh();
    each_entry([&](int entry) { d_logits[entry] = 0; });
    const int64_t grad = offset(call.grad, at);
    add_dot([&](int c) { return load4(call.grad, grad, c, dtype); }, call.value, d_logits);
    softmax_backward(d_logits, logits, d_logits, 0);
    save(logits, 0, n);
    if (call.d_window.data) {
      const int64_t own = offset(call.d_window, at);
      each_entry([&](int entry) { store(call.d_window, own + entry * call.d_window.stride[5], d_logits[entry]); });
    }
    if (!call.query.data) {
      return;
    }
    for (int t = rounds - 1; t >= 0; --t) {
      save(d_logits, 2 * t + 2, n);
      save(pass(t), 2 * t + 3, n);
      const Numbers total = sum(t);
      float along = 0;
      gather(d_logits, call.key, [&](int c, float4 x) {
        store4(d_sum, c, x);
        along += dot(x, load4(total, c));
      });
      along = group.sum(along);
      const float norm = this->norm(total), square = norm * norm, across = squash(norm);
      along = norm == 0 ? 0 : along / norm * (1 - square) / ((1 + square) * (1 + square));
      for (int base = 0; base < call.key.channels; base += step()) {
        quads(base, [&](int, int c) {
          if (c < call.key.channels) {
            const float4 d = across * load4(d_sum, c) + along * load4(total, c);
            store4(d_sum, c, d);
            save4(2 * t, c, n, across * load4(total, c));
            save4(2 * t + 1, c, n, d);
          }
        });
      }
      each_entry([&](int entry) { logits[entry] = 0; });
      add_dot([&](int c) { return load4(d_sum, c); }, call.key, logits);
      softmax_backward(logits, pass(t), d_logits, 1);
    }
    save(d_logits, 1, n);
    if (!call.d_query.data) {
      return;
    }
    const int64_t own = offset(call.d_query, at);
    gather(d_logits, call.key, [&](int c, float4 x) { store4(call.d_query, own, c, call.scale * x, dtype); });
  }
};

__device__ int64_t number(const Neighbourhood& call) {
  return static_cast<int64_t>(blockIdx.x) * (blockDim.x / call.lanes) + threadIdx.x / call.lanes;
}

template <Dtype dtype>
__global__ void forward(const Neighbourhood call) {
  const int64_t n = number(call);
  if (n < call.positions) {  // the same for all lanes of a query
    Query<dtype>(call, n, false).forward();
  }
}

template <Dtype dtype>
__global__ void backward_of_queries(const Neighbourhood call) {
  const int64_t n = number(call);
  if (n < call.positions) {
    Query<dtype>(call, n, true).backward(n);
  }
}

// Gradients of the keys and values. Entry e of a query is entry K − 1 − e of the key.
template <Dtype dtype>
__global__ void backward_of_keys(const Neighbourhood call) {
  const int64_t n = number(call);
  if (n >= call.positions) {
    return;
  }
  const int entries = call.kernel[0] * call.kernel[1], lane = threadIdx.x % call.lanes;
  const Position at = position(call, n);
  const Reach reach(call, at);
  // Calls query(n, entry, position) for all queries in reach.
  const auto each = [&](const auto& query) {
    reach.each([&](int entry, const Position& there) {
      const int64_t row = (n / call.width) + (there.y - at.y);
      query(row * call.width + there.x, entries - 1 - entry, there);
    });
  };
  const auto weight = [&](int slot, int64_t query, int entry) {
    return call.weights.data[(int64_t{slot} * entries + entry) * call.weights.slot + query * call.weights.position];
  };
  const int64_t to_value = offset(call.d_value, at);
  for (int c = 4 * lane; c < call.d_value.channels; c += 4 * call.lanes) {
    float4 sum{};
    each([&](int64_t query, int entry, const Position& there) {
      sum = sum + weight(0, query, entry) * load4(call.grad, offset(call.grad, there), c, dtype);
    });
    store4(call.d_value, to_value, c, sum, dtype);
  }
  const int64_t to_key = offset(call.d_key, at);
  for (int c = 4 * lane; c < call.d_key.channels; c += 4 * call.lanes) {
    float4 sum{};
    each([&](int64_t query, int entry, const Position& there) {
      sum = sum + (call.scale * weight(1, query, entry)) * load4(call.query, offset(call.query, there), c, dtype);
      for (int slot = 0; slot < 2 * (call.iterations - 1); ++slot) {
        const float factor = weight(slot + 2, query, entry);
        const auto vector = [&](int c) {
          return c < call.key.channels ? call.vectors.data[(int64_t{slot} * call.key.channels + c) * call.vectors.slot +
                                                           query * call.vectors.position]
                                       : 0.0f;
        };
        sum = sum + factor * float4{vector(c), vector(c + 1), vector(c + 2), vector(c + 3)};
      }
    });
    store4(call.d_key, to_key, c, sum, dtype);
  }
}

struct Block {
  int threads;
  size_t shared;
};

// Chooses the number of lanes per query.
Block arrange(Neighbourhood& call, bool backward, size_t most) {
  const bool side_by_side = call.value.stride[5] == 1 && (!call.key.data || call.key.stride[5] == 1);
  const int channels = call.key.channels > call.value.channels ? call.key.channels : call.value.channels;
  call.lanes = 1;
  while (side_by_side && call.lanes < 32 && 4 * call.lanes < channels) {
    call.lanes *= 2;
  }
  int threads = 128;
  const auto bytes = [&] { return numbers(call, backward) * (threads / call.lanes + 1) * sizeof(float); };
  for (; threads > 32 && bytes() > DEFAULT_SHARED; threads /= 2) {
  }
  for (; call.lanes < 32 && bytes() > most; call.lanes *= 2) {
  }
  return {threads, bytes()};
}

using Kernel = void (*)(Neighbourhood);

cudaError_t run(Kernel float32, Kernel float16, Kernel bfloat16, const Neighbourhood& call, const Block& block,
                cudaStream_t stream) {
  const Dtype dtype = call.value.dtype;
  const Kernel kernel = dtype == Dtype::float16 ? float16 : dtype == Dtype::bfloat16 ? bfloat16 : float32;
  const int64_t queries = block.threads / call.lanes, blocks = (call.positions + queries - 1) / queries;
  return launch(kernel, dim3(static_cast<unsigned>(blocks)), block.threads, block.shared, stream, call);
}

#define RUN(KERNEL, BLOCK) \
  run(KERNEL<Dtype::float32>, KERNEL<Dtype::float16>, KERNEL<Dtype::bfloat16>, call, BLOCK, stream)

}  // namespace

size_t shared_bytes(Neighbourhood call, bool backward, size_t most) { return arrange(call, backward, most).shared; }

cudaError_t neighbourhood(Neighbourhood call, cudaStream_t stream) {
  const Block block = arrange(call, false, most_shared());
  return RUN(forward, block);
}

cudaError_t neighbourhood_backward(Neighbourhood call, cudaStream_t stream) {
  const Block block = arrange(call, true, most_shared());
  if (call.lanes == 1) {  // adjacent lanes process adjacent positions
    call.weights.slot = call.vectors.slot = call.positions;
    call.weights.position = call.vectors.position = 1;
  } else {
    call.weights.slot = call.vectors.slot = 1;
    call.weights.position = weight_slots(call);
    call.vectors.position = vector_slots(call);
  }
  const cudaError_t error = RUN(backward_of_queries, block);
  const bool of_keys = call.d_key.data || call.d_value.data;
  return error == cudaSuccess && of_keys ? RUN(backward_of_keys, (Block{block.threads, 0})) : error;
}

}  // namespace mmattn::cuda
