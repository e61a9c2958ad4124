#include "strided_attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "../checks.h"
#include "../operator.h"
#include "capability.h"
#include "parallel_items.h"

namespace mmattn::strided_attention_cpu {
namespace {

// Queries of a row that are processed together if their keys differ.
constexpr int64_t ROW = 16;

StridedAxis axis_of(int64_t size, int64_t keys, int64_t step, std::string_view pattern, bool last) {
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

StridedAttention call_of(const Call& given) {
  StridedAttention call{};
  const Tensor &query = given.tensor("query"), &key = given.tensor("key");
  int64_t size[3], key_size[3];
  sizes_of(query, size);
  sizes_of(key, key_size);
  const std::string_view pattern = given.text("pattern");
  const std::vector<int64_t> steps = given.integers("step");
  const int64_t missing = 3 - (query.dim() - 3);
  call.heads = query.size(1);
  for (int64_t a = 0; a < 3; ++a) {
    const int64_t step = a < missing ? 1 : step_of(steps, a - missing, size[a], key_size[a]);
    call.axis[a] = axis_of(size[a], key_size[a], step, pattern, a == 2);
  }
  call.masked = pattern == "centred" || pattern == "forward";
  call.scale = static_cast<float>(given.number("scale"));
  call.positional = !given.tensors("offset_bias").empty();
  call.query = volume_of(query);
  call.key = volume_of(key);
  call.value = volume_of(given.tensor("value"));
  return call;
}

// The biases of all three axes; those of missing axes are zeros.
std::vector<Tensor> tables_of(const Tensor& query, at::TensorList offset_bias) {
  std::vector<Tensor> tables;
  if (!offset_bias.empty()) {
    std::vector<int64_t> size(query.sizes().begin(), query.sizes().end() - 1);
    size.push_back(1);
    tables.assign(3 - offset_bias.size(), at::zeros({1}, query.options().dtype(at::kFloat)).expand(size));
    tables.insert(tables.end(), offset_bias.begin(), offset_bias.end());
  }
  return tables;
}

// The approximate number of multiplications of a group.
int64_t work_of(const StridedAttention& call) {
  int64_t work = call.query.channels + call.value.channels;
  for (const StridedAxis& axis : call.axis) {
    work *= axis.length;
    work *= axis.apart ? (axis.keys + axis.step - 1) / axis.step
                       : std::min(axis.keys, axis.before + axis.length + axis.after);
  }
  return work;
}

int64_t groups_of(const StridedAttention& call) {
  return call.axis[0].groups * call.axis[1].groups * call.axis[2].groups;
}

// Groups that share keys add to the same gradients. To avoid data races, the groups are divided into slabs as thick as
// their reach; the even slabs run in parallel first, then the odd ones. The axis with the most slabs is used.
void run_in_slabs(StridedKernel kernel, StridedAttention& call, int64_t batch) {
  for (int a = 0; a < 3; ++a) {
    const StridedAxis& axis = call.axis[a];
    const int64_t groups = std::max<int64_t>(1, (axis.before + axis.after + axis.length - 1) / axis.length);
    const int64_t slabs = (axis.groups + groups - 1) / groups;
    if (slabs > call.slabs) {
      call.slab_axis = a;
      call.slab = groups;
      call.slabs = slabs;
    }
  }
  for (call.parity = 0; call.parity < std::min<int64_t>(2, call.slabs); ++call.parity) {
    const int64_t items = batch * call.heads * ((call.slabs + 1 - call.parity) / 2);
    parallel_items(kernel, call, items, work_of(call) * groups_of(call) / call.slabs);
  }
}

Tensor numbers(at::IntArrayRef positions, int64_t channels) {
  std::vector<int64_t> size(positions.begin(), positions.end());
  size.push_back(channels);
  return floats(size);
}

std::vector<Tensor> strided_attention(const Call& given) {
  StridedAttention call = call_of(given);
  const Tensor &query = given.tensor("query"), &value = given.tensor("value");
  const std::vector<Tensor> tables = tables_of(query, given.tensors("offset_bias"));
  for (size_t a = 0; a < tables.size(); ++a) {
    call.table[a] = volume_of(tables[a]);
  }
  const auto positions = query.sizes().slice(0, query.dim() - 1);
  std::vector<int64_t> size(positions.begin(), positions.end());
  size.push_back(value.size(-1));
  // Write directly to the output if its channels are contiguous.
  const bool direct = value.scalar_type() == at::kFloat && value.stride(-1) == 1;
  const Tensor out = direct ? empty_laid_out_as(value, size) : floats(size), lse = numbers(positions, 1);
  call.out = volume_of(out);
  call.lse = volume_of(lse);
  parallel_items(cpu_capability().strided_attention, call, query.size(0) * call.heads * groups_of(call), work_of(call));
  return {direct ? out : laid_out_as(value, out), lse.squeeze(-1)};
}

std::vector<Tensor> strided_attention_backward(const Call& given) {
  StridedAttention call = call_of(given);
  const Tensor& query = given.tensor("query");
  const std::vector<Tensor> offset_bias = given.tensors("offset_bias"), tables = tables_of(query, offset_bias);
  const auto positions = query.sizes().slice(0, query.dim() - 1);
  call.grad = volume_of(given.tensor("grad"));
  call.out = volume_of(given.tensor("out"));
  call.lse = numbers_of(given.tensor("lse"));
  call.grad_lse = numbers_of(given.optional_tensor("grad_lse"));
  std::vector<Tensor> grads;
  if (given.needs("query")) {
    call.d_query = volume_of(grads.emplace_back(numbers(positions, query.size(-1))));
  }
  // Zeros, because some keys belong to no group.
  const auto sum = [&](const char* name) {
    const Tensor& x = given.tensor(name);
    return given.needs(name) ? volume_of(grads.emplace_back(at::zeros(x.sizes(), x.options().dtype(at::kFloat))))
                             : Volume{};
  };
  call.d_key = sum("key");
  call.d_value = sum("value");
  const size_t missing = tables.size() - offset_bias.size();
  for (size_t a = 0; a < tables.size(); ++a) {
    call.table[a] = volume_of(tables[a]);
    if (a >= missing && given.needs("offset_bias", a - missing)) {
      call.d_table[a] = volume_of(grads.emplace_back(numbers(positions, tables[a].size(-1))));
    }
  }
  if (call.masked) {
    run_in_slabs(cpu_capability().strided_attention_backward, call, query.size(0));
  } else {
    parallel_items(cpu_capability().strided_attention_backward, call, query.size(0) * call.heads * groups_of(call),
                   work_of(call));
  }
  size_t next = 0;
  const auto cast = [&](bool needed, const Tensor& like) {
    if (needed) {
      grads[next] = grads[next].to(like.scalar_type());
      ++next;
    }
  };
  for (const char* name : {"query", "key", "value"}) {
    cast(given.needs(name), given.tensor(name));
  }
  for (size_t a = 0; a < offset_bias.size(); ++a) {
    cast(given.needs("offset_bias", a), offset_bias[a]);
  }
  return grads;
}

bool can_run(const Call& given) { return can_run_on(given); }

}  // namespace

TORCH_LIBRARY_IMPL(mmattn, CPU, m) {
  m.impl("strided_attention", on_cpu<check_strided_attention, strided_attention, can_run>());
  m.impl("strided_attention_backward", on_cpu<check_strided_attention, strided_attention_backward, can_run>());
}

}  // namespace mmattn::strided_attention_cpu
