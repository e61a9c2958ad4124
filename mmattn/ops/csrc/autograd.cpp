// Derivatives of the operators, in their backward operators: what ../autograd.py does where there is no native code,
// at a tenth of its time.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include <list>
#include <vector>

namespace mmattn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::jit::Stack;

// Where the operator is on the dispatcher's way through the keys.
struct Step {
  const c10::OperatorHandle& op;
  c10::DispatchKeySet keys;
  Stack* stack;
};

void go_on(const Step& step) {
  const at::AutoDispatchBelowAutograd guard;
  step.op.redispatchBoxed(step.keys & c10::after_autograd_keyset, step.stack);
}

// Calls visit(tensor) for the tensors among arguments, those in lists included.
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

std::string backward_of(const c10::OperatorHandle& op) { return op.schema().name() + "_backward"; }

// A call of an operator as a node of autograd's graph.
struct Derivative : torch::autograd::Function<Derivative> {
  static variable_list forward(AutogradContext* ctx, const Step& step, int64_t differentiable, at::TensorList tensors) {
    const size_t count = step.op.schema().arguments().size();
    std::vector<c10::IValue> others(step.stack->end() - count, step.stack->end());  // holds no tensor alive
    for (c10::IValue& x : others) {
      if (x.isTensor()) {
        x = c10::IValue(int64_t{-1});
      } else if (x.isTensorList()) {
        x = c10::IValue(static_cast<int64_t>(x.toTensorList().size()));
      } else {
        x = c10::ivalue::Tuple::create({x});
      }
    }
    {
      // Autograd switches itself off in here; the next of torch.func's transforms wants it.
      const at::AutoGradMode grad_mode(true);
      const c10::AutoFwGradMode forward_mode(true);
      go_on(step);
    }
    variable_list outputs;
    for_tensors(step.stack->data(), step.stack->size(), [&](const Tensor& x) { outputs.push_back(x); });
    ctx->set_materialize_grads(false);
    ctx->saved_data["operator"] = step.op.schema().name();
    if (differentiable > 0) {
      const auto backward = c10::Dispatcher::singleton().findSchemaOrThrow(backward_of(step.op).c_str(), "");
      const size_t kept = backward.schema().arguments().size() - differentiable - count - 1;
      variable_list saved(outputs.begin(), outputs.begin() + kept);
      saved.insert(saved.end(), tensors.begin(), tensors.end());
      ctx->save_for_backward(std::move(saved));
      ctx->mark_non_differentiable({outputs.begin() + differentiable, outputs.end()});
      ctx->saved_data["arguments"] = c10::ivalue::Tuple::create(std::move(others));
      ctx->saved_data["kept"] = static_cast<int64_t>(kept);
      ctx->saved_data["differentiable"] = differentiable;
    } else {
      ctx->saved_data["tensors"] = static_cast<int64_t>(tensors.size());
    }
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const std::string name = ctx->saved_data["operator"].toStringRef();
    if (ctx->saved_data.count("tensors")) {
      const std::string of = name.substr(0, name.size() - std::string("_backward").size());
      TORCH_CHECK_NOT_IMPLEMENTED(false, of, " is not twice differentiable");
    }
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow((name + "_backward").c_str(), "");
    const size_t kept = ctx->saved_data["kept"].toInt(), differentiable = ctx->saved_data["differentiable"].toInt();
    const variable_list saved = ctx->get_saved_variables();  // once: checkpointing refuses to unpack them again
    const size_t tensors = saved.size() - kept;
    // Forward's arguments before the tensors: a step and a number.
    variable_list found(2 + tensors);
    if (std::none_of(grads.begin(), grads.end(), [](const Tensor& x) { return x.defined(); })) {
      return found;
    }
    Stack stack;
    for (size_t i = 0; i < differentiable; ++i) {
      stack.emplace_back(grads[i].defined() ? grads[i] : at::zeros_like(saved[i]));
    }
    stack.insert(stack.end(), saved.begin(), saved.begin() + kept);
    auto given = saved.begin() + kept;
    for (const c10::IValue& x : ctx->saved_data["arguments"].toTupleRef().elements()) {
      if (x.isTuple()) {
        stack.push_back(x.toTupleRef().elements()[0]);
      } else if (x.toInt() < 0) {
        stack.emplace_back(*given++);
      } else {
        stack.emplace_back(std::vector<Tensor>(given, given + x.toInt()));
        given += x.toInt();
      }
    }
    std::vector<bool> needed(tensors);
    c10::List<bool> flags;
    for (size_t i = 0; i < tensors; ++i) {
      needed[i] = saved[kept + i].is_floating_point() && ctx->needs_input_grad(i);
      flags.push_back(needed[i]);
    }
    stack.emplace_back(flags);
    op.callBoxed(&stack);
    const std::vector<Tensor> results = stack.back().toTensorVector();
    for (size_t i = 0, next = 0; i < tensors; ++i) {
      if (needed[i]) {
        found[2 + i] = results[next++];
      }
    }
    return found;
  }
};

// The kernel for autograd of an operator: of one whose first `differentiable` outputs have a derivative, or of one that
// has none.
template <int64_t differentiable>
void recorded(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  bool records = false, tangents = false;
  for_tensors(stack->data() + stack->size() - count, count, [&](const Tensor& x) {
    records = records || x.requires_grad();
    tangents = tangents || torch::autograd::isFwGradDefined(x);
  });
  TORCH_CHECK_NOT_IMPLEMENTED(!tangents, op.schema().name(),
                              " has no forward-mode derivative (torch.func.jvp, torch.autograd.forward_ad); use ",
                              "reverse mode (torch.func.vjp, torch.autograd.grad)");
  const Step step{op, keys, stack};
  if (!records || !at::GradMode::is_enabled()) {
    go_on(step);
    return;
  }
  variable_list tensors;
  for_tensors(stack->data() + stack->size() - count, count, [&](const Tensor& x) { tensors.push_back(x); });
  const size_t below = stack->size() - count;
  Stack arguments(stack->end() - count, stack->end());
  variable_list outputs = Derivative::apply(Step{op, keys, &arguments}, differentiable, at::TensorList(tensors));
  stack->resize(below);
  const auto& returns = op.schema().returns();
  if (returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType) {
    stack->emplace_back(std::move(outputs));
    return;
  }
  for (Tensor& x : outputs) {
    stack->emplace_back(std::move(x));
  }
}

void register_derivative(const std::string& name, int64_t differentiable) {
  static std::list<torch::Library> libraries;  // a registration ends with its library
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
