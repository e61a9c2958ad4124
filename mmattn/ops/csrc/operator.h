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
  // Whether the first floating-point tensor among the arguments is float32.
  bool is_float32() const;
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

// Which implementation of an operator runs. ../library.py initialises it from the environment variable MMATTN_BACKEND.
enum class Backend { automatic, native, reference };
std::atomic<Backend>& backend();
// The dtype classes in which a kernel that must be checked before use (a CUDA kernel) may run.
enum DtypeClass : int { sixteen_bit = 1, float32 = 2 };
std::atomic<int>& allowed(const std::string& name);
// Records that a kernel ran, for tests.
void trace(const std::string& name);

// Checks the arguments, and runs the kernel or calls the reference in Python.
void run(const c10::OperatorHandle& op, torch::jit::Stack* stack, Check check, Kernel kernel, CanRun can_run,
         const std::atomic<int>* allowed);

// A kernel as a boxed function of the dispatcher.
template <Check check, Kernel kernel, CanRun can_run, bool verified = false>
void implementation(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const std::atomic<int>* const may = verified ? &allowed(op.schema().name()) : nullptr;
  run(op, stack, check, kernel, can_run, may);
}

template <Check check, Kernel kernel, CanRun can_run>
torch::CppFunction on_cpu() {
  return torch::CppFunction::makeFromBoxedFunction<&implementation<check, kernel, can_run>>();
}

template <Check check, Kernel kernel, CanRun can_run>
torch::CppFunction on_cuda() {
  return torch::CppFunction::makeFromBoxedFunction<&implementation<check, kernel, can_run, true>>();
}

// Whether all tensors are on one device, have dtypes that its kernels support (or bool), and are not empty. The tensors
// named in `may_be_empty` may be empty if they have no channels.
bool can_run_on(const Call& call, std::initializer_list<const char*> may_be_empty = {});

// An empty output with the memory order of dimensions of `like`; contiguous if `like` is expanded.
Tensor empty_laid_out_as(const Tensor& like, at::IntArrayRef sizes, optional<at::ScalarType> dtype = std::nullopt);
// `x` with dtype and memory order of dimensions of `like`; `x` itself if it already has both.
Tensor laid_out_as(const Tensor& like, const Tensor& x);

}  // namespace mmattn
