// Computes the arms in sequence, the last axis first; each is merged with the previous ones.
#include <ATen/ops/zeros.h>

#include "tiles_of.h"

namespace mmattn::cuda {
namespace {

constexpr int LAST = AXES - 1;

// A view of entries of a tensor, starting at `first`; it may be empty.
Map part_of(const Tensor& x, int64_t first, int64_t entries) {
  Map map = map_of(x);
  map.data = static_cast<char*>(map.data) + first * map.stride[5] * x.element_size();
  map.channels = static_cast<int>(entries);
  return map;
}

// A call of the operator, and its arms.
struct Grid {
  explicit Grid(const Call& given)
      : stream(c10::cuda::getCurrentCUDAStream()), window_bias(given.optional_tensor("window_bias")) {
    const Tensor& query = given.tensor("query");
    tiles.heads = static_cast<int>(query.size(1));
    tiles.maps = query.size(0) * query.size(1);
    tiles.scale = static_cast<float>(given.number("scale"));
    tiles.query = map_of(query);
    tiles.key = map_of(given.tensor("key"));
    tiles.value = map_of(given.tensor("value"));
    if (window_bias) {
      const optional<Tensor> outside = given.optional_tensor("outside_bias");
      tiles.logits.outside = outside ? map_of(outside->unsqueeze(-1)) : Map{};
      tiles.logits.outside_number = static_cast<float>(given.number("outside_value"));
    }
    const std::vector<int64_t> window_size = given.integers("window_size");
    for (int axis = 0; axis < AXES; ++axis) {
      const int64_t dim = axis - (AXES - (query.dim() - 3));
      size[axis] = dim < 0 ? 1 : static_cast<int>(query.size(2 + dim));
      window[axis] = dim < 0 || !window_bias ? 1 : static_cast<int>(window_size[dim]);
    }
    for (int axis = LAST; axis >= 0; --axis) {
      if (axis == LAST || size[axis] > 1) {
        arms.push_back(axis);
      }
    }
  }

  // The arm of an axis.
  Tiles arm(int along, const Tensor& d_window = {}) const {
    Tiles call = tiles;
    for (int axis = 0; axis < AXES; ++axis) {
      const int side = size[axis];
      call.axis[axis] = axis == along ? Axis{1, 0, 1, {side, side}, {side, side}, {0, 0}}
                                      : Axis{side, 1, 1, {side, side}, {1, 1}, {0, 0}};
      call.low[axis] = -ANY;
      call.high[axis] = ANY;
    }
    call.without_self = along != LAST;
    if (window_bias) {
      int64_t first = 0;
      for (int axis = LAST; axis > along; --axis) {
        first += entries(axis);
      }
      call.logits.table[along] = part_of(*window_bias, first, entries(along));
      if (d_window.defined()) {
        call.logits.gradient[along] = part_of(d_window, first, entries(along));
      }
      call.logits.unit[along] = 1;
      call.logits.centre[along] = call.logits.most[along] = window[along] / 2;
      call.logits.without_centre[along] = along != LAST;
    }
    return call;
  }

  int64_t entries(int axis) const { return window[axis] - (axis != LAST); }

  const c10::cuda::CUDAStream stream;
  const optional<Tensor> window_bias;
  Tiles tiles{};
  int size[AXES], window[AXES];
  std::vector<int> arms;
};

std::vector<Tensor> grid_attention(const Call& given) {
  const Tensor &query = given.tensor("query"), &value = given.tensor("value");
  const c10::cuda::CUDAGuard guard(query.device());
  const Grid grid(given);
  const Tensor out =
      value.stride(-1) == 1 ? empty_laid_out_as(value, value.sizes()) : at::empty(value.sizes(), value.options());
  Tensor lse = floats(query.sizes().slice(0, query.dim() - 1), query);
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

std::vector<Tensor> grid_attention_backward(const Call& given) {
  const Tensor &grad = given.tensor("grad"), &query = given.tensor("query");
  const c10::cuda::CUDAGuard guard(query.device());
  const Grid grid(given);
  const Tensor mean = mean_of(given), lse = given.tensor("lse").contiguous();
  const bool of_window = given.needs("window_bias"), of_outside = given.needs("outside_bias");
  Tensor d_window;
  if (of_window || of_outside) {
    d_window = at::zeros(grid.window_bias->sizes(), query.options().dtype(at::kFloat));
  }
  const std::tuple<Pass, const char*, bool> passes[] = {
      {Pass::query, "query", d_window.defined()}, {Pass::key, "key", false}, {Pass::value, "value", false}};
  std::vector<Tensor> grads;
  for (const auto& [pass, name, of_positions] : passes) {
    if (!given.needs(name) && !of_positions) {
      continue;
    }
    const Tensor &x = given.tensor(name), sum = floats(x.sizes(), x);
    for (const int axis : grid.arms) {
      Tiles call = grid.arm(axis, d_window);
      call.grad = map_of(grad);
      call.lse = lse.data_ptr<float>();
      call.mean = mean.data_ptr<float>();
      call.add = axis != LAST;
      call.out = map_of(sum);
      C10_CUDA_CHECK(tiles(call, pass, grid.stream));
    }
    if (given.needs(name)) {
      grads.push_back(sum.to(x.scalar_type()));
    }
  }
  if (of_window) {
    grads.push_back(d_window.to(grid.window_bias->scalar_type()));
  }
  if (of_outside) {
    grads.push_back(gradient_outside(given, d_window).to(given.tensor("outside_bias").scalar_type()));
  }
  return grads;
}

}  // namespace
}  // namespace mmattn::cuda

TORCH_LIBRARY_IMPL(mmattn_cuda, CUDA, m) {
  using namespace mmattn;
  m.impl("grid_attention", on_cuda<check_grid_attention, cuda::grid_attention, cuda::can_run_tiles>());
  m.impl("grid_attention_backward",
         on_cuda<check_grid_attention, cuda::grid_attention_backward, cuda::can_run_tiles>());
}
