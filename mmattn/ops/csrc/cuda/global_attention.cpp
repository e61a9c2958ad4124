#include "global_attention.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <list>
#include <tuple>
#include <vector>

#include "tensors.h"

namespace mmattn::cuda {
namespace {

using at::Tensor;
using std::optional;

// A call, with the tensors that it points to.
struct Operands {
  Operands(const Tensor& query, const Tensor& key, const Tensor& value, const optional<Tensor>& window,
           const optional<Tensor>& outlier, at::TensorList axis_logits, const optional<Tensor>& key_logits,
           const optional<Tensor>& key_mask, at::IntArrayRef window_size, double outlier_value, double scale,
           bool normalize, bool causal)
      : stream(c10::cuda::getCurrentCUDAStream()) {
    call.dtype = map_of(value).dtype;
    call.heads = static_cast<int>(query.size(1));
    call.maps = query.size(0) * query.size(1);
    call.queries = call.keys = 1;
    const int64_t missing = 3 - (query.dim() - 3);
    for (int64_t axis = 0; axis < 3; ++axis) {
      const bool there = axis >= missing;
      call.size[axis] = there ? static_cast<int>(query.size(2 + axis - missing)) : 1;
      call.key_size[axis] = there ? static_cast<int>(key.size(2 + axis - missing)) : 1;
      call.reach[axis] = there && window ? static_cast<int>(window_size[axis - missing] / 2) : 0;
      call.queries *= call.size[axis];
      call.keys *= call.key_size[axis];
      if (there && !axis_logits.empty()) {
        call.axis_logits[axis] = table(axis_logits[axis - missing]);
      }
    }
    call.scale = static_cast<float>(scale);
    call.causal = causal;
    call.query = rows(query);
    call.key = rows(key);
    call.value = rows(value);
    if (window) {  // a query's side by side: they are read as its keys come
      call.window = table(window->stride(-1) == 1 ? *window : window->contiguous());
      call.outlier = outlier ? map_of(outlier->unsqueeze(-1)) : Map{};
      call.outlier_number = static_cast<float>(outlier_value);
    }
    if (key_logits) {
      call.key_logits = keep(key_logits->to(at::kFloat).contiguous()).data_ptr<float>();
    }
    if (key_mask) {
      const Tensor mask = keep(key_mask->flatten(1).contiguous());
      call.key_mask = mask.data_ptr<bool>();
      call.keys_up_to = normalize ? keep(mask.cumsum(1)).data_ptr<int64_t>() : nullptr;
    }
    if (normalize) {
      call.zscore = keep(floats({3, call.maps, call.queries}, query)).data_ptr<float>();
      C10_CUDA_CHECK(window_zscore(call, stream));
    }
  }

  const Tensor& keep(const Tensor& x) { return kept.emplace_back(x); }

  Map table(const Tensor& x) {
    const Map map = map_of(x);
    return map.dtype == call.dtype || map.dtype == Dtype::float32 ? map_of(keep(x)) : map_of(keep(x.to(at::kFloat)));
  }

  // (batch, heads, *positions, channels), with channels of 0 after them, up to a multiple of 16.
  Rows rows(const Tensor& x) {
    const int64_t channels = x.size(-1), more = (16 - channels % 16) % 16;
    Tensor rows = (more ? at::constant_pad_nd(x, {0, more}) : x).contiguous();
    if (reinterpret_cast<uintptr_t>(rows.data_ptr()) % 16) {
      rows = rows.clone();
    }
    return {keep(rows).data_ptr(), static_cast<int>(channels + more)};
  }

  static Rows result(const Tensor& x) { return {x.data_ptr(), static_cast<int>(x.size(-1))}; }

