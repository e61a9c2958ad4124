// Checks that the arguments of a call fit together, so that kernels need none: those of public functions, for which
// ../*.py has other messages, and of torch.ops.mmattn.*, which can be called without these.
#pragma once

#include <algorithm>
#include <cmath>

#include "operator.h"

namespace mmattn {

using Shape = c10::SmallVector<int64_t, 6>;

// The shape of the positions of (batch, heads, *positions, channels), with other channels.
inline Shape with_channels(const Tensor& x, int64_t channels) {
  Shape shape(x.sizes().begin(), x.sizes().end());
  shape.back() = channels;
  return shape;
}

inline void check_shape(const char* name, const Tensor& x, at::IntArrayRef shape) {
  TORCH_CHECK_VALUE(x.sizes() == shape, name, " must be ", shape, "; got ", x.sizes());
}

inline void check_shape(const char* name, const optional<Tensor>& x, at::IntArrayRef shape) {
  if (x) {
    check_shape(name, *x, shape);
  }
}

// Checks that value is (batch, heads, *positions, channels), and that key differs at most in its channels.
inline void check_key(const Tensor& key, const Tensor& value, int64_t fewest, int64_t most) {
  const int64_t axes = value.dim() - 3;
  TORCH_CHECK_VALUE(fewest <= axes && axes <= most, "value must be (batch, heads, *positions, channels) with ", fewest,
                    " to ", most, " position axes; got ", value.sizes());
  TORCH_CHECK_VALUE(key.dim() == value.dim() && key.sizes().slice(0, axes + 2) == value.sizes().slice(0, axes + 2),
                    "key must share all but its channels with value, ", value.sizes(), "; got ", key.sizes());
}

inline void check_query(const Tensor& query, const Tensor& key) {
  TORCH_CHECK_VALUE(query.dim() == key.dim() && query.size(0) == key.size(0) && query.size(1) == key.size(1) &&
                        query.size(-1) == key.size(-1),
                    "query must share batch, heads and channels with key, ", key.sizes(), "; got ", query.sizes());
}

inline void check_least(const char* name, int64_t number) {
  TORCH_CHECK_VALUE(number >= 1, name, " must be at least 1; got ", number);
}

// Checks the lengths of a window, and returns their product (at most 2³², which no tensor has as channels) and sum.
inline std::pair<int64_t, int64_t> check_window(const char* name, const std::vector<int64_t>& lengths, int64_t axes) {
  std::pair<int64_t, int64_t> entries{1, 0};
  for (const int64_t k : lengths) {
    TORCH_CHECK_VALUE(k > 0 && k % 2 == 1 && k < (1 << 30), name, " must be odd lengths; got ", lengths);
    entries.first = std::min(entries.first * k, int64_t{1} << 32);
    entries.second += k;
  }
  TORCH_CHECK_VALUE(static_cast<int64_t>(lengths.size()) == axes, name, " must have ", axes, " lengths; got ", lengths);
  return entries;
}

// Checks the window of global_attention or grid_attention, which has `entries(product, sum)` biases.
template <typename Entries>
void check_window_bias(const Call& given, const Tensor& query, const Entries& entries) {
  const optional<Tensor> window = given.optional_tensor("window_bias"), outside = given.optional_tensor("outside_bias");
  TORCH_CHECK_VALUE(window || !outside, "outside_bias requires window_bias");
  const std::vector<int64_t> window_size = given.integers("window_size");
  TORCH_CHECK_VALUE(window || window_size.empty(), "window_size requires window_bias; got ", window_size);
  if (window) {
    const auto [product, sum] = check_window("window_size", window_size, query.dim() - 3);
    check_shape("window_bias", window, with_channels(query, entries(product, sum)));
    check_shape("outside_bias", outside, query.sizes().slice(0, query.dim() - 1));
  }
}

inline void check_mask(const Call& given, const Tensor& key) {
  if (const optional<Tensor> mask = given.optional_tensor("key_mask")) {
    Shape positions(key.sizes().begin() + 1, key.sizes().end() - 1);
    positions[0] = key.size(0);
    check_shape("key_mask", mask, positions);
    TORCH_CHECK_VALUE(mask->scalar_type() == at::kBool, "key_mask must be bool; got ", mask->scalar_type());
  }
}

// For a backward operator: checks what it has beside the arguments of the operator, whose output is `shape`.
inline void check_gradient(const Call& given, at::IntArrayRef shape, bool has_lse, bool keeps_outputs) {
  const optional<size_t> needed = given.needed();
  if (!needed) {
    return;
  }
  const at::IntArrayRef queries = shape.slice(0, shape.size() - 1);
  check_shape("grad", given.tensor("grad"), shape);
  const optional<Tensor> grad_lse = has_lse ? given.optional_tensor("grad_lse") : std::nullopt;
  check_shape("grad_lse", grad_lse, queries);
  if (keeps_outputs) {
    check_shape("out", given.tensor("out"), shape);
    check_shape("lse", given.tensor("lse"), queries);
  }
  const size_t tensors = given.all_tensors().size() - (keeps_outputs ? 3 : 1) - (grad_lse ? 1 : 0);
  TORCH_CHECK_VALUE(*needed == tensors, "needed must have ", tensors, " flags, one per tensor; got ", *needed);
}

inline void check_global_attention(const Call& given) {
  const Tensor &query = given.tensor("query"), &key = given.tensor("key"), &value = given.tensor("value");
  check_key(key, value, 1, 3);
  check_query(query, key);
  const bool causal = given.flag("is_causal");
  const auto size = query.sizes().slice(2, query.dim() - 3), key_size = key.sizes().slice(2, query.dim() - 3);
  TORCH_CHECK_VALUE((!causal && !given.optional_tensor("window_bias")) ||
                        (size.slice(1) == key_size.slice(1) && size[0] <= key_size[0]),
                    "window_bias and is_causal require queries at the last positions of the keys, ", key_size, "; got ",
                    size, " queries");
  check_window_bias(given, query, [&](int64_t product, int64_t) { return causal ? (product + 1) / 2 : product; });
  const std::vector<Tensor> axis_bias = given.tensors("axis_bias");
  TORCH_CHECK_VALUE(axis_bias.empty() || axis_bias.size() == size.size(), "axis_bias must be empty or hold ",
                    size.size(), " tensors, one per axis; got ", axis_bias.size());
  for (size_t axis = 0; axis < axis_bias.size(); ++axis) {
    check_shape("axis_bias", axis_bias[axis], with_channels(query, key_size[axis]));
  }
  check_shape("key_bias", given.optional_tensor("key_bias"), key.sizes().slice(0, key.dim() - 1));
  check_mask(given, key);
  check_gradient(given, with_channels(query, value.size(-1)), true, true);
}

inline void check_grid_attention(const Call& given) {
  const Tensor &query = given.tensor("query"), &key = given.tensor("key"), &value = given.tensor("value");
  check_key(key, value, 2, 3);
  check_shape("query", query, key.sizes());
  const int64_t axes = query.dim() - 3;
  check_window_bias(given, query, [&](int64_t, int64_t sum) { return sum - axes + 1; });
  check_gradient(given, value.sizes(), true, true);
}

inline void check_local_attention(const Call& given) {
  const optional<Tensor> query = given.optional_tensor("query"), key = given.optional_tensor("key");
  const Tensor& value = given.tensor("value");
  const optional<Tensor> window = given.optional_tensor("window_bias");
  const int64_t iterations = given.integer("iterations");
  TORCH_CHECK_VALUE(query.has_value() == key.has_value() && (query || window),
                    "query and key, or window_bias, must be given");
  TORCH_CHECK_VALUE(query || iterations == 1, "iterations above 1 require query and key; got ", iterations);
  check_key(key ? *key : value, value, 2, 2);
  if (query) {
    check_shape("query", query, key->sizes());
  }
  const auto [product, sum] = check_window("kernel_size", given.integers("kernel_size"), 2);
  check_shape("window_bias", window, with_channels(value, product));
  check_mask(given, value);
  check_least("dilation", given.integer("dilation"));
  check_least("iterations", iterations);
  check_gradient(given, value.sizes(), true, false);
}

// The dilation, clipped to the map, which does not affect the result.
inline int64_t dilation_of(const Call& given) {
  const Tensor& value = given.tensor("value");
  return std::min(given.integer("dilation"), std::max(value.size(2), value.size(3)));
}

inline void check_dynamic_conv(const Call& given) {
  const Tensor& value = given.tensor("value");
  check_key(value, value, 2, 2);
  const auto [product, sum] = check_window("kernel_size", given.integers("kernel_size"), 2);
  check_shape("logits", given.tensor("logits"), with_channels(value, product));
  check_least("dilation", given.integer("dilation"));
  check_gradient(given, value.sizes(), false, false);
}

// The step of an axis, clipped to the map, which does not affect the result. `steps` may be empty.
inline int64_t step_of(const std::vector<int64_t>& steps, size_t axis, int64_t size, int64_t key_size) {
  const int64_t step =
      steps.empty() ? static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(size)))) : steps[axis];
  return std::min(step, std::max(size, key_size));
}

