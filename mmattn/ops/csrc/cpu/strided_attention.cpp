#include "strided_attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "capability.h"
#include "parallel_items.h"

namespace mmattn {
namespace {

using at::Tensor;

// Queries of a row that are worked on together where each sees keys of its own.
constexpr int64_t ROW = 16;

StridedAxis axis_of(int64_t size, int64_t keys, int64_t step, c10::string_view pattern, bool last) {
  StridedAxis axis{};
  axis.size = size;
  axis.keys = keys;
  axis.step = 1;
  if (pattern == "strided") {
    axis.apart = true;
    axis.step = axis.groups = step;
    axis.length = (size + step - 1) / step;
    axis.centre = (std::max(size, keys) + step - 1) / step - 1;
    axis.entries = 2 * axis.centre + 1;
    return axis;
  }
  const bool block = pattern == "block", forward = pattern == "forward";
  axis.length = block ? step : last ? std::min(size, ROW) : 1;
  axis.groups = (size + axis.length - 1) / axis.length;
  axis.before = block || forward ? 0 : step - 1;
  axis.after = block ? 0 : step - 1;
  axis.centre = forward ? 0 : step - 1;
  axis.entries = forward ? step : 2 * step - 1;
  return axis;
}

StridedAttention call_of(const Tensor& query, const Tensor& key, const Tensor& value, at::TensorList offset_logits,
                         at::IntArrayRef step, c10::string_view pattern, double scale) {
  StridedAttention call{};
  const Tensor q = with_three_axes(query), k = with_three_axes(key);
  const int64_t missing = 3 - static_cast<int64_t>(step.size());
  call.heads = q.size(1);
  for (int64_t a = 0; a < 3; ++a) {
    call.axis[a] = axis_of(q.size(2 + a), k.size(2 + a), a < missing ? 1 : step[a - missing], pattern, a == 2);
  }
  call.masked = pattern == "centred" || pattern == "forward";
  call.scale = static_cast<float>(scale);
  call.positional = !offset_logits.empty();
  call.query = volume_of(query);
  call.key = volume_of(key);
  call.value = volume_of(value);
  return call;
}

// Logits by offset of the axes that a map has not: zeros.
std::vector<Tensor> tables_of(const Tensor& query, at::TensorList offset_logits) {
  std::vector<Tensor> tables;
  if (!offset_logits.empty()) {
    std::vector<int64_t> size(query.sizes().begin(), query.sizes().end() - 1);
    size.push_back(1);
    tables.assign(3 - offset_logits.size(), at::zeros({1}, query.options().dtype(at::kFloat)).expand(size));
    tables.insert(tables.end(), offset_logits.begin(), offset_logits.end());
  }
  return tables;
}

void run(StridedKernel kernel, const StridedAttention& call, int64_t batch, bool whole_maps) {
  int64_t groups = batch * call.heads, work = call.query.channels + call.value.channels;
  for (const StridedAxis& axis : call.axis) {
    groups *= whole_maps ? 1 : axis.groups;
    work *= whole_maps ? axis.size : axis.length;
    work *= axis.apart ? (axis.keys + axis.step - 1) / axis.step
                       : std::min(axis.keys, axis.before + axis.length + axis.after);
  }
  parallel_items(kernel, call, groups, work);
}

Tensor numbers(at::IntArrayRef positions, int64_t channels, const Tensor& like) {
  std::vector<int64_t> size(positions.begin(), positions.end());
  size.push_back(channels);
  return at::empty(size, like.options().dtype(at::kFloat));
}

std::tuple<Tensor, Tensor> strided_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                             at::TensorList offset_logits, at::IntArrayRef step,
                                             c10::string_view pattern, double scale) {
  StridedAttention call = call_of(query, key, value, offset_logits, step, pattern, scale);
  const std::vector<Tensor> tables = tables_of(query, offset_logits);
  for (size_t a = 0; a < tables.size(); ++a) {
    call.table[a] = volume_of(tables[a]);
  }
  const auto positions = query.sizes().slice(0, query.dim() - 1);
  const Tensor out = numbers(positions, value.size(-1), query), lse = numbers(positions, 1, query);
  call.out = volume_of(out);
  call.lse = volume_of(lse);
  run(cpu_capability().strided_attention, call, query.size(0), false);
  return {out.to(value.scalar_type()), lse.squeeze(-1)};
}

std::vector<Tensor> strided_attention_backward(const Tensor& grad, const Tensor& out, const Tensor& lse,
                                               const Tensor& query, const Tensor& key, const Tensor& value,
                                               at::TensorList offset_logits, at::IntArrayRef step,
                                               c10::string_view pattern, double scale) {
  StridedAttention call = call_of(query, key, value, offset_logits, step, pattern, scale);
  const std::vector<Tensor> tables = tables_of(query, offset_logits);
  const auto positions = query.sizes().slice(0, query.dim() - 1);
  const auto options = query.options().dtype(at::kFloat);
  const Tensor found = out.contiguous(), found_lse = lse.unsqueeze(-1);
  // Zeros: keys that no group sees.
  std::vector<Tensor> grads{numbers(positions, query.size(-1), query), at::zeros(key.sizes(), options),
                            at::zeros(value.sizes(), options)};
  call.grad = volume_of(grad);
  call.out = volume_of(found);
  call.lse = volume_of(found_lse);
  call.d_query = volume_of(grads[0]);
  call.d_key = volume_of(grads[1]);
  call.d_value = volume_of(grads[2]);
  for (size_t a = 0; a < tables.size(); ++a) {
    call.table[a] = volume_of(tables[a]);
    grads.push_back(numbers(positions, tables[a].size(-1), query));
    call.d_table[a] = volume_of(grads.back());
  }
  run(cpu_capability().strided_attention_backward, call, query.size(0), call.masked);
  if (!tables.empty()) {
    grads.erase(grads.begin() + 3, grads.end() - offset_logits.size());
  }
  const auto dtype_of = [&](size_t i) { return i < 3 ? query.scalar_type() : offset_logits[i - 3].scalar_type(); };
  for (size_t i = 0; i < grads.size(); ++i) {
    grads[i] = grads[i].to(dtype_of(i));
  }
  return grads;
}

}  // namespace
}  // namespace mmattn

#define ARGUMENTS "Tensor query, Tensor key, Tensor value, Tensor[] offset_logits, int[] step, str pattern, float scale"

TORCH_LIBRARY_FRAGMENT(mmattn_native, m) {
  m.def("strided_attention(" ARGUMENTS ") -> (Tensor, Tensor)");
  m.def("strided_attention_backward(Tensor grad, Tensor out, Tensor lse, " ARGUMENTS ") -> Tensor[]");
}

TORCH_LIBRARY_IMPL(mmattn_native, CPU, m) {
  m.impl("strided_attention", mmattn::strided_attention);
  m.impl("strided_attention_backward", mmattn::strided_attention_backward);
}