  const c10::cuda::CUDAStream stream;
  GlobalAttention call{};
  std::list<Tensor> kept;
};

std::tuple<Tensor, Tensor> global_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                            const optional<Tensor>& window, const optional<Tensor>& outlier,
                                            at::TensorList axis_logits, const optional<Tensor>& key_logits,
                                            const optional<Tensor>& key_mask, at::IntArrayRef window_size,
                                            double outlier_value, double scale, bool normalize, bool causal) {
  const c10::cuda::CUDAGuard guard(query.device());
  Operands of(query, key, value, window, outlier, axis_logits, key_logits, key_mask, window_size, outlier_value, scale,
              normalize, causal);
  std::vector<int64_t> size = query.sizes().vec();
  size.back() = value.size(-1);
  const Tensor out = at::empty(size, value.options());
  size.pop_back();
  const Tensor lse = floats(size, query);
  of.call.out = Operands::result(out);
  of.call.lse = lse.data_ptr<float>();
  C10_CUDA_CHECK(attend(of.call, Sweep::forward, of.stream));
  return {out, lse};
}

std::vector<Tensor> global_attention_backward(const Tensor& grad, const Tensor& out, const Tensor& lse,
                                              const Tensor& query, const Tensor& key, const Tensor& value,
                                              const optional<Tensor>& window, const optional<Tensor>& outlier,
                                              at::TensorList axis_logits, const optional<Tensor>& key_logits,
                                              const optional<Tensor>& key_mask, at::IntArrayRef window_size,
                                              double outlier_value, double scale, bool normalize, bool causal) {
  const c10::cuda::CUDAGuard guard(query.device());
  Operands of(query, key, value, window, outlier, axis_logits, key_logits, key_mask, window_size, outlier_value, scale,
              normalize, causal);
  GlobalAttention& call = of.call;
  const auto sums = query.options().dtype(at::kFloat);
  call.grad = of.rows(grad);
  call.lse = of.keep(lse.contiguous()).data_ptr<float>();
  call.along = of.keep(grad.to(at::kFloat).mul(out).sum(-1)).data_ptr<float>();
  std::vector<Tensor> grads;
  for (const Tensor& x : {query, key, value}) {
    grads.push_back(at::empty(x.sizes(), x.options()));
  }
  call.d_query = Operands::result(grads[0]);
  call.d_key = Operands::result(grads[1]);
  call.d_value = Operands::result(grads[2]);
  // Entries without a key stay 0. The gradients of position logits are float32 first.
  const Tensor d_window = window ? at::zeros(window->sizes(), sums) : Tensor();
  Tensor d_outlier = normalize && outlier ? at::empty(outlier->sizes(), sums) : Tensor();
  call.d_window = window ? d_window.data_ptr<float>() : nullptr;
  call.d_outlier = d_outlier.defined() ? d_outlier.data_ptr<float>() : nullptr;
  std::vector<Tensor> d_axes;
  for (const Tensor& x : axis_logits) {
    d_axes.push_back(at::zeros(x.sizes(), sums));
    call.d_axis_logits[3 - axis_logits.size() + d_axes.size() - 1] = d_axes.back().data_ptr<float>();
  }
  const Tensor d_keys = key_logits ? at::empty(key_logits->sizes(), sums) : Tensor();
  call.d_key_logits = key_logits ? d_keys.data_ptr<float>() : nullptr;

  C10_CUDA_CHECK(attend(call, Sweep::queries, of.stream));
  C10_CUDA_CHECK(attend(call, Sweep::keys, of.stream));
  if (normalize) {
    C10_CUDA_CHECK(window_zscore_backward(call, of.stream));
  } else if (outlier) {
    d_outlier = d_window.sum(-1).neg_();  // a softmax's gradients sum to zero
  }
  if (window) {
    grads.push_back(d_window.to(window->scalar_type()));
  }
  if (outlier) {
    grads.push_back(d_outlier.to(outlier->scalar_type()));
  }
  for (size_t axis = 0; axis < d_axes.size(); ++axis) {
    grads.push_back(d_axes[axis].to(axis_logits[axis].scalar_type()));
  }
  if (key_logits) {
    grads.push_back(d_keys.to(key_logits->scalar_type()));
  }
  return grads;
}

}  // namespace
}  // namespace mmattn::cuda

TORCH_LIBRARY_IMPL(mmattn_native, CUDA, m) {
  m.impl("global_attention", mmattn::cuda::global_attention);
  m.impl("global_attention_backward", mmattn::cuda::global_attention_backward);
}
