// Derivatives of the operators, computed by their backward operators. It replaces ../autograd.py, which takes ten times
// as long per call.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <algorithm>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace mmattn {
namespace {

using at::Tensor;
using torch::autograd::variable_list;
using torch::jit::Stack;

// Calls visit(tensor) for the tensors among the arguments, including those in lists.
template <typename Visit>
void for_tensors(const c10::IValue* arguments, size_t count, const Visit& visit) {
  for (size_t i = 0; i < count; ++i) {
    if (arguments[i].isTensor()) {
      visit(arguments[i].toTensor());
    } else if (arguments[i].isTensorList()) {
      for (const Tensor& x : arguments[i].toTensorList()) {
        visit(x);
      }
    }
  }
}

using torch::autograd::Node;
using torch::autograd::SavedVariable;

// In recent releases of torch a node is an intrusive_ptr_target; earlier ones use std::shared_ptr.
template <typename N>
constexpr bool COUNTS_ITSELF = std::is_base_of_v<c10::intrusive_ptr_target, N>;

template <typename N>
auto pointer_to(N* node) {
  if constexpr (COUNTS_ITSELF<N>) {
    return c10::intrusive_ptr<N>::reclaim_copy(node);
  } else {
    return node->shared_from_this();
  }
}

template <typename T, typename... Arguments>
auto make_node(Arguments&&... arguments) {
  if constexpr (COUNTS_ITSELF<T>) {
    return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
  } else {
    T* const node = new T(std::forward<Arguments>(arguments)...);
    return std::shared_ptr<T>(node, [](T* x) { deleteNode(x); });
  }
}

// A call of an operator as a node of the autograd graph. torch.func does not support torch::autograd::Function.
class Derivative : public Node {
 public:
  Derivative(const c10::OperatorHandle& op, torch::autograd::edge_list&& edges, size_t differentiable)
      : Node(std::move(edges)), of(op.schema().name()), differentiable(differentiable) {
    if (differentiable > 0) {
      backward = c10::Dispatcher::singleton().findSchemaOrThrow((of + "_backward").c_str(), "");
      kept = backward->schema().arguments().size() - differentiable - op.schema().arguments().size() - 1;
    }
  }

  // Saves the arguments: tensors as saved variables, with their number in `places`; other arguments unchanged.
  void keep_arguments(const c10::IValue* arguments, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const c10::IValue& x = arguments[i];
      const bool list = x.isTensorList();
      places.push_back(x.isTensor() ? ONE : list ? static_cast<int64_t>(x.toTensorList().size()) : NONE);
      others.push_back(places.back() == NONE ? x : c10::IValue());
    }
    for_tensors(arguments, count, [&](const Tensor& x) { tensors.emplace_back(x, false); });
  }

  void keep_outputs(const variable_list& found) {
    for (size_t i = 0; i < kept; ++i) {
      outputs.emplace_back(found[i], i < differentiable);
    }
  }

