#include "grid_attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "capability.h"
#include "parallel_items.h"

namespace mmattn {
namespace {

using at::Tensor;
using std::optional;

constexpr int64_t MOST_NUMBERS = 1 << 20;  // that 16 lines may have for a thread to load as many together

// A call's tensors, (batch, heads, T, H, W, channels), T = 1 of a map.
struct Operands {
  Operands(const Tensor& query, const Tensor& key, const Tensor& value, const optional<Tensor>& window,
           const optional<Tensor>& outlier, at::IntArrayRef window_size, double outlier_value, double scale,
           bool normalize)
      : query(with_three_axes(query)),
        key(with_three_axes(key)),
        value(with_three_axes(value)),
        window(axes_of(window)),
        outlier(outlier ? axes_of(outlier->unsqueeze(-1)) : outlier),
        axes(query.dim() - 3),
        outlier_value(static_cast<float>(outlier_value)),
        scale(static_cast<float>(scale)),
        normalize(normalize) {
    std::copy(window_size.begin(), window_size.end(), this->window_size + 3 - window_size.size());
    if (normalize) {
      statistics = numbers(3);
      positions(cpu_capability().grid_statistics, {}, {});
    }
  }

  static optional<Tensor> axes_of(const optional<Tensor>& x) { return x ? with_three_axes(*x) : x; }

  // Numbers of each position.
  Tensor numbers(int64_t channels) const {
    const auto size = query.sizes();
    return at::empty({size[0], size[1], size[2], size[3], size[4], channels}, query.options().dtype(at::kFloat));
  }

  // Those for the last axis, each before it.
  template <typename Body>
  void for_arms(const Body& body) const {
    int64_t entry = 0;
    for (int64_t axis = 2; axis >= 3 - axes; --axis) {
      const int64_t entries = window ? window_size[axis] - (axis == 2 ? 0 : 1) : 0;
      body(axis, entry, entries);
      entry += entries;
    }
  }

  GridAttention arm(int64_t axis, int64_t entry, int64_t entries) const {
    GridAttention call{};
    const int64_t outer = axis == 0 ? 1 : 0, inner = axis == 2 ? 1 : 2;
    call.heads = query.size(1);
    call.outer = query.size(2 + outer);
    call.inner = query.size(2 + inner);
    call.length = query.size(2 + axis);
    call.first = call.own = axis == 2;
    call.scale = scale;
    call.outlier_value = outlier_value;
    call.query = lines(query, axis);
    call.key = lines(key, axis);
    call.value = lines(value, axis);
    if (window) {
      call.window_size = window_size[axis];
      call.window = entries_of(*window, axis, entry, entries);
      call.outlier = lines(outlier, axis);
      call.statistics = lines(statistics, axis);
    }
    return call;
  }

  // How the lines of an arm are shared out, once all its operands are there; runs it.
  void run(GridKernel kernel, GridAttention& call) const {
    call.fold = std::max<int64_t>(1, 16 / call.length);
    const int64_t channels = std::max(call.query.channels, call.value.channels);
    const bool apart = call.query.stride[5] != 1 || call.value.stride[5] != 1;  // the channels of a position
    const int64_t line = call.length * (2 * call.query.channels + (call.grad.data ? 2 : 1) * call.value.channels);
    const int64_t together = 16 * line > MOST_NUMBERS ? 8 : 16;
    const int64_t lines = call.own ? 1 : apart ? together : std::clamp<int64_t>(256 / channels, 1, 16);
    call.lines = (std::min(lines, call.inner) + call.fold - 1) / call.fold * call.fold;
    const int64_t items = query.size(0) * call.heads * call.outer * ((call.inner + call.lines - 1) / call.lines);
    const int64_t work = call.lines * call.length * call.length * (call.query.channels + call.value.channels);
    parallel_items(kernel, call, items, work);
  }

  void positions(GridPositionsKernel kernel, const optional<Tensor>& d_window,
                 const optional<Tensor>& d_outlier) const {
    GridPositions call{};
    call.heads = query.size(1);
    std::copy_n(query.sizes().begin() + 2, 3, call.size);
    std::copy_n(window_size, 3, call.window_size);
    call.normalize = normalize;
    call.outlier_value = outlier_value;
    call.window = volume_of(window);
    call.outlier = volume_of(outlier);
    call.statistics = volume_of(statistics);
    call.d_window = volume_of(d_window);
    call.d_outlier = volume_of(d_outlier);
    const int64_t items = query.size(0) * call.heads * call.size[0] * call.size[1];
    parallel_items(kernel, call, items, 8 * call.size[2] * call.window.channels);
  }

  static Volume lines(const optional<Tensor>& x, int64_t axis) {
    const int64_t outer = axis == 0 ? 1 : 0, inner = axis == 2 ? 1 : 2;
    return x ? volume_of(x->permute({0, 1, 2 + outer, 2 + inner, 2 + axis, 5})) : Volume{};
  }

