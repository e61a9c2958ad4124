// A block owns 64 queries (forward pass, and gradients of query data) or 64 keys, and loops over the others, 32 per
// iteration; asynchronous copies load the next ones. A tile is always queries × keys. Products use tensor cores. Logits
// are written to shared memory, where position logits from the small tables are added; weights are written there in the
// type of the operands.
#include "global_attention.h"

#include <cuda_pipeline.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "tensor_cores.cuh"

namespace mmattn::cuda {
namespace {

constexpr int AXES = 3;
constexpr int OWN = 64, STREAM = 32;  // rows that a block owns, and rows that it processes per iteration
// Numbers of channels for which a kernel is compiled; the second is limited by shared memory.
constexpr int NARROW = 64;
template <typename T>
constexpr int WIDE = 512 / sizeof(T);

// The data of a query.
struct Query {
  int at[AXES];  // position among the keys
  bool there;
  float outside, lse, along;
  int64_t window, axis_bias[AXES];  // offsets of its entries
};

struct alignas(16) Key {
  int at[AXES];
  float logit;
};

__device__ int64_t start_of(const Map& x, int64_t map, int heads, const int (&at)[AXES]) {
  return map / heads * x.stride[0] + map % heads * x.stride[1] + at[0] * x.stride[2] + at[1] * x.stride[3] +
         at[2] * x.stride[4];
}

__device__ void place(int number, const int (&size)[AXES], int (&at)[AXES]) {
  at[2] = number % size[2];
  at[1] = number / size[2] % size[1];
  at[0] = number / size[2] / size[1];
}

__device__ Query query_of(const GlobalAttention& call, int64_t map, int number) {
  Query query{};
  query.there = number < call.queries;
  number = query.there ? number : 0;
  place(number, call.size, query.at);
  query.window = start_of(call.window, map, call.heads, query.at);
#pragma unroll
  for (int axis = 0; axis < AXES; ++axis) {
    query.axis_bias[axis] = start_of(call.axis_bias[axis], map, call.heads, query.at);
  }
  const Map& outside = call.outside;
  query.outside = outside.data ? load(outside, start_of(outside, map, call.heads, query.at)) : call.outside_number;
#pragma unroll
  for (int axis = 0; axis < AXES; ++axis) {
    query.at[axis] += call.before[axis];
  }
  return query;
}

// The index of a key in the window of a query; −1 if it is outside.
__device__ int entry_of(const GlobalAttention& call, const int (&query)[AXES], const int (&key)[AXES]) {
  int entry = 0;
  bool inside = true;
#pragma unroll
  for (int axis = 0; axis < AXES; ++axis) {
    const int offset = key[axis] - query[axis] + call.reach[axis], length = 2 * call.reach[axis] + 1;
    inside = inside && offset >= 0 && offset < length;
    entry = entry * length + offset;
  }
  return inside && entry < call.window.channels ? entry : -1;  // causal: entries after the centre do not exist
}

// A block for query, key and value of up to WIDTH channels.
template <typename T, int WIDTH, Sweep sweep>
struct Shape {
  static constexpr bool FORWARD = sweep == Sweep::forward, OWNS_QUERIES = sweep != Sweep::keys;
  static constexpr int THREADS = WIDTH == NARROW ? 128 : 256, WARPS = THREADS / 32;
  static constexpr int QUERIES = OWNS_QUERIES ? OWN : STREAM, KEYS = OWNS_QUERIES ? STREAM : OWN;
  static constexpr int PITCH = KEYS + 4;
  static constexpr int LANES = THREADS / QUERIES, EACH = KEYS / LANES;  // threads per query, and keys per thread

  struct Shared {
    alignas(128) float logits[QUERIES * PITCH];               // then weights, of type T
    alignas(128) float grads[FORWARD ? 1 : QUERIES * PITCH];  // of weights; then of logits, finally of type T
    alignas(128) float factor[FORWARD ? OWN * SIDE : 1];
    Query query[QUERIES];
    Key key[KEYS];
    bool attended[KEYS];  // exists, and is not masked
  };

