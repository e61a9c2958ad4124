#include "global_attention.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/zeros.h>

#include <list>

#include "device.h"
#include "tensors.h"

namespace mmattn::cuda {
namespace {

// The number of channels of rows, including padding.
int whole(int64_t channels) { return static_cast<int>((channels + 15) / 16 * 16); }

template <Sweep... sweeps>
bool can_run_global(const Call& given) {
  if (!can_run_on(given, {"query", "key"})) {
    return false;
  }
  const Tensor &query = given.tensor("query"), &value = given.tensor("value");
  const Dtype dtype = map_of(value).dtype;
  const int channels = whole(query.size(-1)), value_channels = whole(value.size(-1));
  const size_t most = most_shared(value.get_device());
  return ((shared_bytes(dtype, channels, value_channels, sweeps) <= most) && ...);
}

// A call, and the tensors that own its memory.
struct Operands {
  explicit Operands(const Call& given) : stream(c10::cuda::getCurrentCUDAStream()) {
    const Tensor &query = given.tensor("query"), &key = given.tensor("key"), &value = given.tensor("value");
    const optional<Tensor> window = given.optional_tensor("window_bias");
    const optional<Tensor> outside = given.optional_tensor("outside_bias");
    const std::vector<Tensor> axis_bias = given.tensors("axis_bias");
    const optional<Tensor> key_bias = given.optional_tensor("key_bias");
    const optional<Tensor> key_mask = given.optional_tensor("key_mask");
    const std::vector<int64_t> window_size = given.integers("window_size");
    call.dtype = map_of(value).dtype;
    call.heads = static_cast<int>(query.size(1));
    call.maps = query.size(0) * query.size(1);
    call.queries = call.keys = 1;
    call.causal = given.flag("is_causal");
    const int64_t missing = 3 - (query.dim() - 3);
    for (int64_t axis = 0; axis < 3; ++axis) {
      const bool there = axis >= missing;
      call.size[axis] = there ? static_cast<int>(query.size(2 + axis - missing)) : 1;
      call.key_size[axis] = there ? static_cast<int>(key.size(2 + axis - missing)) : 1;
      call.before[axis] = window || call.causal ? call.key_size[axis] - call.size[axis] : 0;
      call.reach[axis] = there && window ? static_cast<int>(window_size[axis - missing] / 2) : 0;
      call.queries *= call.size[axis];
      call.keys *= call.key_size[axis];
      if (there && !axis_bias.empty()) {
        call.axis_bias[axis] = table(axis_bias[axis - missing]);
      }
    }
    call.scale = static_cast<float>(given.number("scale"));
    call.query = rows(query);
    call.key = rows(key);
    call.value = rows(value);
    if (window) {  // contiguous entries per query, because they are read in the order of keys
      call.window = table(window->stride(-1) == 1 ? *window : window->contiguous());
      call.outside = outside ? map_of(outside->unsqueeze(-1)) : Map{};
      call.outside_number = static_cast<float>(given.number("outside_value"));
    }
    if (key_bias) {
      call.key_bias = keep(key_bias->to(at::kFloat).contiguous()).data_ptr<float>();
    }
    if (key_mask) {
      call.key_mask = keep(key_mask->contiguous()).data_ptr<bool>();
    }
  }

  const Tensor& keep(const Tensor& x) { return kept.emplace_back(x); }

  Map table(const Tensor& x) {
    const Map map = map_of(x);
    return map.dtype == call.dtype || map.dtype == Dtype::float32 ? map_of(keep(x)) : map_of(keep(x.to(at::kFloat)));
  }

  // (batch, heads, *positions, channels), with channels padded with 0 to a multiple of 16.
  Rows rows(const Tensor& x) {
    const int64_t more = whole(x.size(-1)) - x.size(-1);
    Tensor rows = (more ? at::constant_pad_nd(x, {0, more}) : x).contiguous();
    if (reinterpret_cast<uintptr_t>(rows.data_ptr()) % 16) {
      rows = rows.clone();
    }
    return {keep(rows).data_ptr(), whole(x.size(-1))};
  }