  variable_list apply(variable_list&& grads) override {
    if (differentiable == 0) {
      const std::string name = of.substr(0, of.size() - std::string("_backward").size());
      TORCH_CHECK_NOT_IMPLEMENTED(false, name, " is not twice differentiable");
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    variable_list found(tensors.size());
    if (std::none_of(grads.begin(), grads.end(), [](const Tensor& x) { return x.defined(); })) {
      return found;
    }
    // Unpack each variable once: activation checkpointing does not allow it twice.
    variable_list saved_outputs, saved;
    for (SavedVariable& x : outputs) {
      saved_outputs.push_back(x.unpack(pointer_to<Node>(this)));
    }
    for (SavedVariable& x : tensors) {
      saved.push_back(x.unpack());
    }
    Stack stack;
    // The gradient of the first output is always given. Those of others may be None.
    stack.emplace_back(grads[0].defined() ? grads[0] : input_metadata(0).zeros_like());
    for (size_t i = 1; i < differentiable; ++i) {
      stack.emplace_back(grads[i].defined() ? c10::IValue(grads[i]) : c10::IValue());
    }
    stack.insert(stack.end(), saved_outputs.begin(), saved_outputs.end());
    auto next = saved.begin();
    for (size_t i = 0; i < places.size(); ++i) {
      if (places[i] == NONE) {
        stack.push_back(others[i]);
      } else if (places[i] == ONE) {
        stack.emplace_back(*next++);
      } else {
        stack.emplace_back(std::vector<Tensor>(next, next + places[i]));
        next += places[i];
      }
    }
    c10::List<bool> needed;
    for (size_t i = 0; i < saved.size(); ++i) {
      needed.push_back(saved[i].is_floating_point() && task_should_compute_output(i));
    }
    stack.emplace_back(needed);
    backward->callBoxed(&stack);
    const std::vector<Tensor> results = stack.back().toTensorVector();
    for (size_t i = 0, result = 0; i < saved.size(); ++i) {
      if (needed.get(i)) {
        found[i] = results[result++];
      }
    }
    return found;
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (std::vector<SavedVariable>* each : {&outputs, &tensors}) {
      for (SavedVariable& x : *each) {
        x.reset_data();
      }
    }
  }

  std::string name() const override { return of; }

 private:
  static constexpr int64_t ONE = -1, NONE = -2;

  const std::string of;
  const size_t differentiable;
  size_t kept = 0;
  std::optional<c10::OperatorHandle> backward;
  std::vector<SavedVariable> outputs, tensors;
  std::vector<int64_t> places;  // per argument: ONE, NONE, or the length of a list
  Stack others;
};

// The autograd kernel of an operator whose first `differentiable` outputs have a derivative; 0 for a backward operator,
// which has none.
template <size_t differentiable>
void recorded(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const size_t count = op.schema().arguments().size(), below = stack->size() - count;
  bool records = false, tangents = false;
  for_tensors(stack->data() + below, count, [&](const Tensor& x) {
    records = records || x.requires_grad();
    tangents = tangents || torch::autograd::isFwGradDefined(x);
  });
  TORCH_CHECK_NOT_IMPLEMENTED(!tangents, op.schema().name(),
                              " has no forward-mode derivative (torch.func.jvp, torch.autograd.forward_ad); use ",
                              "reverse mode (torch.func.vjp, torch.autograd.grad)");
  decltype(make_node<Derivative>(op, torch::autograd::edge_list(), differentiable)) node;
  if (records && at::GradMode::is_enabled()) {
    variable_list tensors;
    for_tensors(stack->data() + below, count, [&](const Tensor& x) { tensors.push_back(x); });
    node = make_node<Derivative>(op, torch::autograd::collect_next_edges(tensors), differentiable);
    if (differentiable > 0) {
      node->keep_arguments(stack->data() + below, count);
    }
  }
  {
    const at::AutoDispatchBelowAutograd guard;
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  }
  if (!node) {
    return;
  }
  variable_list outputs;
  for_tensors(stack->data() + below, stack->size() - below, [&](const Tensor& x) { outputs.push_back(x); });
  const size_t recorded = differentiable > 0 ? differentiable : outputs.size();
  for (size_t i = 0; i < recorded; ++i) {
    torch::autograd::set_history(outputs[i], node);
  }
  node->keep_outputs(outputs);
}

void register_derivative(const std::string& name, int64_t differentiable) {
  static std::list<torch::Library> libraries;  // destroying a library removes its registrations
  torch::Library& library =
      libraries.emplace_back(torch::Library::IMPL, "mmattn", c10::DispatchKey::Autograd, __FILE__, __LINE__);
  library.impl(name.c_str(), differentiable == 1 ? torch::CppFunction::makeFromBoxedFunction<&recorded<1>>()
                                                 : torch::CppFunction::makeFromBoxedFunction<&recorded<2>>());
  library.impl((name + "_backward").c_str(), torch::CppFunction::makeFromBoxedFunction<&recorded<0>>());
}

}  // namespace
}  // namespace mmattn

TORCH_LIBRARY_FRAGMENT(mmattn_native, m) {
  m.def("register_derivative(str name, int differentiable) -> ()", mmattn::register_derivative);
}