  // The rows of the block, then two buffers of the rows of an iteration. The forward pass has no gradients.
  static size_t bytes(int query_channels, int value_channels) {
    const int content = query_channels + SKEW<T>, other = value_channels + SKEW<T>;
    const int numbers = OWN * (FORWARD ? content : content + other) + 2 * STREAM * (content + other);
    return sizeof(Shared) + numbers * sizeof(T);
  }
};

template <typename T, int WIDTH, Sweep sweep>
struct Block {
  using Of = Shape<T, WIDTH, sweep>;
  static constexpr bool FORWARD = Of::FORWARD, OWNS_QUERIES = Of::OWNS_QUERIES;
  static constexpr int THREADS = Of::THREADS, QUERIES = Of::QUERIES, KEYS = Of::KEYS, PITCH = Of::PITCH;
  static constexpr int LANES = Of::LANES, EACH = Of::EACH;
  static constexpr Dtype DTYPE = std::is_same_v<T, float>    ? Dtype::float32
                                 : std::is_same_v<T, __half> ? Dtype::float16
                                                             : Dtype::bfloat16;
  static constexpr int WEIGHTS_PITCH = PITCH * (sizeof(float) / sizeof(T));
  using OwnResult = Result<T, WIDTH, Of::WARPS>;

  const GlobalAttention& call;
  typename Of::Shared& shared;
  // Rows of queries or keys, and of gradients or values; the rows of an iteration have two buffers, `turn` apart.
  T *own[2], *stream[2];
  int turn;
  float* axis_sums;  // gradients of axis logits in shared memory; null if they are in global memory
  int64_t map;
  int first;            // first query or key of the block
  const int row, lane;  // row of this thread's query in the tile, and index among the threads of that query
  float top = -INFINITY, total = 0;  // largest logit and sum of the query
  float of_key = 0;                  // the gradient of a key's logit

  __device__ Block(const GlobalAttention& call, bool sums_fit)
      : call(call),
        shared(*reinterpret_cast<typename Of::Shared*>(shared_memory())),
        row(threadIdx.x / LANES),
        lane(threadIdx.x % LANES) {
    const int tiles = ((OWNS_QUERIES ? call.queries : call.keys) + OWN - 1) / OWN;
    map = blockIdx.x / tiles;
    first = blockIdx.x % tiles * OWN;
    T* next = reinterpret_cast<T*>(&shared + 1);
    const auto take = [&](int rows, const Rows& of) {
      T* from = next;
      next += rows * (of.channels + SKEW<T>);
      return from;
    };
    own[0] = take(OWN, call.query);
    own[1] = FORWARD ? nullptr : take(OWN, call.value);
    stream[0] = take(STREAM, call.query);
    stream[1] = take(STREAM, call.value);
    turn = next - stream[0];
    next += turn;
    axis_sums = sums_fit ? reinterpret_cast<float*>(next) : nullptr;
  }

  // Copies rows, starting at index `from`; 0 beyond the last row.
  template <int ROWS>
  __device__ void fetch(const Rows& rows, int from, int positions, T* to) const {
    constexpr int PIECE = 16 / sizeof(T);
    const int pieces = rows.channels / PIECE, pitch = rows.channels + SKEW<T>;
    const T* data = static_cast<const T*>(rows.data) + (map * positions + from) * rows.channels;
    for (int i = threadIdx.x; i < ROWS * pieces; i += THREADS) {
      const int r = i / pieces, c = i % pieces * PIECE;
      const bool there = from + r < positions;
      __pipeline_memcpy_async(to + r * pitch + c, there ? data + r * rows.channels + c : data, 16, there ? 0 : 16);
    }
  }

  __device__ void fetch_stream(int from, int buffer) const {
    const int positions = OWNS_QUERIES ? call.keys : call.queries;
    fetch<STREAM>(OWNS_QUERIES ? call.key : call.query, from, positions, stream[0] + buffer * turn);
    fetch<STREAM>(OWNS_QUERIES ? call.value : call.grad, from, positions, stream[1] + buffer * turn);
  }

