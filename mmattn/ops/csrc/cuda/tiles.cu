// A block of 128 threads processes tiles of 32 rows × 32 columns in shared memory, and accumulates in float32 in a
// fixed order. The channels of the result are divided among the blocks of a tile, 128 each; every block computes all
// logits. The forward pass is an online softmax.
#include "tiles.h"

#include <algorithm>
#include <cmath>

#include "device.cuh"

namespace mmattn::cuda {
namespace {

constexpr int ROWS = 32, COLUMNS = 32, DEPTH = 32, WIDTH = 128, THREADS = 128;
constexpr int BY_ROW = 2, BY_COLUMN = 4;  // logits per thread, 16 rows and 8 columns apart
constexpr int OWN_ROWS = 8;               // rows of the result per warp; a thread has 4 channels of them, 32 apart

// The position of a query or a key; for a query, with its data.
struct Spot {
  int at[AXES];
  bool there;
  float outside;        // position logit of keys outside the window
  float lse, along;     // along: Σ grad · out
  int64_t table[AXES];  // offsets of its position logits
};

struct Shared {
  alignas(16) float columns[COLUMNS][WIDTH];
  alignas(16) float weights[COLUMNS][ROWS + 4];
  float row_channels[DEPTH][ROWS + 1];
  float column_channels[DEPTH][COLUMNS + 1];
  float factor[ROWS];
  Spot row[ROWS], column[COLUMNS];
};

__device__ Map of_head(Map x, int64_t batch, int64_t head) {
  const int64_t at = batch * x.stride[0] + head * x.stride[1];
  x.data = static_cast<char*>(x.data) + at * (x.dtype == Dtype::float32 ? 4 : 2);
  return x;
}

__device__ int64_t offset(const Map& x, const Spot& spot) {
  return spot.at[0] * x.stride[2] + spot.at[1] * x.stride[3] + spot.at[2] * x.stride[4];
}

template <Pass pass>
struct Tile {
  static constexpr bool ROWS_ARE_QUERIES = pass == Pass::forward || pass == Pass::query;
  static constexpr bool OF_QUERIES = pass == Pass::query;  // computes the gradients of position logits

  const Tiles& call;
  Shared& shared;
  float* sums;  // gradients of position logits in shared memory; null if they are in global memory
  int group[AXES];
  int first, counts[2];  // first row; numbers of rows and columns of the group
  int64_t map;
  int channel;  // the first channel of the block
  Map query, key, value, grad;

  __device__ Tile(const Tiles& call, bool sums_fit)
      : call(call),
        shared(*reinterpret_cast<Shared*>(shared_memory())),
        sums(sums_fit ? shared_memory() + sizeof(Shared) / sizeof(float) : nullptr),
        channel(blockIdx.y * WIDTH) {
    counts[0] = call.axis[0].length[0] * call.axis[1].length[0] * call.axis[2].length[0];
    counts[1] = call.axis[0].length[1] * call.axis[1].length[1] * call.axis[2].length[1];
    const int tiles = (counts[0] + ROWS - 1) / ROWS;
    int64_t n = blockIdx.x;
    first = n % tiles * ROWS;
    n /= tiles;
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; --axis) {
      group[axis] = n % call.axis[axis].groups;
      n /= call.axis[axis].groups;
    }
    map = n;
    query = head(call.query);
    key = head(call.key);
    value = head(call.value);
    grad = head(call.grad);
  }

  __device__ Map head(const Map& x) const { return of_head(x, map / call.heads, map % call.heads); }

  // The index of a query among all queries of the call.
  __device__ int64_t number(const Spot& spot) const {
    constexpr int side = ROWS_ARE_QUERIES ? 0 : 1;
    int64_t n = map;
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) {
      n = n * call.axis[axis].size[side] + spot.at[axis];
    }
    return n;
  }

