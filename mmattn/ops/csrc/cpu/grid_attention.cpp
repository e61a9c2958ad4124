#include "grid_attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "../checks.h"
#include "../operator.h"
#include "capability.h"
#include "parallel_items.h"

namespace mmattn::grid_attention_cpu {
namespace {

constexpr int64_t MOST_NUMBERS = 1 << 20;  // a thread loads 16 lines together if they have at most this many numbers

// The tensors of a call; a 2-D map has T = 1.
struct Operands {
  explicit Operands(const Call& given)
      : query(given.tensor("query")),
        key(given.tensor("key")),
        value(given.tensor("value")),
        window(given.optional_tensor("window_bias")),
        outside(given.optional_tensor("outside_bias")),
        axes(query.dim() - 3),
        outside_value(static_cast<float>(given.number("outside_value"))),
        scale(static_cast<float>(given.number("scale"))) {
    sizes_of(query, size);
    const std::vector<int64_t> sizes = given.integers("window_size");
    std::copy(sizes.begin(), sizes.end(), window_size + 3 - sizes.size());
  }

  // One number per position.
  Tensor numbers(int64_t channels) const {
    return floats({query.size(0), query.size(1), size[0], size[1], size[2], channels});
  }

  // Memory for the output, with the layout of the value if its channels are contiguous, as the kernel accumulates them.
  // Converting between layouts takes as long as criss-cross attention itself.
  static Tensor output(const Tensor& value) {
    return value.stride(-1) == 1 ? empty_laid_out_as(value, value.sizes(), at::kFloat) : floats(value.sizes());
  }

  // Calls body(axis, entry, entries) for each arm, the last axis first: its first window entry, and their number.
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
    call.outer = size[outer];
    call.inner = size[inner];
    call.length = size[axis];
    call.first = call.own = axis == 2;
    call.scale = scale;
    call.outside_value = outside_value;
    call.query = lines(volume_of(query), axis);
    call.key = lines(volume_of(key), axis);
    call.value = lines(volume_of(value), axis);
    if (window) {
      call.window_size = window_size[axis];
      call.window = entries_of(*window, axis, entry, entries);
      call.outside = outside ? lines(numbers_of(*outside), axis) : Volume{};
    }
    return call;
  }

  // Chooses how the lines of an arm are divided among items, and runs it. All operands must be set.
  void run(GridKernel kernel, GridAttention& call) const {
    call.fold = std::max<int64_t>(1, 16 / call.length);
    const int64_t channels = std::max(call.query.channels, call.value.channels);
    const bool apart = call.query.stride[5] != 1 || call.value.stride[5] != 1;  // channels are not contiguous
    const int64_t line = call.length * (2 * call.query.channels + (call.grad.data ? 2 : 1) * call.value.channels);
    const int64_t together = 16 * line > MOST_NUMBERS ? 8 : 16;
    const int64_t lines = call.own ? 1 : apart ? together : std::clamp<int64_t>(256 / channels, 1, 16);
    call.lines = (std::min(lines, call.inner) + call.fold - 1) / call.fold * call.fold;
    const int64_t items = query.size(0) * call.heads * call.outer * ((call.inner + call.lines - 1) / call.lines);
    const int64_t work = call.lines * call.length * call.length * (call.query.channels + call.value.channels);
    parallel_items(kernel, call, items, work);
  }

  // Reorders the axes of a volume for an arm: the two other axes, then the axis of the lines.
  static Volume lines(Volume volume, int64_t axis) {
    const int64_t outer = axis == 0 ? 1 : 0, inner = axis == 2 ? 1 : 2;
    const int64_t stride[] = {volume.stride[2 + outer], volume.stride[2 + inner], volume.stride[2 + axis]};
    std::copy_n(stride, 3, volume.stride + 2);
    return volume;
  }
  static Volume lines(const optional<Tensor>& x, int64_t axis) { return lines(volume_of(x), axis); }