  __device__ void prepare_queries(int from) {
    if (threadIdx.x >= QUERIES) {
      return;
    }
    Query query = query_of(call, map, from + threadIdx.x);
    if (query.there && !FORWARD) {
      const int64_t number = map * call.queries + from + threadIdx.x;
      const float lse = call.lse[number];
      query.lse = lse == -INFINITY ? 0 : lse;
      query.along = call.along[number];
    }
    shared.query[threadIdx.x] = query;
  }

  __device__ void prepare_keys(int from) {
    if (threadIdx.x >= KEYS) {
      return;
    }
    const int number = from + threadIdx.x;
    const bool there = number < call.keys;
    Key key{};
    place(there ? number : 0, call.key_size, key.at);
    key.logit = there && call.key_bias ? call.key_bias[map * call.keys + number] : 0;
    shared.key[threadIdx.x] = key;
    shared.attended[threadIdx.x] = there && (!call.key_mask || call.key_mask[map / call.heads * call.keys + number]);
  }

  // Products of queries and keys over the channels.
  __device__ void multiply(const T* queries, const T* keys, int channels, float* to) const {
    cuda::multiply<QUERIES, KEYS, Of::WARPS>(queries, keys, channels, to, PITCH);
  }

  // The keys of this thread: four adjacent ones, then four more after those of the other threads.
  __device__ int key_of(int n) const { return (lane + LANES * (n / 4)) * 4 + n % 4; }

  // Loads from a table of position logits; only two dtypes are supported, to limit the code size.
  __device__ static float number(const Map& table, int64_t at) {
    return table.dtype == Dtype::float32 ? load(table, at, Dtype::float32) : load(table, at, DTYPE);
  }

  // The logit of a pair from its product; −∞ if the query does not attend to the key.
  __device__ float logit(float product, const Query& query, int query_number, int key, int key_number) const {
    if (!query.there || !shared.attended[key] ||
        (call.causal && key_number > query_number + call.keys - call.queries)) {
      return -INFINITY;
    }
    float sum = call.scale * product;
    if (call.window.data) {
      float x = query.outside;
      const int e = entry(query, key);
      if (e >= 0) {
        x = number(call.window, query.window + e * call.window.stride[5]);
      }
      sum += x;
    }
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) {
      const Map& table = call.axis_bias[axis];
      if (table.data) {
        sum += number(table, query.axis_bias[axis] + shared.key[key].at[axis] * table.stride[5]);
      }
    }
    return call.key_bias ? sum + shared.key[key].logit : sum;
  }

  // Replaces the products of this thread by logits. Unrolled by four only, so that the code fits into the cache.
  __device__ void add_positions(const Query& query, int query_number, int keys_from) const {
#pragma unroll 1
    for (int n = 0; n < EACH; n += 4) {
      const int key = key_of(n);
      Four<float>& four = *reinterpret_cast<Four<float>*>(&shared.logits[row * PITCH + key]);
      Four<float> logits = four;
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        logits.x[u] = logit(logits.x[u], query, query_number, key + u, keys_from + key + u);
      }
      four = logits;
    }
  }

  __device__ int entry(const Query& query, int key) const { return entry_of(call, query.at, shared.key[key].at); }

  // Writes the numbers of this thread over float32 numbers that all threads of its query have read.
  __device__ void put(const float (&x)[EACH], float* tile) const {
    T* to = reinterpret_cast<T*>(tile + row * PITCH);
#pragma unroll
    for (int n = 0; n < EACH; n += 4) {
      *reinterpret_cast<Four<T>*>(to + key_of(n)) = {
          {rounded<T>(x[n]), rounded<T>(x[n + 1]), rounded<T>(x[n + 2]), rounded<T>(x[n + 3])}};
    }
  }

  __device__ void put_factor(float factor) const {
#pragma unroll
    for (int n = lane; n < SIDE; n += LANES) {
      shared.factor[row * SIDE + n] = factor;
    }
  }

