// The arms one after the other, the last axis first, each merged with those before it.
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "tensors.h"
#include "tiles.h"
#include "window_logits.h"

namespace mmattn::cuda {
namespace {

using at::Tensor;
using std::optional;

constexpr int LAST = AXES - 1;

// Entries of a tensor from `first` on; none are a map, too.
Map part_of(const Tensor& x, int64_t first, int64_t entries) {
  Map map = map_of(x);
  map.data = static_cast<char*>(map.data) + first * map.stride[5] * x.element_size();
  map.channels = static_cast<int>(entries);
  return map;
}

// An operator's call, and its arms.
struct Grid {
  Grid(const Tensor& query, const Tensor& key, const Tensor& value, const optional<Tensor>& window,
       const optional<Tensor>& outlier, at::IntArrayRef window_size, double outlier_value, double scale, bool normalize)
      : stream(c10::cuda::getCurrentCUDAStream()), window(window) {
    tiles.heads = static_cast<int>(query.size(1));
    tiles.maps = query.size(0) * query.size(1);
    tiles.scale = static_cast<float>(scale);
    tiles.query = map_of(query);
    tiles.key = map_of(key);
    tiles.value = map_of(value);
    positions.heads = tiles.heads;
    positions.queries = tiles.maps;
    for (int axis = 0; axis < AXES; ++axis) {
      const int64_t dim = axis - (AXES - (query.dim() - 3));
      positions.size[axis] = dim < 0 ? 1 : static_cast<int>(query.size(2 + dim));
      positions.window[axis] = dim < 0 || !window ? 1 : static_cast<int>(window_size[dim]);
      positions.queries *= positions.size[axis];
    }
    if (window) {
      positions.logits = map_of(window);
      positions.outlier = outlier ? map_of(outlier->unsqueeze(-1)) : Map{};
      positions.outlier_number = static_cast<float>(outlier_value);
      tiles.logits.outlier = positions.outlier;
      tiles.logits.outlier_number = positions.outlier_number;
    }
    if (normalize) {
      kept = floats({3, positions.queries}, query);
      tiles.logits.zscore = positions.zscore = kept.data_ptr<float>();
      C10_CUDA_CHECK(zscore(positions, stream));
    }
    for (int axis = LAST; axis >= 0; --axis) {
      if (axis == LAST || positions.size[axis] > 1) {
        arms.push_back(axis);
      }
    }
  }

  // Of the keys along an axis.
  Tiles arm(int along, const Tensor& d_window = {}) const {
    Tiles call = tiles;
    for (int axis = 0; axis < AXES; ++axis) {
      const int size = positions.size[axis];
      call.axis[axis] = axis == along ? Axis{1, 0, 1, {size, size}, {size, size}, {0, 0}}
                                      : Axis{size, 1, 1, {size, size}, {1, 1}, {0, 0}};
      call.low[axis] = -ANY;
      call.high[axis] = ANY;
    }
    call.without_self = along != LAST;
    if (window) {
      int64_t first = 0;
      for (int axis = LAST; axis > along; --axis) {
        first += entries(axis);
      }
      call.logits.table[along] = part_of(*window, first, entries(along));
      if (d_window.defined()) {
        call.logits.gradient[along] = part_of(d_window, first, entries(along));
      }
      call.logits.unit[along] = 1;
      call.logits.centre[along] = call.logits.most[along] = positions.window[along] / 2;
      call.logits.without_centre[along] = along != LAST;
    }
    return call;
  }

  int64_t entries(int axis) const { return positions.window[axis] - (axis != LAST); }

  const c10::cuda::CUDAStream stream;
  const optional<Tensor>& window;
  Tiles tiles{};
  WindowLogits positions{};
  Tensor kept;
  std::vector<int> arms;
};

std::tuple<Tensor, Tensor> grid_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                          const optional<Tensor>& window, const optional<Tensor>& outlier,
                                          at::IntArrayRef window_size, double outlier_value, double scale,
                                          bool normalize) {
  const c10::cuda::CUDAGuard guard(query.device());
  const Grid grid(query, key, value, window, outlier, window_size, outlier_value, scale, normalize);
  Tensor out = at::empty(value.sizes(), value.options()), lse = floats(query.sizes().slice(0, query.dim() - 1), query);
  Tensor lse_before = grid.arms.size() > 1 ? at::empty_like(lse) : Tensor();
  const Tensor sums = out.scalar_type() == at::kFloat || grid.arms.size() == 1 ? out : floats(out.sizes(), out);
  for (size_t n = 0; n < grid.arms.size(); ++n) {
    Tiles call = grid.arm(grid.arms[n]);
    if (n > 0) {
      std::swap(lse, lse_before);
      call.before = map_of(sums);
      call.lse_before = lse_before.data_ptr<float>();
    }
    call.lse = lse.data_ptr<float>();
    call.out = map_of(n + 1 < grid.arms.size() ? sums : out);
    C10_CUDA_CHECK(tiles(call, Pass::forward, grid.stream));
  }
  return {out, lse};
}

std::vector<Tensor> grid_attention_backward(const Tensor& grad, const Tensor& out, const Tensor& lse,
                                            const Tensor& query, const Tensor& key, const Tensor& value,
                                            const optional<Tensor>& window, const optional<Tensor>& outlier,
                                            at::IntArrayRef window_size, double outlier_value, double scale,
                                            bool normalize) {
  const c10::cuda::CUDAGuard guard(query.device());
  Grid grid(query, key, value, window, outlier, window_size, outlier_value, scale, normalize);
  const Tensor mean = grad.to(at::kFloat).mul(out).sum(-1), given = lse.contiguous();
  const Tensor d_query = floats(query.sizes(), query), d_key = floats(key.sizes(), key);
  const Tensor d_value = floats(value.sizes(), value);
  const Tensor d_window = window ? at::zeros(window->sizes(), query.options().dtype(at::kFloat)) : Tensor();
  for (const int axis : grid.arms) {
    Tiles call = grid.arm(axis, d_window);
    call.grad = map_of(grad);
    call.lse = given.data_ptr<float>();
    call.mean = mean.data_ptr<float>();
    call.add = axis != LAST;
    const std::pair<Pass, const Tensor&> passes[] = {
        {Pass::query, d_query}, {Pass::key, d_key}, {Pass::value, d_value}};
    for (const auto& [pass, to] : passes) {
      call.out = map_of(to);
      C10_CUDA_CHECK(tiles(call, pass, grid.stream));
    }
  }
  std::vector<Tensor> grads = {d_query.to(query.scalar_type()), d_key.to(key.scalar_type()),
                               d_value.to(value.scalar_type())};
  if (!window) {
    return grads;
  }
  Tensor d_outlier;
  if (normalize) {
    d_outlier = outlier ? floats(outlier->sizes(), query) : Tensor();
    grid.positions.d_logits = d_window.data_ptr<float>();
    grid.positions.d_outlier = outlier ? d_outlier.data_ptr<float>() : nullptr;
    C10_CUDA_CHECK(zscore_backward(grid.positions, grid.stream));
  } else if (outlier) {
    d_outlier = d_window.sum(-1).neg_();  // a softmax's gradients sum to zero
  }
  grads.push_back(d_window.to(window->scalar_type()));
  if (outlier) {
    grads.push_back(d_outlier.to(outlier->scalar_type()));
  }
  return grads;
}

}  // namespace
}  // namespace mmattn::cuda

TORCH_LIBRARY_IMPL(mmattn_native, CUDA, m) {
  m.impl("grid_attention", mmattn::cuda::grid_attention);
  m.impl("grid_attention_backward", mmattn::cuda::grid_attention_backward);
}