  // Position n of the group, as a row (side 0) or as a column (side 1).
  template <int side>
  __device__ Spot spot(int n) const {
    Spot spot{};
    spot.there = n < counts[side];
#pragma unroll
    for (int a = AXES - 1; a >= 0; --a) {
      const Axis& axis = call.axis[a];
      const int at = group[a] * axis.stride + n % axis.length[side] * axis.dilation - axis.before[side];
      n /= axis.length[side];
      spot.there = spot.there && at >= 0 && at < axis.size[side];
      spot.at[a] = spot.there ? at : 0;
    }
    if (!spot.there || (side == 0) != ROWS_ARE_QUERIES) {
      return spot;
    }
    const OffsetLogits& logits = call.logits;
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) {
      const Map& table = logits.table[axis];
      spot.table[axis] = map / call.heads * table.stride[0] + map % call.heads * table.stride[1] + offset(table, spot);
    }
    spot.outside =
        logits.outside.data ? load(head(logits.outside), offset(logits.outside, spot)) : logits.outside_number;
    if (pass != Pass::forward) {
      const int64_t n_query = number(spot);
      const float lse = call.lse[n_query];
      spot.lse = lse == -INFINITY ? 0 : lse;
      spot.along = pass == Pass::value ? 0 : call.mean[n_query];
    }
    return spot;
  }

  // Whether the query i attends to the key j.
  __device__ bool reaches(const Spot& i, const Spot& j) const {
    bool there = i.there && j.there, self = true;
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) {
      const int offset = j.at[axis] - i.at[axis];
      there = there && offset >= call.low[axis] && offset <= call.high[axis];
      self = self && offset == 0;
    }
    return there && !(call.without_self && self);
  }

  // The entry of a table; −1 outside the window.
  __device__ int entry(const Spot& i, const Spot& j, int axis) const {
    const OffsetLogits& logits = call.logits;
    int units = j.at[axis] - i.at[axis];
    units = logits.unit[axis] == 1 ? units : units / logits.unit[axis];
    return abs(units) > logits.most[axis] ? -1
                                          : units + logits.centre[axis] - (logits.without_centre[axis] && units > 0);
  }

  __device__ float position_logit(const Spot& i, const Spot& j) const {
    const OffsetLogits& logits = call.logits;
    float sum = 0;
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) {
      const Map& table = logits.table[axis];
      if (table.data) {
        const int e = entry(i, j, axis);
        sum += e >= 0 ? load(table, i.table[axis] + e * table.stride[5]) : i.outside;
      }
    }
    return sum;
  }

  // Passes four channels of a position to `put`, 0 if it does not exist; a warp reads contiguous memory.
  template <int SPOTS, int CHANNELS, typename Put>
  __device__ void stage(const Map& x, const Spot* spots, int from, const Put& put) const {
    constexpr int QUADS = CHANNELS / 4;
    const bool channels_first = x.stride[5] != 1;
    for (int i = threadIdx.x; i < SPOTS * QUADS; i += THREADS) {
      const int n = channels_first ? i % SPOTS : i / QUADS, quad = channels_first ? i / SPOTS : i % QUADS;
      const int c = from + 4 * quad;
      if (c < x.channels) {
        put(n, 4 * quad, spots[n].there ? load4(x, offset(x, spots[n]), c, x.dtype) : float4{});
      }
    }
  }

  // Products of the rows of a and the columns of b over all channels.
  __device__ void multiply(const Map& a, const Map& b, float (&product)[BY_ROW][BY_COLUMN]) {
    const int row = threadIdx.x / 8, column = threadIdx.x % 8;
    for (int from = 0; from < a.channels; from += DEPTH) {
      __syncthreads();
      stage<ROWS, DEPTH>(a, shared.row, from, [&](int n, int c, float4 x) {
        shared.row_channels[c][n] = x.x;
        shared.row_channels[c + 1][n] = x.y;
        shared.row_channels[c + 2][n] = x.z;
        shared.row_channels[c + 3][n] = x.w;
      });
      stage<COLUMNS, DEPTH>(b, shared.column, from, [&](int n, int c, float4 x) {
        shared.column_channels[c][n] = x.x;
        shared.column_channels[c + 1][n] = x.y;
        shared.column_channels[c + 2][n] = x.z;
        shared.column_channels[c + 3][n] = x.w;
      });
      __syncthreads();
      const int depth = min(DEPTH, a.channels - from);
      for (int c = 0; c < depth; ++c) {
#pragma unroll
        for (int i = 0; i < BY_ROW; ++i) {
#pragma unroll
          for (int j = 0; j < BY_COLUMN; ++j) {
            product[i][j] += shared.row_channels[c][row + 16 * i] * shared.column_channels[c][column + 8 * j];
          }
        }
      }
    }
  }

  // Adds the d_logits of this tile to the gradients of position logits; one thread adds to each.
  __device__ void add_position_gradients(int columns) {
    const int row = threadIdx.x % ROWS, axis = threadIdx.x / ROWS;
    if (axis >= AXES || !call.logits.gradient[axis].data || !shared.row[row].there) {
      return;
    }
    const auto [sum, pitch] = position_sums(row, axis);
    for (int column = 0; column < columns; ++column) {
      const Spot &i = shared.row[row], &j = shared.column[column];
      if (reaches(i, j)) {
        const int e = entry(i, j, axis);
        if (e >= 0) {
          sum[e * pitch] += shared.weights[column][row];
        }
      }
    }
  }

  struct Sums {
    float* data;
    int64_t pitch;
  };

  // Sums the gradients of the logits of a row by offsets along an axis.
  __device__ Sums position_sums(int row, int axis) const {
    if (!sums) {
      return gradients(row, axis);
    }
    int before = 0;
    for (int a = 0; a < axis; ++a) {
      before += call.logits.gradient[a].channels;
    }
    return {sums + before * ROWS + row, ROWS};
  }

  __device__ Sums gradients(int row, int axis) const {
    const Map x = head(call.logits.gradient[axis]);
    return {static_cast<float*>(x.data) + offset(x, shared.row[row]), x.stride[5]};
  }

  __device__ void run() {
    const bool with_positions = OF_QUERIES && blockIdx.y == 0;
    const int row = threadIdx.x / 8, column = threadIdx.x % 8;             // of logits
    const int own = threadIdx.x / 32 * OWN_ROWS, lane = threadIdx.x % 32;  // of the result
    if (threadIdx.x < ROWS) {
      shared.row[threadIdx.x] = spot<0>(first + threadIdx.x);
    }
    __syncthreads();
    const int rows_axis = threadIdx.x / ROWS;
    if (with_positions && rows_axis < AXES && shared.row[threadIdx.x % ROWS].there) {
      const auto [sum, pitch] = position_sums(threadIdx.x % ROWS, rows_axis);
      for (int e = 0; e < (call.logits.gradient[rows_axis].data ? call.logits.gradient[rows_axis].channels : 0); ++e) {
        sum[e * pitch] = 0;
      }
    }

    float result[OWN_ROWS][WIDTH / 32] = {};
    float top[BY_ROW], total[BY_ROW];
    const Map out = head(call.out), before = head(call.before);
    const int width = min(WIDTH, call.out.channels - channel);
#pragma unroll
    for (int i = 0; i < BY_ROW; ++i) {
      const Spot& spot = shared.row[row + 16 * i];
      top[i] = pass == Pass::forward && call.lse_before && spot.there ? call.lse_before[number(spot)] : -INFINITY;
      total[i] = top[i] == -INFINITY ? 0 : 1;
    }
    if (pass == Pass::forward && call.before.data) {
      each_result(own, lane, width, [&](int i, int u, const Spot& spot) {
        result[i][u] = load(before, offset(before, spot) + (channel + lane + 32 * u) * before.stride[5]);
      });
    }

    const Map& summed = pass == Pass::forward ? value : pass == Pass::query ? key : pass == Pass::key ? query : grad;
    for (int from = 0; from < counts[1]; from += COLUMNS) {
      const int columns = min(COLUMNS, counts[1] - from);
      __syncthreads();
      if (threadIdx.x < COLUMNS) {
        shared.column[threadIdx.x] = spot<1>(from + threadIdx.x);
      }
      float logits[BY_ROW][BY_COLUMN] = {}, d_weights[BY_ROW][BY_COLUMN] = {};
      multiply(ROWS_ARE_QUERIES ? query : key, ROWS_ARE_QUERIES ? key : query, logits);
      if (pass == Pass::query || pass == Pass::key) {
        multiply(ROWS_ARE_QUERIES ? grad : value, ROWS_ARE_QUERIES ? value : grad, d_weights);
      }
      stage<COLUMNS, WIDTH>(summed, shared.column, channel,
                            [&](int n, int c, float4 x) { *reinterpret_cast<float4*>(&shared.columns[n][c]) = x; });
#pragma unroll
      for (int i = 0; i < BY_ROW; ++i) {
        const Spot& r = shared.row[row + 16 * i];
        bool attends[BY_COLUMN];
        float peak = top[i];
#pragma unroll
        for (int j = 0; j < BY_COLUMN; ++j) {
          const Spot& c = shared.column[column + 8 * j];
          const Spot &of_query = ROWS_ARE_QUERIES ? r : c, &of_key = ROWS_ARE_QUERIES ? c : r;
          attends[j] = reaches(of_query, of_key);
          if (attends[j]) {
            logits[i][j] = logits[i][j] * call.scale + position_logit(of_query, of_key);
            peak = most(peak, logits[i][j]);
          }
        }
        if (pass == Pass::forward) {
          for (int other = 4; other > 0; other /= 2) {
            peak = most(peak, __shfl_xor_sync(~0u, peak, other));
          }
          const float from_top = top[i] == -INFINITY ? 0 : __expf(top[i] - peak);
          top[i] = peak;
          peak = peak == -INFINITY ? 0 : peak;
          float sum = 0;
#pragma unroll
          for (int j = 0; j < BY_COLUMN; ++j) {
            const float weight = attends[j] ? __expf(logits[i][j] - peak) : 0;
            sum += weight;
            shared.weights[column + 8 * j][row + 16 * i] = weight;
          }
          for (int other = 4; other > 0; other /= 2) {
            sum += __shfl_xor_sync(~0u, sum, other);
          }
          total[i] = total[i] * from_top + sum;
          if (column == 0) {
            shared.factor[row + 16 * i] = from_top;
          }
        } else {
#pragma unroll
          for (int j = 0; j < BY_COLUMN; ++j) {
            const Spot& c = shared.column[column + 8 * j];
            const Spot& of_query = ROWS_ARE_QUERIES ? r : c;
            float weight = attends[j] ? __expf(logits[i][j] - of_query.lse) : 0;
            if (pass != Pass::value && attends[j]) {
              weight *= d_weights[i][j] - of_query.along;
            }
            shared.weights[column + 8 * j][row + 16 * i] = weight;
          }
        }
      }
      __syncthreads();
      if (pass == Pass::forward) {
#pragma unroll
        for (int i = 0; i < OWN_ROWS; ++i) {
          const float factor = shared.factor[own + i];
#pragma unroll
          for (int u = 0; u < WIDTH / 32; ++u) {
            result[i][u] *= factor;
          }
        }
      }
      for (int m = 0; m < columns; ++m) {
        const float4 low = *reinterpret_cast<const float4*>(&shared.weights[m][own]);
        const float4 high = *reinterpret_cast<const float4*>(&shared.weights[m][own + 4]);
        const float weight[OWN_ROWS] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int u = 0; u < WIDTH / 32; ++u) {
          if (32 * u < width) {
            const float x = lane + 32 * u < width ? shared.columns[m][lane + 32 * u] : 0;
#pragma unroll
            for (int i = 0; i < OWN_ROWS; ++i) {
              result[i][u] += weight[i] * x;
            }
          }
        }
      }
      if (with_positions) {
        add_position_gradients(columns);
      }
    }

    if (pass == Pass::forward) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < BY_ROW; ++i) {
        const Spot& spot = shared.row[row + 16 * i];
        if (column == 0) {
          shared.factor[row + 16 * i] = total[i] == 0 ? 1 : total[i];
          if (blockIdx.y == 0 && spot.there) {
            call.lse[number(spot)] = (top[i] == -INFINITY ? 0 : top[i]) + logf(total[i]);
          }
        }
      }
      __syncthreads();
    }
    each_result(own, lane, width, [&](int i, int u, const Spot& spot) {
      const int64_t at = offset(out, spot) + (channel + lane + 32 * u) * out.stride[5];
      float number = result[i][u];
      number = pass == Pass::forward ? number / shared.factor[own + i]
               : pass == Pass::value ? number
                                     : call.scale * number;
      store(out, at, call.add ? load(out, at) + number : number);
    });
    if (with_positions && sums && rows_axis < AXES && shared.row[threadIdx.x % ROWS].there) {
      const int r = threadIdx.x % ROWS;
      if (call.logits.gradient[rows_axis].data) {
        const auto [sum, pitch] = position_sums(r, rows_axis);
        const auto [to, to_pitch] = gradients(r, rows_axis);
        for (int e = 0; e < call.logits.gradient[rows_axis].channels; ++e) {
          to[e * to_pitch] = sum[e * pitch];
        }
      }
    }
  }

  // Calls visit(i, u, row) for the numbers of the result of this thread.
  template <typename Visit>
  __device__ void each_result(int own, int lane, int width, const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < OWN_ROWS; ++i) {
      const Spot& spot = shared.row[own + i];
#pragma unroll
      for (int u = 0; u < WIDTH / 32; ++u) {
        if (spot.there && lane + 32 * u < width) {
          visit(i, u, spot);
        }
      }
    }
  }
};

