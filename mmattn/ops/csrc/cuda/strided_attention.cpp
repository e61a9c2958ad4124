#include <torch/library.h>

#include <algorithm>
#include <string_view>

#include "tensors.h"
#include "tiles.h"

namespace mmattn::cuda {
namespace {

using at::Tensor;

// An axis of `rows` positions, which are queries or keys, of `columns` of the others.
Axis cut(int rows, int columns, int step, std::string_view pattern, bool rows_are_queries) {
  const auto parts = [&](int size) { return (size + step - 1) / step; };
  if (pattern == "strided") {  // a group for each remainder
    return {step, 1, step, {rows, columns}, {parts(rows), parts(columns)}, {0, 0}};
  }
  Axis axis{parts(rows), step, 1, {rows, columns}, {step, step}, {0, 0}};
  const int more = step - 1;  // of the columns on a side of the group's own
  if (pattern == "centred" || (pattern == "forward" && rows_are_queries)) {
    axis.length[1] += more;
  }
  if (pattern == "centred" || (pattern == "forward" && !rows_are_queries)) {
    axis.length[1] += more;
    axis.before[1] = more;
  }
  if (axis.groups == 1) {  // none but those of the map
    axis.length[0] = rows;
    axis.length[1] = std::min(columns, axis.length[1] - axis.before[1]);
    axis.before[1] = 0;
  }
  return axis;
}

Tiles call_of(const Tensor& query, const Tensor& key, const Tensor& value, at::TensorList offset_logits,
              at::IntArrayRef step, c10::string_view pattern_name, double scale, bool rows_are_queries) {
  const std::string_view pattern(pattern_name.data(), pattern_name.size());
  Tiles call{};
  call.heads = static_cast<int>(query.size(1));
  call.maps = query.size(0) * query.size(1);
  call.scale = static_cast<float>(scale);
  call.query = map_of(query);
  call.key = map_of(key);
  call.value = map_of(value);
  const bool within = pattern == "centred" || pattern == "forward";  // else all of the group
  const int64_t missing = AXES - static_cast<int64_t>(step.size());
  for (int64_t dim = 0; dim < static_cast<int64_t>(step.size()); ++dim) {
    const int64_t axis = missing + dim;
    const int h = static_cast<int>(step[dim]);
    int size[] = {static_cast<int>(query.size(2 + dim)), static_cast<int>(key.size(2 + dim))};
    if (!rows_are_queries) {
      std::swap(size[0], size[1]);
    }
    call.axis[axis] = cut(size[0], size[1], h, pattern, rows_are_queries);
    call.low[axis] = !within ? -ANY : pattern == "forward" ? 0 : 1 - h;
    call.high[axis] = within ? h - 1 : ANY;
    if (!offset_logits.empty()) {
      call.logits.table[axis] = map_of(offset_logits[dim]);
      call.logits.unit[axis] = pattern == "strided" ? h : 1;
      call.logits.centre[axis] = pattern == "forward" ? 0 : call.logits.table[axis].channels / 2;
      call.logits.most[axis] = ANY;
    }
  }
  return call;
}

std::tuple<Tensor, Tensor> strided_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                             at::TensorList offset_logits, at::IntArrayRef step,
                                             c10::string_view pattern, double scale) {
  const c10::cuda::CUDAGuard guard(query.device());
  Tiles call = call_of(query, key, value, offset_logits, step, pattern, scale, true);
  const auto positions = query.sizes().slice(0, query.dim() - 1);
  std::vector<int64_t> shape = positions.vec();
  shape.push_back(value.size(-1));
  const Tensor out = at::empty(shape, value.options()), lse = floats(positions, query);
  call.out = map_of(out);
  call.lse = lse.data_ptr<float>();
  C10_CUDA_CHECK(tiles(call, Pass::forward, c10::cuda::getCurrentCUDAStream()));
  return {out, lse};
}

std::vector<Tensor> strided_attention_backward(const Tensor& grad, const Tensor& out, const Tensor& lse,
                                               const Tensor& query, const Tensor& key, const Tensor& value,
                                               at::TensorList offset_logits, at::IntArrayRef step,
                                               c10::string_view pattern, double scale) {
  const c10::cuda::CUDAGuard guard(query.device());
  const Tensor mean = grad.to(at::kFloat).mul(out).sum(-1), given = lse.contiguous();
  std::vector<Tensor> grads;
  for (const Tensor& x : {query, key, value}) {
    grads.push_back(at::empty(x.sizes(), x.options()));
  }
  std::vector<Tensor> d_logits;
  for (const Tensor& x : offset_logits) {
    d_logits.push_back(floats(x.sizes(), x));
  }
  const Pass passes[] = {Pass::query, Pass::key, Pass::value};
  for (int n = 0; n < 3; ++n) {
    Tiles call = call_of(query, key, value, offset_logits, step, pattern, scale, passes[n] == Pass::query);
    for (size_t dim = 0; dim < d_logits.size(); ++dim) {
      call.logits.gradient[AXES - d_logits.size() + dim] = map_of(d_logits[dim]);
    }
    call.grad = map_of(grad);
    call.lse = given.data_ptr<float>();
    call.mean = mean.data_ptr<float>();
    call.out = map_of(grads[n]);
    C10_CUDA_CHECK(tiles(call, passes[n], c10::cuda::getCurrentCUDAStream()));
  }
  for (size_t dim = 0; dim < d_logits.size(); ++dim) {
    grads.push_back(d_logits[dim].to(offset_logits[dim].scalar_type()));
  }
  return grads;
}

}  // namespace
}  // namespace mmattn::cuda

TORCH_LIBRARY_IMPL(mmattn_native, CUDA, m) {
  m.impl("strided_attention", mmattn::cuda::strided_attention);
  m.impl("strided_attention_backward", mmattn::cuda::strided_attention_backward);
}