  // The window logits of an arm; it may have none.
  static Volume entries_of(const Tensor& x, int64_t axis, int64_t entry, int64_t entries) {
    Volume volume = lines(volume_of(x), axis);
    volume.data = static_cast<char*>(volume.data) + entry * volume.stride[5] * x.element_size();
    volume.channels = entries;
    return volume;
  }

  const Tensor query, key, value;
  const optional<Tensor> window, outside;
  const int64_t axes;
  int64_t size[3];
  int64_t window_size[3] = {1, 1, 1};
  const float outside_value, scale;
};

std::vector<Tensor> grid_attention(const Call& given) {
  const Operands operands(given);
  const Tensor &query = given.tensor("query"), &value = given.tensor("value");
  const Tensor out = operands.output(value), peak = operands.numbers(1), total = operands.numbers(1);
  operands.for_arms([&](int64_t axis, int64_t entry, int64_t entries) {
    GridAttention call = operands.arm(axis, entry, entries);
    if (call.length == 1 && !call.own) {
      return;  // the arm has no key
    }
    call.out = Operands::lines(volume_of(out), axis);
    call.peak = Operands::lines(volume_of(peak), axis);
    call.total = Operands::lines(volume_of(total), axis);
    operands.run(cpu_capability().grid_attention, call);
  });
  return {out.to(value.scalar_type()), total.log_().add_(peak).view(query.sizes().slice(0, query.dim() - 1))};
}

std::vector<Tensor> grid_attention_backward(const Call& given) {
  const Operands operands(given);
  const auto gradient = [&](const char* name) {
    const optional<Tensor> x = given.needs(name) ? given.optional_tensor(name) : std::nullopt;
    return x ? optional<Tensor>(operands.numbers(x->size(-1))) : std::nullopt;
  };
  const optional<Tensor> d_query = gradient("query"), d_key = gradient("key"), d_value = gradient("value");
  const bool d_outside = given.needs("outside_bias");
  const optional<Tensor> d_window = d_outside || given.needs("window_bias")
                                        ? optional<Tensor>(operands.numbers(operands.window->size(-1)))
                                        : std::nullopt;
  const Tensor mean = operands.numbers(1);
  operands.for_arms([&](int64_t axis, int64_t entry, int64_t entries) {
    GridAttention call = operands.arm(axis, entry, entries);
    if (call.length == 1 && !call.own && entries == 0) {
      return;
    }
    call.grad = Operands::lines(volume_of(given.tensor("grad")), axis);
    call.out = Operands::lines(volume_of(given.tensor("out")), axis);
    call.grad_lse = Operands::lines(numbers_of(given.optional_tensor("grad_lse")), axis);
    call.lse = Operands::lines(numbers_of(given.tensor("lse")), axis);
    call.mean = Operands::lines(volume_of(mean), axis);
    call.d_query = Operands::lines(d_query, axis);
    call.d_key = Operands::lines(d_key, axis);
    call.d_value = Operands::lines(d_value, axis);
    if (d_window) {
      call.d_window = Operands::entries_of(*d_window, axis, entry, entries);
    }
    operands.run(cpu_capability().grid_attention_backward, call);
  });
  std::vector<Tensor> grads;
  const auto give = [&](const char* name, const Tensor& x) {
    const Tensor like = *given.optional_tensor(name);
    grads.push_back(x.view(like.sizes()).to(like.scalar_type()));
  };
  for (const auto& [name, x] : {std::pair("query", &d_query), std::pair("key", &d_key), std::pair("value", &d_value)}) {
    if (*x) {
      give(name, **x);
    }
  }
  if (given.needs("window_bias")) {
    give("window_bias", *d_window);
  }
  if (d_outside) {
    give("outside_bias", gradient_outside(given, d_window->view(operands.window->sizes())));
  }
  return grads;
}

bool can_run(const Call& given) { return can_run_on(given); }

}  // namespace

TORCH_LIBRARY_IMPL(mmattn, CPU, m) {
  m.impl("grid_attention", on_cpu<check_grid_attention, grid_attention, can_run>());
  m.impl("grid_attention_backward", on_cpu<check_grid_attention, grid_attention_backward, can_run>());
}

}  // namespace mmattn::grid_attention_cpu