inline void check_strided_attention(const Call& given) {
  const Tensor &query = given.tensor("query"), &key = given.tensor("key"), &value = given.tensor("value");
  check_key(key, value, 1, 3);
  check_query(query, key);
  const std::vector<Tensor> offset_bias = given.tensors("offset_bias");
  const std::vector<int64_t> steps = given.integers("step");
  const std::string_view pattern = given.text("pattern");
  const bool strided = pattern == "strided", forward = pattern == "forward";
  TORCH_CHECK_VALUE(strided || forward || pattern == "block" || pattern == "centred",
                    "pattern must be block, centred, forward or strided; got ", pattern);
  const size_t axes = query.dim() - 3;
  TORCH_CHECK_VALUE(steps.empty() || steps.size() == axes, "step must be empty or have ", axes, " lengths; got ",
                    steps);
  TORCH_CHECK_VALUE(!steps.empty() || query.sizes().slice(2, axes) == key.sizes().slice(2, axes),
                    "step is required if queries and keys differ in size; got ", query.sizes(), " and ", key.sizes());
  TORCH_CHECK_VALUE(offset_bias.empty() || offset_bias.size() == axes, "offset_bias must be empty or hold ", axes,
                    " tensors, one per axis; got ", offset_bias.size());
  for (const int64_t step : steps) {
    check_least("step", step);
  }
  for (size_t axis = 0; axis < offset_bias.size(); ++axis) {
    const int64_t size = query.size(2 + axis), key_size = key.size(2 + axis), most = std::max(size, key_size);
    const int64_t step = std::max<int64_t>(1, step_of(steps, axis, size, key_size));
    const int64_t reach = strided ? (most + step - 1) / step : step;  // offsets are −reach + 1 to reach − 1
    check_shape("offset_bias", offset_bias[axis], with_channels(query, forward ? reach : 2 * reach - 1));
  }
  check_gradient(given, with_channels(query, value.size(-1)), true, true);
}

}  // namespace mmattn