struct Launch {
  Tiles call;
  bool sums_fit;
};

template <Pass pass>
__global__ void __launch_bounds__(THREADS) tile(const Launch launch) {
  Tile<pass>(launch.call, launch.sums_fit).run();
}

}  // namespace

size_t tiles_shared_bytes() { return sizeof(Shared); }

cudaError_t tiles(Tiles call, Pass pass, cudaStream_t stream) {
  Launch of{call, false};
  size_t shared = sizeof(Shared);
  if (pass == Pass::query) {
    size_t entries = 0;
    for (const Map& gradient : call.logits.gradient) {
      entries += gradient.channels;
    }
    const size_t bytes = entries * ROWS * sizeof(float);
    of.sums_fit = shared + bytes <= std::min(2 * DEFAULT_SHARED, most_shared());
    shared += of.sums_fit ? bytes : 0;
  }
  int64_t blocks = call.maps, rows = 1;
  for (const Axis& axis : of.call.axis) {
    blocks *= axis.groups;
    rows *= axis.length[0];
  }
  blocks *= (rows + ROWS - 1) / ROWS;
  const dim3 grid(static_cast<unsigned>(blocks), (call.out.channels + WIDTH - 1) / WIDTH);
  switch (pass) {
    case Pass::forward:
      return launch(tile<Pass::forward>, grid, THREADS, shared, stream, of);
    case Pass::query:
      return launch(tile<Pass::query>, grid, THREADS, shared, stream, of);
    case Pass::key:
      return launch(tile<Pass::key>, grid, THREADS, shared, stream, of);
    default:
      return launch(tile<Pass::value>, grid, THREADS, shared, stream, of);
  }
}

}  // namespace mmattn::cuda
