// How native code implements an operator of `mmattn::`. Python declares the operators, see ../operator.py; a kernel
// reads the arguments of a call by the names that they have there.
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

  // All that are tensors, lists among them included.
  std::vector<Tensor> all_tensors() const;
  // Of a backward operator: whether the gradient of a tensor is requested, or of a tensor in a list.
  bool needs(const char* name, int64_t item = 0) const;

 private:
  const c10::IValue& get(const char* name) const;

  const std::vector<c10::Argument>& names;
  const c10::IValue* values;
  mutable size_t next = 0;  // arguments are mostly read in their order
};

// A kernel returns the outputs of a call, or of a backward operator the gradients that are needed, in order.
using Kernel = std::vector<Tensor> (*)(const Call&);
// Whether a kernel takes a call.
using CanRun = bool (*)(const Call&);

// Which implementation of an operator runs. The environment variable MMATTN_BACKEND says so at first, see ../native.py.
enum class Backend { automatic, native, reference };
std::atomic<Backend>& backend();
// Whether a kernel that has to be verified first, one for CUDA, may run.
std::atomic<bool>& allowed(const std::string& name);
// Notes for tests that a kernel ran.
void trace(const std::string& name);

// Runs the kernel, or leaves the call to the reference in Python.
void run(const c10::OperatorHandle& op, torch::jit::Stack* stack, Kernel kernel, CanRun can_run,
         const std::atomic<bool>* allowed);

// The dispatcher's form of a kernel.
template <Kernel kernel, CanRun can_run, bool verified = false>
void implementation(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const std::atomic<bool>* const may = verified ? &allowed(op.schema().name()) : nullptr;
  run(op, stack, kernel, can_run, may);
}

template <Kernel kernel, CanRun can_run>
torch::CppFunction on_cpu() {
  return torch::CppFunction::makeFromBoxedFunction<&implementation<kernel, can_run>>();
}

template <Kernel kernel, CanRun can_run>
torch::CppFunction on_cuda() {
  return torch::CppFunction::makeFromBoxedFunction<&implementation<kernel, can_run, true>>();
}

// Whether all tensors are of one device and of dtypes that the kernels for it take, and none but masks is of another
// kind or empty. Without channels, those in `may_be_empty` are taken, too.
bool can_run_on(const Call& call, std::initializer_list<const char*> may_be_empty = {});

// Memory for an output whose dimensions are in the order of those of `like`; contiguous where that is expanded.
Tensor empty_laid_out_as(const Tensor& like, at::IntArrayRef sizes, optional<at::ScalarType> dtype = std::nullopt);
// Such an output, of the dtype of `like`, with the numbers of `x`: `x` itself where it is one.
Tensor laid_out_as(const Tensor& like, const Tensor& x);

}  // namespace mmattn