  // Of window logits, those of an arm: there may be none.
  static Volume entries_of(const Tensor& x, int64_t axis, int64_t entry, int64_t entries) {
    Volume volume = lines(x, axis);
    volume.data = static_cast<char*>(volume.data) + entry * volume.stride[5] * x.element_size();
    volume.channels = entries;
    return volume;
  }

  const Tensor query, key, value;
  const optional<Tensor> window, outlier;
  const int64_t axes;
  int64_t window_size[3] = {1, 1, 1};
  const float outlier_value, scale;
  const bool normalize;
  optional<Tensor> statistics;
};

std::tuple<Tensor, Tensor> grid_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                          const optional<Tensor>& window, const optional<Tensor>& outlier,
                                          at::IntArrayRef window_size, double outlier_value, double scale,
                                          bool normalize) {
  const Operands operands(query, key, value, window, outlier, window_size, outlier_value, scale, normalize);
  const Tensor out = operands.numbers(value.size(-1)), peak = operands.numbers(1), total = operands.numbers(1);
  operands.for_arms([&](int64_t axis, int64_t entry, int64_t entries) {
    GridAttention call = operands.arm(axis, entry, entries);
    if (call.length == 1 && !call.own) {
      return;  // no key
    }
    call.out = Operands::lines(out, axis);
    call.peak = Operands::lines(peak, axis);
    call.total = Operands::lines(total, axis);
    operands.run(cpu_capability().grid_attention, call);
  });
  return {out.view(value.sizes()).to(value.scalar_type()),
          total.log_().add_(peak).view(query.sizes().slice(0, query.dim() - 1))};
}

std::vector<Tensor> grid_attention_backward(const Tensor& grad, const Tensor& out, const Tensor& lse,
                                            const Tensor& query, const Tensor& key, const Tensor& value,
                                            const optional<Tensor>& window, const optional<Tensor>& outlier,
                                            at::IntArrayRef window_size, double outlier_value, double scale,
                                            bool normalize) {
  const Operands operands(query, key, value, window, outlier, window_size, outlier_value, scale, normalize);
  const Tensor d_query = operands.numbers(query.size(-1)), d_key = operands.numbers(key.size(-1)),
               d_value = operands.numbers(value.size(-1)), mean = operands.numbers(1);
  const Tensor d_out = with_three_axes(grad), found = with_three_axes(out.contiguous()),
               found_lse = with_three_axes(lse.unsqueeze(-1));
  optional<Tensor> d_window, d_outlier;
  if (window) {
    d_window = operands.numbers(window->size(-1));
  }
  if (outlier) {
    d_outlier = operands.numbers(1);
  }
  operands.for_arms([&](int64_t axis, int64_t entry, int64_t entries) {
    GridAttention call = operands.arm(axis, entry, entries);
    if (call.length == 1 && !call.own && entries == 0) {
      return;
    }
    call.grad = Operands::lines(d_out, axis);
    call.out = Operands::lines(found, axis);
    call.lse = Operands::lines(found_lse, axis);
    call.mean = Operands::lines(mean, axis);
    call.d_query = Operands::lines(d_query, axis);
    call.d_key = Operands::lines(d_key, axis);
    call.d_value = Operands::lines(d_value, axis);
    if (d_window) {
      call.d_window = Operands::entries_of(*d_window, axis, entry, entries);
    }
    operands.run(cpu_capability().grid_attention_backward, call);
  });
  if (normalize || outlier) {
    operands.positions(cpu_capability().grid_positions_backward, d_window, d_outlier);
  }
  std::vector<Tensor> grads{d_query.view(query.sizes()), d_key.view(key.sizes()), d_value.view(value.sizes())};
  if (window) {
    grads.push_back(d_window->view(window->sizes()));
  }
  if (outlier) {
    grads.push_back(d_outlier->view(outlier->sizes()));
  }
  return grads;
}

}  // namespace
}  // namespace mmattn

#define ARGUMENTS                                                                                                     \
  "Tensor query, Tensor key, Tensor value, Tensor? window, Tensor? outlier, int[] window_size, float outlier_value, " \
  "float scale, bool normalize"

TORCH_LIBRARY_FRAGMENT(mmattn_native, m) {
  m.def("grid_attention(" ARGUMENTS ") -> (Tensor, Tensor)");
  m.def("grid_attention_backward(Tensor grad, Tensor out, Tensor lse, " ARGUMENTS ") -> Tensor[]");
}

TORCH_LIBRARY_IMPL(mmattn_native, CPU, m) {
  m.impl("grid_attention", mmattn::grid_attention);
  m.impl("grid_attention_backward", mmattn::grid_attention_backward);
}