  const c10::cuda::CUDAStream stream;
  GlobalAttention call{};
  std::list<Tensor> kept;
};

std::vector<Tensor> global_attention(const Call& given) {
  const Tensor &query = given.tensor("query"), &value = given.tensor("value");
  const c10::cuda::CUDAGuard guard(query.device());
  Operands of(given);
  std::vector<int64_t> size = query.sizes().vec();
  const Tensor lse = floats(at::IntArrayRef(size).slice(0, size.size() - 1), query);
  size.back() = value.size(-1);
  const Tensor out = empty_laid_out_as(value, size);
  const Tensor rows = out.is_contiguous() ? out : at::empty(size, value.options());
  of.call.out = {rows.data_ptr(), static_cast<int>(rows.size(-1))};
  of.call.lse = lse.data_ptr<float>();
  C10_CUDA_CHECK(attend(of.call, Sweep::forward, of.stream));
  return {out.is_same(rows) ? out : out.copy_(rows), lse};
}

std::vector<Tensor> global_attention_backward(const Call& given) {
  const Tensor &grad = given.tensor("grad"), &lse = given.tensor("lse"), &query = given.tensor("query");
  const c10::cuda::CUDAGuard guard(query.device());
  Operands of(given);
  GlobalAttention& call = of.call;
  const auto sums = query.options().dtype(at::kFloat);
  call.grad = of.rows(grad);
  call.lse = of.keep(lse.contiguous()).data_ptr<float>();
  call.along = of.keep(grad.to(at::kFloat).mul(given.tensor("out")).sum(-1)).data_ptr<float>();
  std::vector<Tensor> grads;
  const auto rows = [&](const char* name) -> Rows {
    const Tensor& x = given.tensor(name);
    return given.needs(name)
               ? Rows{grads.emplace_back(at::empty(x.sizes(), x.options())).data_ptr(), static_cast<int>(x.size(-1))}
               : Rows{};
  };
  call.d_query = rows("query");
  call.d_key = rows("key");
  call.d_value = rows("value");
  // Entries without a key stay 0. The gradients of position logits are accumulated in float32.
  const bool of_window = given.needs("window_bias"), of_outside = given.needs("outside_bias");
  Tensor d_window, d_key_bias;
  if (of_window || of_outside) {
    d_window = at::zeros(given.tensor("window_bias").sizes(), sums);
    call.d_window = d_window.data_ptr<float>();
  }
  const std::vector<Tensor> axis_bias = given.tensors("axis_bias");
  const int64_t axes = axis_bias.size();
  std::vector<Tensor> d_axes;
  bool of_axes = false;
  for (int64_t axis = 0; axis < axes; ++axis) {
    of_axes = of_axes || given.needs("axis_bias", axis);
  }
  for (int64_t axis = 0; of_axes && axis < axes; ++axis) {
    d_axes.push_back(at::zeros(axis_bias[axis].sizes(), sums));
    call.d_axis_bias[3 - axes + axis] = d_axes.back().data_ptr<float>();
  }
  if (given.needs("key_bias")) {
    d_key_bias = at::empty(given.tensor("key_bias").sizes(), sums);
    call.d_key_bias = d_key_bias.data_ptr<float>();
  }

  if (call.d_query.data || call.d_window || of_axes) {
    C10_CUDA_CHECK(attend(call, Sweep::queries, of.stream));
  }
  if (call.d_key.data || call.d_value.data || call.d_key_bias) {
    C10_CUDA_CHECK(attend(call, Sweep::keys, of.stream));
  }
  if (of_window) {
    grads.push_back(d_window.to(given.tensor("window_bias").scalar_type()));
  }
  if (of_outside) {  // the gradients of the logits of a softmax sum to 0
    grads.push_back(d_window.sum(-1).neg_().to(given.tensor("outside_bias").scalar_type()));
  }
  for (int64_t axis = 0; axis < axes; ++axis) {
    if (given.needs("axis_bias", axis)) {
      grads.push_back(d_axes[axis].to(axis_bias[axis].scalar_type()));
    }
  }
  if (call.d_key_bias) {
    grads.push_back(d_key_bias.to(given.tensor("key_bias").scalar_type()));
  }
  return grads;
}

}  // namespace
}  // namespace mmattn::cuda

TORCH_LIBRARY_IMPL(mmattn, CUDA, m) {
  using namespace mmattn;
  using cuda::Sweep;
  m.impl("global_attention",
         on_cuda<check_global_attention, cuda::global_attention, cuda::can_run_global<Sweep::forward>>());
  m.impl("global_attention_backward", on_cuda<check_global_attention, cuda::global_attention_backward,
                                              cuda::can_run_global<Sweep::queries, Sweep::keys>>());
}
