#include "operator.h"

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>

namespace mmattn {

const c10::IValue& Call::get(const char* name) const {
  for (size_t tried = 0; tried < names.size(); ++tried) {
    const size_t index = next;
    next = (next + 1) % names.size();
    if (names[index].name() == name) {
      return values[index];
    }
  }
  TORCH_INTERNAL_ASSERT(false, "the operator has no argument ", name);
}

std::vector<Tensor> Call::all_tensors() const {
  std::vector<Tensor> found;
  for (size_t i = 0; i < names.size(); ++i) {
    if (values[i].isTensor()) {
      found.push_back(values[i].toTensor());
    } else if (values[i].isTensorList()) {
      for (const Tensor& x : values[i].toTensorVector()) {
        found.push_back(x);
      }
    }
  }
  return found;
}

optional<size_t> Call::needed() const {
  return names.back().name() == "needed" ? optional<size_t>(get("needed").toBoolList().size()) : std::nullopt;
}

bool Call::needs(const char* name, int64_t item) const {
  const auto tensors = [](const c10::IValue& x) {
    return x.isTensor() ? 1 : x.isTensorList() ? static_cast<int64_t>(x.toTensorList().size()) : 0;
  };
  const c10::List<bool> needed = get("needed").toBoolList();
  // One flag per tensor among the arguments of the operator, which are the last arguments of its backward operator.
  int64_t flag = needed.size() + item;
  for (size_t i = names.size(); i-- > 0;) {
    flag -= tensors(values[i]);
    if (names[i].name() == name) {
      return tensors(values[i]) > 0 && needed.get(flag);
    }
  }
  TORCH_INTERNAL_ASSERT(false, "the operator has no argument ", name);
}

Tensor empty_laid_out_as(const Tensor& like, at::IntArrayRef sizes, optional<at::ScalarType> dtype) {
  std::vector<int64_t> order(sizes.size()), strides(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  const at::IntArrayRef given = like.strides();
  if (std::find(given.begin(), given.end(), 0) == given.end()) {
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return given[a] > given[b]; });
  }
  int64_t stride = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    strides[*dim] = stride;
    stride *= std::max<int64_t>(1, sizes[*dim]);
  }
  return at::empty_strided(sizes, strides, like.options().dtype(dtype.value_or(like.scalar_type())));
}

Tensor laid_out_as(const Tensor& like, const Tensor& x) {
  const Tensor to = empty_laid_out_as(like, x.sizes());
  return x.scalar_type() == to.scalar_type() && x.strides() == to.strides() ? x : to.copy_(x);
}

Tensor gradient_outside(const Call& call, const Tensor& d_window) {
  const Tensor outside = d_window.sum(-1).neg_();
  const optional<Tensor> grad_lse = call.optional_tensor("grad_lse");
  return grad_lse ? outside.add_(grad_lse->masked_fill(call.tensor("lse").isneginf(), 0)) : outside;
}

std::atomic<Backend>& backend(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, std::atomic<Backend>> all;
  const std::lock_guard<std::mutex> lock(mutex);
  return all.try_emplace(name, Backend::automatic).first->second;
}

std::string short_name(const c10::OperatorHandle& op) {
  return op.schema().name().substr(op.schema().name().find("::") + 2);
}

namespace {

std::mutex traced_mutex;
std::atomic<bool> traces{false};
std::vector<std::string> traced;

std::vector<std::string> switch_trace(bool on) {
  const std::lock_guard<std::mutex> lock(traced_mutex);
  traces = on;
  return std::exchange(traced, {});
}

void set_backend(const std::string& name, const std::string& chosen) {
  backend(name) = chosen == "native"      ? Backend::native
                  : chosen == "reference" ? Backend::reference
                                          : Backend::automatic;
}

void run(const c10::OperatorHandle& op, torch::jit::Stack* stack, Kernel kernel, const Call& call) {
  if (traces) {
    const std::lock_guard<std::mutex> lock(traced_mutex);
    traced.push_back(short_name(op));
  }
  std::vector<Tensor> found = kernel(call);
  torch::jit::drop(*stack, op.schema().arguments().size());
  const auto& returns = op.schema().returns();
  if (returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType) {
    stack->emplace_back(std::move(found));
    return;
  }
  for (Tensor& x : found) {
    stack->emplace_back(std::move(x));
  }
}

}  // namespace

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack, Check check, Kernel kernel, CanRun can_run,
                Backend chosen) {
  const Call call(op, *stack);
  check(call);
  if (chosen != Backend::reference && can_run(call)) {
    run(op, stack, kernel, call);
    return;
  }
  TORCH_CHECK(chosen != Backend::native, "MMATTN_BACKEND=native: ", op.schema().name(),
              " has no kernel for these tensors");
  // Look up the operator at each call: Python can declare its library of operators again.
  c10::Dispatcher::singleton().findSchemaOrThrow(("mmattn::_dispatch_" + short_name(op)).c_str(), "").callBoxed(stack);
}

void run_on_cuda(const c10::OperatorHandle& op, torch::jit::Stack* stack, Check check, Kernel kernel, CanRun can_run) {
  const Call call(op, *stack);
  check(call);
  TORCH_CHECK_NOT_IMPLEMENTED(can_run(call), op.schema().name(), " has no kernel for these tensors");
  run(op, stack, kernel, call);
}

bool can_run_on(const Call& call, std::initializer_list<const char*> may_be_empty) {
  std::vector<Tensor> may;
  for (const char* name : may_be_empty) {
    may.push_back(call.tensor(name));
  }
  const std::vector<Tensor> tensors = call.all_tensors();
  const c10::Device device = tensors[0].device();
  return std::all_of(tensors.begin(), tensors.end(), [&](const Tensor& x) {
    const at::ScalarType dtype = x.scalar_type();
    const bool known =
        dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kBool || (dtype == at::kHalf && device.is_cuda());
    const bool empty = x.numel() == 0 && std::none_of(may.begin(), may.end(),
                                                      [&](const Tensor& y) { return x.is_same(y) && x.size(-1) == 0; });
    return x.device() == device && known && !empty;
  });
}

}  // namespace mmattn

TORCH_LIBRARY_FRAGMENT(mmattn_native, m) {
  m.def("set_backend(str operator, str backend) -> ()", mmattn::set_backend);
  m.def("trace(bool on) -> str[]", mmattn::switch_trace);
}
