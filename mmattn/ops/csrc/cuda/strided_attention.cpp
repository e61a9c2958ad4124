#include <algorithm>
#include <string_view>

#include "tiles_of.h"

namespace mmattn::cuda {
namespace {

// The division of an axis: `rows` positions of queries (or keys), and `columns` positions of keys (or queries).
Axis cut(int rows, int columns, int step, std::string_view pattern, bool rows_are_queries) {
  const auto parts = [&](int size) { return (size + step - 1) / step; };
  if (pattern == "strided") {  // one group for each remainder
    return {step, 1, step, {rows, columns}, {parts(rows), parts(columns)}, {0, 0}};
  }
  Axis axis{parts(rows), step, 1, {rows, columns}, {step, step}, {0, 0}};
  const int more = step - 1;  // additional columns on one side of the group
  if (pattern == "centred" || (pattern == "forward" && rows_are_queries)) {
    axis.length[1] += more;
  }
  if (pattern == "centred" || (pattern == "forward" && !rows_are_queries)) {
    axis.length[1] += more;
    axis.before[1] = more;
  }
  if (axis.groups == 1) {  // only positions of the map
    axis.length[0] = rows;
    axis.length[1] = std::min(columns, axis.length[1] - axis.before[1]);
    axis.before[1] = 0;
  }
  return axis;
}

Tiles call_of(const Call& given, bool rows_are_queries) {
  const Tensor &query = given.tensor("query"), &key = given.tensor("key");
  const std::vector<Tensor> offset_bias = given.tensors("offset_bias");
  const std::vector<int64_t> step = given.integers("step");
  const std::string_view pattern = given.text("pattern");
  Tiles call{};
  call.heads = static_cast<int>(query.size(1));
  call.maps = query.size(0) * query.size(1);
  call.scale = static_cast<float>(given.number("scale"));
  call.query = map_of(query);
  call.key = map_of(key);
  call.value = map_of(given.tensor("value"));
  const bool within = pattern == "centred" || pattern == "forward";  // otherwise all keys of the group
  const int64_t axes = query.dim() - 3;
  for (int64_t dim = 0; dim < axes; ++dim) {
    const int64_t axis = AXES - axes + dim;
    int size[] = {static_cast<int>(query.size(2 + dim)), static_cast<int>(key.size(2 + dim))};
    const int h = static_cast<int>(step_of(step, dim, size[0], size[1]));
    if (!rows_are_queries) {
      std::swap(size[0], size[1]);
    }
    call.axis[axis] = cut(size[0], size[1], h, pattern, rows_are_queries);
    call.low[axis] = !within ? -ANY : pattern == "forward" ? 0 : 1 - h;
    call.high[axis] = within ? h - 1 : ANY;
    if (!offset_bias.empty()) {
      call.logits.table[axis] = map_of(offset_bias[dim]);
      call.logits.unit[axis] = pattern == "strided" ? h : 1;
      call.logits.centre[axis] = pattern == "forward" ? 0 : call.logits.table[axis].channels / 2;
      call.logits.most[axis] = ANY;
    }
  }
  return call;
}

std::vector<Tensor> strided_attention(const Call& given) {
  const Tensor &query = given.tensor("query"), &value = given.tensor("value");
  const c10::cuda::CUDAGuard guard(query.device());
  Tiles call = call_of(given, true);
  std::vector<int64_t> size = query.sizes().vec();
  const Tensor lse = floats(at::IntArrayRef(size).slice(0, size.size() - 1), query);
  size.back() = value.size(-1);
  const Tensor out = empty_laid_out_as(value, size);
  call.out = map_of(out);
  call.lse = lse.data_ptr<float>();
  C10_CUDA_CHECK(tiles(call, Pass::forward, c10::cuda::getCurrentCUDAStream()));
  return {out, lse};
}

std::vector<Tensor> strided_attention_backward(const Call& given) {
  const Tensor& grad = given.tensor("grad");
  const c10::cuda::CUDAGuard guard(grad.device());
  const Tensor mean = mean_of(given), lse = given.tensor("lse").contiguous();
  const std::vector<Tensor> offset_bias = given.tensors("offset_bias");
  const int64_t axes = offset_bias.size();
  std::vector<Tensor> d_bias(axes), grads;
  bool of_offsets = false;
  for (int64_t axis = 0; axis < axes; ++axis) {
    if (given.needs("offset_bias", axis)) {
      d_bias[axis] = floats(offset_bias[axis].sizes(), grad);
      of_offsets = true;
    }
  }
  const std::tuple<Pass, const char*, bool> passes[] = {
      {Pass::query, "query", of_offsets}, {Pass::key, "key", false}, {Pass::value, "value", false}};
  for (const auto& [pass, name, of_positions] : passes) {
    if (!given.needs(name) && !of_positions) {
      continue;
    }
    const Tensor &x = given.tensor(name), to = at::empty(x.sizes(), x.options());
    Tiles call = call_of(given, pass == Pass::query);
    for (int64_t axis = 0; axis < axes; ++axis) {
      if (d_bias[axis].defined()) {
        call.logits.gradient[AXES - axes + axis] = map_of(d_bias[axis]);
      }
    }
    call.grad = map_of(grad);
    call.lse = lse.data_ptr<float>();
    call.mean = mean.data_ptr<float>();
    call.out = map_of(to);
    C10_CUDA_CHECK(tiles(call, pass, c10::cuda::getCurrentCUDAStream()));
    if (given.needs(name)) {
      grads.push_back(to);
    }
  }
  for (int64_t axis = 0; axis < axes; ++axis) {
    if (d_bias[axis].defined()) {
      grads.push_back(d_bias[axis].to(offset_bias[axis].scalar_type()));
    }
  }
  return grads;
}

}  // namespace
}  // namespace mmattn::cuda

TORCH_LIBRARY_IMPL(mmattn_cuda, CUDA, m) {
  using namespace mmattn;
  m.impl("strided_attention", on_cuda<check_strided_attention, cuda::strided_attention, cuda::can_run_tiles>());
  m.impl("strided_attention_backward",
         on_cuda<check_strided_attention, cuda::strided_attention_backward, cuda::can_run_tiles>());
}