  // Replaces logits by e^(logit − top), and computes the factor of the previous sums.
  __device__ void softmax(int keys_from) {
    const Query query = shared.query[row];
    add_positions(query, first + row, keys_from);
    float x[EACH], peak = top, sum = 0;
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
      x[n] = shared.logits[row * PITCH + key_of(n)];
      peak = most(peak, x[n]);
    }
#pragma unroll
    for (int other = 1; other < LANES; other *= 2) {
      peak = most(peak, __shfl_xor_sync(~0u, peak, other));
    }
    const float from_top = top == -INFINITY ? 0 : __expf(top - peak), zero = peak == -INFINITY ? 0 : peak;
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
      x[n] = __expf(x[n] - zero);
      sum += x[n];
    }
#pragma unroll
    for (int other = 1; other < LANES; other *= 2) {
      sum += __shfl_xor_sync(~0u, sum, other);
    }
    top = peak;
    total = total * from_top + sum;
    __syncwarp();  // all threads of the query have read
    put(x, shared.logits);
    put_factor(from_top);
  }

  // Replaces logits by weights, and gradients of weights by gradients of logits; writes gradients of position logits.
  __device__ void softmax_backward(int queries_from, int keys_from) {
    const Query query = shared.query[row];
    const int64_t number_of_query = map * call.queries + queries_from + row;
    add_positions(query, queries_from + row, keys_from);
    float weights[EACH], grads[EACH];
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
      const int key = key_of(n);
      weights[n] = __expf(shared.logits[row * PITCH + key] - query.lse);
      grads[n] = weights[n] * (shared.grads[row * PITCH + key] - query.along);
      if (OWNS_QUERIES && call.d_window && query.there && keys_from + key < call.keys) {
        if (const int e = entry(query, key); e >= 0) {
          call.d_window[number_of_query * call.window.channels + e] = grads[n];
        }
      }
    }
    if (OWNS_QUERIES ? call.d_axis_bias[AXES - 1] != nullptr : call.d_key_bias != nullptr) {
#pragma unroll
      for (int n = 0; n < EACH; ++n) {
        shared.grads[row * PITCH + key_of(n)] = grads[n];
      }
      __syncthreads();
      if (OWNS_QUERIES) {
        add_axis_gradients();
      } else if (threadIdx.x < KEYS) {
        for (int r = 0; r < QUERIES; ++r) {
          of_key += shared.grads[r * PITCH + threadIdx.x];
        }
      }
      __syncthreads();
    } else {
      __syncwarp();  // all threads of the query have read
    }
    put(grads, shared.grads);
    if (!OWNS_QUERIES) {
      put(weights, shared.logits);
    }
  }

  struct Place {
    float* data;
    int64_t pitch;
  };

  // Sums the gradients of the logits of a row by the coordinate of the key on an axis.
  __device__ Place axis_gradients(int r, int axis) const {
    if (!axis_sums) {
      const int64_t number = map * call.queries + first + r;
      return {call.d_axis_bias[axis] + number * call.key_size[axis], 1};
    }
    int before = 0;
    for (int a = 0; a < axis; ++a) {
      before += call.d_axis_bias[a] ? call.key_size[a] : 0;
    }
    return {axis_sums + before * OWN + r, OWN};
  }

  // Calls visit(row, axis, gradients); one thread visits each.
  template <typename Visit>
  __device__ void each_axis(const Visit& visit) const {
    for (int i = threadIdx.x; i < OWN * AXES; i += THREADS) {
      const int r = i % OWN, axis = i / OWN;
      if (call.d_axis_bias[axis] && shared.query[r].there) {
        visit(r, axis, axis_gradients(r, axis));
      }
    }
  }

  // Keys with the same coordinate come in runs.
  __device__ void add_axis_gradients() const {
    each_axis([&](int r, int axis, const Place& to) {
      float run = 0;
      int at = shared.key[0].at[axis];
      for (int key = 0; key < KEYS; ++key) {
        const int next = shared.key[key].at[axis];
        if (next != at) {
          to.data[at * to.pitch] += run;
          run = 0;
          at = next;
        }
        run += shared.grads[r * PITCH + key];
      }
      to.data[at * to.pitch] += run;
    });
  }

  __device__ void store(OwnResult& result, const Rows& to, int count, float factor) const {
    if (!to.data) {
      return;
    }
    const int64_t number = map * (OWNS_QUERIES ? call.queries : call.keys) + first;
    result.store(static_cast<T*>(to.data) + number * to.channels, to.channels, count, factor, shared.logits);
  }

  __device__ void run() {
    const int own_count = min(OWN, (OWNS_QUERIES ? call.queries : call.keys) - first);
    // Skip keys after all queries of the block, and queries before all of its keys.
    const int before = call.keys - call.queries;
    const int begin = call.causal && !OWNS_QUERIES ? max(0, first - before) : 0;
    const int end = call.causal && OWNS_QUERIES ? before + first + own_count : OWNS_QUERIES ? call.keys : call.queries;
    fetch<OWN>(OWNS_QUERIES ? call.query : call.key, first, OWNS_QUERIES ? call.queries : call.keys, own[0]);
    if (!FORWARD) {
      fetch<OWN>(OWNS_QUERIES ? call.grad : call.value, first, OWNS_QUERIES ? call.queries : call.keys, own[1]);
    }
    fetch_stream(begin, 0);
    __pipeline_commit();
    if (OWNS_QUERIES) {
      prepare_queries(first);
    } else {
      prepare_keys(first);
    }
    if (sweep == Sweep::queries && axis_sums) {
      __syncthreads();
      each_axis([&](int, int axis, const Place& to) {
        for (int at = 0; at < call.key_size[axis]; ++at) {
          to.data[at * to.pitch] = 0;
        }
      });
    }

    OwnResult result(FORWARD ? call.value.channels : call.query.channels);  // output, or gradient of query or key
    OwnResult d_value(sweep == Sweep::keys ? call.value.channels : 0);
    for (int from = begin, buffer = 0; from < end; from += STREAM, buffer ^= 1) {
      __pipeline_wait_prior(0);
      __syncthreads();  // this iteration's rows are loaded, and the previous ones are no longer used
      if (from + STREAM < end) {
        fetch_stream(from + STREAM, buffer ^ 1);
      }
      __pipeline_commit();
      if (OWNS_QUERIES) {
        prepare_keys(from);
      } else {
        prepare_queries(from);
      }
      T *const now = stream[0] + buffer * turn, *const other = stream[1] + buffer * turn;
      multiply(OWNS_QUERIES ? own[0] : now, OWNS_QUERIES ? now : own[0], call.query.channels, shared.logits);
      if (!FORWARD) {
        multiply(OWNS_QUERIES ? own[1] : other, OWNS_QUERIES ? other : own[1], call.value.channels, shared.grads);
      }
      __syncthreads();
      if constexpr (FORWARD) {
        softmax(from);
      } else {
        softmax_backward(OWNS_QUERIES ? first : from, OWNS_QUERIES ? from : first);
      }
      __syncthreads();
      const T *const weights = reinterpret_cast<T*>(shared.logits), *const grads = reinterpret_cast<T*>(shared.grads);
      if constexpr (FORWARD) {
        result.multiply_rows(shared.factor);
        result.template add<wmma::row_major, STREAM>(weights, WEIGHTS_PITCH, other);
      } else if constexpr (OWNS_QUERIES) {
        if (call.d_query.data) {
          result.template add<wmma::row_major, STREAM>(grads, WEIGHTS_PITCH, now);
        }
      } else {
        if (call.d_key.data) {
          result.template add<wmma::col_major, STREAM>(grads, WEIGHTS_PITCH, now);
        }
        if (call.d_value.data) {
          d_value.template add<wmma::col_major, STREAM>(weights, WEIGHTS_PITCH, other);
        }
      }
    }

    __syncthreads();
    const int64_t at = map * (OWNS_QUERIES ? call.queries : call.keys) + first;
    if (FORWARD) {
      put_factor(total == 0 ? 1 : 1 / total);
      if (lane == 0 && row < own_count) {
        call.lse[at + row] = (top == -INFINITY ? 0 : top) + logf(total);
      }
      __syncthreads();
      result.multiply_rows(shared.factor);
      store(result, call.out, own_count, 1);
    } else {
      store(result, OWNS_QUERIES ? call.d_query : call.d_key, own_count, call.scale);
    }
    if (sweep == Sweep::queries && axis_sums) {
      each_axis([&](int r, int axis, const Place& from) {
        float* to = call.d_axis_bias[axis] + (at + r) * call.key_size[axis];
        for (int n = 0; n < call.key_size[axis]; ++n) {
          to[n] = from.data[n * from.pitch];
        }
      });
    }
    if (sweep == Sweep::keys) {
      store(d_value, call.d_value, own_count, 1);
      if (call.d_key_bias && static_cast<int>(threadIdx.x) < own_count) {
        call.d_key_bias[at + threadIdx.x] = of_key;
      }
    }
  }
};

