// The interface between native kernels and the operators of `mmattn::`, which ../operator.py declares. A kernel reads
// the arguments of a call by their names in the schema.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <atomic>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mmattn {

using at::Tensor;
using std::optional;

// The arguments of a call.
class Call {
 public:
  Call(const c10::OperatorHandle& op, const torch::jit::Stack& stack)
      : names(op.schema().arguments()), values(stack.data() + stack.size() - names.size()) {}

  const Tensor& tensor(const char* name) const { return get(name).toTensor(); }
  optional<Tensor> optional_tensor(const char* name) const {
    const c10::IValue& value = get(name);
    return value.isNone() ? std::nullopt : optional<Tensor>(value.toTensor());
  }
  std::vector<Tensor> tensors(const char* name) const { return get(name).toTensorVector(); }
  std::vector<int64_t> integers(const char* name) const { return get(name).toIntVector(); }
  int64_t integer(const char* name) const { return get(name).toInt(); }
  double number(const char* name) const { return get(name).toDouble(); }
  bool flag(const char* name) const { return get(name).toBool(); }
  std::string_view text(const char* name) const { return get(name).toStringRef(); }

  // All tensors among the arguments, including those in lists.
  std::vector<Tensor> all_tensors() const;
  // For a backward operator: the number of flags, one per tensor among the arguments of the operator.
  optional<size_t> needed() const;
  // For a backward operator: whether the gradient of a tensor, or of item `item` of a list of tensors, is needed.
  bool needs(const char* name, int64_t item = 0) const;

 private:
  const c10::IValue& get(const char* name) const;

  const std::vector<c10::Argument>& names;
  const c10::IValue* values;
  mutable size_t next = 0;  // arguments are usually read in order
};

// A kernel returns the outputs of a call; for a backward operator, the needed gradients, in order.
using Kernel = std::vector<Tensor> (*)(const Call&);
// Whether a kernel supports a call.
using CanRun = bool (*)(const Call&);
// Raises an error if the arguments of a call do not fit together.
using Check = void (*)(const Call&);

// What runs an operator on a CPU: its kernel where it supports the call, its kernel or an error, or the reference.
// ../dispatch.py sets it.
enum class Backend { automatic, native, reference };
// The backend of an operator, or of its backward operator; `name` without namespace.
std::atomic<Backend>& backend(const std::string& name);
std::string short_name(const c10::OperatorHandle& op);

// Checks the arguments of mmattn::<name> and runs its kernel, or calls ../dispatch.py.
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack, Check check, Kernel kernel, CanRun can_run,
                Backend chosen);
// Checks the arguments of mmattn_cuda::<name>, which ../dispatch.py calls, and runs its kernel. A call that the kernel
// does not support is a NotImplementedError.
void run_on_cuda(const c10::OperatorHandle& op, torch::jit::Stack* stack, Check check, Kernel kernel, CanRun can_run);

template <Check check, Kernel kernel, CanRun can_run>
void cpu_implementation(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const std::atomic<Backend>& chosen = backend(short_name(op));
  run_on_cpu(op, stack, check, kernel, can_run, chosen);
}

template <Check check, Kernel kernel, CanRun can_run>
void cuda_implementation(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run_on_cuda(op, stack, check, kernel, can_run);
}

template <Check check, Kernel kernel, CanRun can_run>
torch::CppFunction on_cpu() {
  return torch::CppFunction::makeFromBoxedFunction<&cpu_implementation<check, kernel, can_run>>();
}

template <Check check, Kernel kernel, CanRun can_run>
torch::CppFunction on_cuda() {
  return torch::CppFunction::makeFromBoxedFunction<&cuda_implementation<check, kernel, can_run>>();
}

// Whether all tensors are on one device, have dtypes that its kernels support (or bool), and are not empty. The tensors
// named in `may_be_empty` may be empty if they have no channels.
bool can_run_on(const Call& call, std::initializer_list<const char*> may_be_empty = {});

// An empty output with the memory order of dimensions of `like`; contiguous if `like` is expanded.
Tensor empty_laid_out_as(const Tensor& like, at::IntArrayRef sizes, optional<at::ScalarType> dtype = std::nullopt);
// The gradient of outside_bias from that of window_bias: the gradients of all logits of a query sum to the gradient of
// its log-sum-exp, or to 0 if it has no keys.
Tensor gradient_outside(const Call& call, const Tensor& d_window);
// `x` with dtype and memory order of dimensions of `like`; `x` itself if it already has both.
Tensor laid_out_as(const Tensor& like, const Tensor& x);

}  // namespace mmattn
