// A thread for each query: they are few numbers beside those of the attention.
#include "window_logits.h"

#include "device.cuh"

namespace mmattn::cuda {
namespace {

constexpr float EPS = 1e-5f;
constexpr int THREADS = 128;

struct Query {
  const WindowLogits& call;
  const int64_t n;
  int at[3], count, inside = 0;
  int64_t logits, outlier_at;

  __device__ Query(const WindowLogits& call, int64_t n) : call(call), n(n) {
    int64_t map = n;
    for (int axis = 2; axis >= 0; --axis) {
      at[axis] = map % call.size[axis];
      map /= call.size[axis];
    }
    const auto start = [&](const Map& x) {
      return map / call.heads * x.stride[0] + map % call.heads * x.stride[1] + at[0] * x.stride[2] +
             at[1] * x.stride[3] + at[2] * x.stride[4];
    };
    logits = start(call.logits);
    outlier_at = start(call.outlier);
    count = call.size[0] + call.size[1] + call.size[2] - 2;
    each([&](int, bool exists) { inside += exists; });
  }

  // visit(entry, whether its key exists), the last axis first
  template <typename Visit>
  __device__ void each(const Visit& visit) const {
    int entry = 0;
    for (int axis = 2; axis >= 0; --axis) {
      const int radius = call.window[axis] / 2;
      for (int offset = -radius; offset <= radius; ++offset) {
        if (axis == 2 || offset != 0) {
          const int key = at[axis] + offset;
          visit(entry++, key >= 0 && key < call.size[axis]);
        }
      }
    }
  }

  __device__ float logit(int entry) const { return load(call.logits, logits + entry * call.logits.stride[5]); }

  __device__ float outlier() const { return call.outlier.data ? load(call.outlier, outlier_at) : call.outlier_number; }

  // Relative to the mean of the window, then two passes: E[x²] − μ² would cancel.
  __device__ void normalize() const {
    const int outside = count - inside;
    float middle = 0;
    each([&](int entry, bool exists) { middle += exists ? logit(entry) : 0; });
    middle /= max(inside, 1);
    const float far = outside ? outlier() - middle : 0;
    float mean = outside * far, square = 0;
    each([&](int entry, bool exists) { mean += exists ? logit(entry) - middle : 0; });
    mean /= count;
    each([&](int entry, bool exists) {
      const float x = exists ? logit(entry) - middle - mean : 0;
      square += x * x;
    });
    const float x = outside ? far - mean : 0;
    square += outside * x * x;
    call.zscore[n] = middle;
    call.zscore[call.queries + n] = mean;
    call.zscore[2 * call.queries + n] = rsqrtf(square / count + EPS);
  }

  // The gradients of all logits of a query sum to zero.
  __device__ void backward() const {
    const int outside = count - inside, entries = call.logits.channels;
    const float middle = call.zscore[n], mean = call.zscore[call.queries + n], rstd = call.zscore[2 * call.queries + n];
    float* grad = call.d_logits + n * entries;
    const float far = outside ? (outlier() - middle - mean) * rstd : 0;
    float d_far = 0, along = 0;
    each([&](int entry, bool exists) {
      d_far -= grad[entry];
      along += exists ? grad[entry] * ((logit(entry) - middle - mean) * rstd) : 0;
    });
    d_far = outside ? d_far : 0;
    along = (along + d_far * far) / count;
    each([&](int entry, bool exists) {
      const float x = exists ? (logit(entry) - middle - mean) * rstd : 0;
      grad[entry] = (grad[entry] - x * along) * rstd;
    });
    if (call.d_outlier) {
      call.d_outlier[n] = (d_far - outside * far * along) * rstd;
    }
  }
};

__global__ void forward(const WindowLogits call) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (n < call.queries) {
    Query(call, n).normalize();
  }
}

__global__ void backward(const WindowLogits call) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (n < call.queries) {
    Query(call, n).backward();
  }
}

dim3 blocks(const WindowLogits& call) { return dim3(static_cast<unsigned>((call.queries + THREADS - 1) / THREADS)); }

}  // namespace

cudaError_t zscore(const WindowLogits& call, cudaStream_t stream) {
  return launch(forward, blocks(call), THREADS, 0, stream, call);
}

cudaError_t zscore_backward(const WindowLogits& call, cudaStream_t stream) {
  return launch(backward, blocks(call), THREADS, 0, stream, call);
}

}  // namespace mmattn::cuda