struct Launch {
  GlobalAttention call;
  bool sums_fit;
};

template <typename T, int WIDTH, Sweep sweep>
__global__ void __launch_bounds__(Shape<T, WIDTH, sweep>::THREADS) tiles_of(const __grid_constant__ Launch launch) {
  Block<T, WIDTH, sweep>(launch.call, launch.sums_fit).run();
}

template <typename T, int WIDTH, Sweep sweep>
cudaError_t start(const GlobalAttention& call, cudaStream_t stream) {
  using Of = Shape<T, WIDTH, sweep>;
  Launch of{call, false};
  size_t shared = Of::bytes(call.query.channels, call.value.channels);
  if (sweep == Sweep::queries && call.d_axis_bias[AXES - 1]) {
    size_t bytes = 0;
    for (int axis = 0; axis < AXES; ++axis) {
      bytes += call.d_axis_bias[axis] ? OWN * call.key_size[axis] * sizeof(float) : 0;
    }
    of.sums_fit = shared + bytes <= most_shared();
    shared += of.sums_fit ? bytes : 0;
  }
  const int64_t tiles = ((Of::OWNS_QUERIES ? call.queries : call.keys) + OWN - 1) / OWN;
  const dim3 blocks(static_cast<unsigned>(tiles * call.maps));
  return launch(tiles_of<T, WIDTH, sweep>, blocks, Of::THREADS, shared, stream, of);
}

// Returns with<T, WIDTH>() for the dtype and the width of a call, or `none` if it has too many channels.
template <typename Result, typename With>
Result dispatch(Dtype dtype, int query_channels, int value_channels, Result none, const With& with) {
  const int channels = query_channels > value_channels ? query_channels : value_channels;
  const auto of = [&](auto number) {
    using T = decltype(number);
    return channels <= NARROW    ? with(number, std::integral_constant<int, NARROW>())
           : channels <= WIDE<T> ? with(number, std::integral_constant<int, WIDE<T>>())
                                 : none;
  };
  switch (dtype) {
    case Dtype::float16:
      return of(__half());
    case Dtype::bfloat16:
      return of(__nv_bfloat16());
    default:
      return of(float());
  }
}

}  // namespace

size_t shared_bytes(Dtype dtype, int query_channels, int value_channels, Sweep sweep) {
  return dispatch(dtype, query_channels, value_channels, SIZE_MAX, [&](auto number, auto width) -> size_t {
    using T = decltype(number);
    return sweep == Sweep::forward   ? Shape<T, width, Sweep::forward>::bytes(query_channels, value_channels)
           : sweep == Sweep::queries ? Shape<T, width, Sweep::queries>::bytes(query_channels, value_channels)
                                     : Shape<T, width, Sweep::keys>::bytes(query_channels, value_channels);
  });
}

cudaError_t attend(const GlobalAttention& call, Sweep sweep, cudaStream_t stream) {
  return dispatch(call.dtype, call.query.channels, call.value.channels, cudaErrorInvalidValue,
                  [&](auto number, auto width) {
                    using T = decltype(number);
                    return sweep == Sweep::forward   ? start<T, width, Sweep::forward>(call, stream)
                           : sweep == Sweep::queries ? start<T, width, Sweep::queries>(call, stream)
                                                     : start<T, width, Sweep::keys>(call, stream);
                  });
}

}  // namespace mmattn::cuda
