// The public functions of ../*.py as one call, where the arguments are right and of the usual types: it checks them,
// expands biases, computes what has a default, and calls the operator. It declines other calls, for which Python does
// the same, with messages.
#include <Python.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/TracerMode.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cfloat>
#include <map>

#include "checks.h"

namespace mmattn {
namespace {

using torch::jit::Stack;

struct Declined {};

void require(bool usual) {
  if (!usual) {
    throw Declined();
  }
}

// The arguments of a call in the order of the operator, read one after another.
class Given {
 public:
  explicit Given(PyObject* const* values) : next(values) {}

  Tensor tensor() { return as_tensor(*next++); }
  optional<Tensor> optional_tensor() {
    PyObject* const x = *next++;
    return x == Py_None ? std::nullopt : optional<Tensor>(as_tensor(x));
  }
  std::vector<Tensor> tensors() {
    std::vector<Tensor> found;
    for (PyObject* x : items(*next++)) {
      found.push_back(as_tensor(x));
    }
    return found;
  }
  int64_t integer() { return as_integer(*next++); }
  // An integer for each axis, or one for all; none for None.
  std::vector<int64_t> integers(int64_t axes) {
    PyObject* const x = *next++;
    std::vector<int64_t> found;
    if (PyLong_CheckExact(x)) {
      found.assign(axes, as_integer(x));
    } else if (x != Py_None) {
      for (PyObject* item : items(x)) {
        found.push_back(as_integer(item));
      }
    }
    return found;
  }
  bool flag() {
    PyObject* const x = *next++;
    require(PyBool_Check(x));
    return x == Py_True;
  }
  std::string text() {
    PyObject* const x = *next++;
    require(PyUnicode_CheckExact(x) && PyUnicode_IS_ASCII(x));
    return PyUnicode_AsUTF8(x);
  }
  // The bias outside a window: a tensor, or a number, which may be −∞.
  std::pair<optional<Tensor>, double> outside() {
    PyObject* const x = *next++;
    if (!PyFloat_CheckExact(x)) {
      const Tensor bias = as_tensor(x);
      require(at::isFloatingType(bias.scalar_type()));
      return {bias, 0.0};
    }
    const double number = PyFloat_AS_DOUBLE(x);
    require(std::isfinite(number) || (std::isinf(number) && number < 0));
    return {std::nullopt, number};
  }
  // The factor of the content logits: 1/√D for None and a query of D channels.
  double scale(const Tensor& query) {
    PyObject* const x = *next++;
    if (x == Py_None) {
      return std::pow(static_cast<double>(std::max<int64_t>(1, query.size(-1))), -0.5);
    }
    require(PyFloat_CheckExact(x) && std::abs(PyFloat_AS_DOUBLE(x)) <= FLT_MAX);
    return PyFloat_AS_DOUBLE(x);
  }

 private:
  static const Tensor& as_tensor(PyObject* x) {
    require(THPVariable_CheckExact(x));
    return THPVariable_Unpack(x);
  }
  static int64_t as_integer(PyObject* x) {
    int overflow = 1;
    const int64_t number = PyLong_CheckExact(x) ? PyLong_AsLongLongAndOverflow(x, &overflow) : 0;
    require(overflow == 0);
    return number;
  }
  static at::ArrayRef<PyObject*> items(PyObject* x) {
    require(PyTuple_Check(x) || PyList_Check(x));
    return {PySequence_Fast_ITEMS(x), static_cast<size_t>(PySequence_Fast_GET_SIZE(x))};
  }

  PyObject* const* next;
};

// Query, key and value in one dtype, that of autocast if it is enabled, with as many heads.
struct Operands {
  Tensor query, key, value;

  Operands(Tensor q, Tensor k, Tensor v) : query(std::move(q)), key(std::move(k)), value(std::move(v)) {
    const at::IntArrayRef sizes = query.sizes(), key_sizes = key.sizes();
    require(sizes.size() >= 4 && key_sizes.size() == sizes.size() && value.dim() == query.dim());
    for (size_t dim = 2; dim < sizes.size() - 1; ++dim) {
      require(sizes[dim] > 0 && key_sizes[dim] > 0);  // what is wrong without positions depends on the operator
    }
    for (Tensor* x : {&query, &key, &value}) {
      cast(*x);
      require(x->scalar_type() == query.scalar_type());
    }
    if (const int64_t heads = query.size(1), shared = key.size(1); shared != heads) {
      require(heads > 0 && shared > 0 && heads % shared == 0 && value.size(1) == shared);
      const pybind11::gil_scoped_release others_run;
      key = key.repeat_interleave(heads / shared, 1);
      value = value.repeat_interleave(heads / shared, 1);
    }
  }
  explicit Operands(Given& given) : Operands{given.tensor(), given.tensor(), given.tensor()} {}

  int64_t axes() const { return value.dim() - 3; }

 private:
  static void cast(Tensor& x) {
    const c10::DeviceType device = x.device().type();
    require(at::isFloatingType(x.scalar_type()));
    // torch 2.4 throws where a device has no autocast, such as meta
    const bool available = at::autocast::is_autocast_available(device);
    if (available && x.scalar_type() != at::kDouble && at::autocast::is_autocast_enabled(device)) {
      const pybind11::gil_scoped_release others_run;
      x = x.to(at::autocast::get_autocast_dtype(device));
    }
  }
};

Tensor expanded(const Tensor& bias, at::IntArrayRef shape) {
  require(at::isFloatingType(bias.scalar_type()));
  return bias.sizes() == shape ? bias : bias.expand(shape);
}

// Expands biases of the positions of `like`, window biases also from one table (heads, K).
optional<Tensor> expanded_window(const optional<Tensor>& bias, const Tensor& like) {
  if (!bias) {
    return bias;
  }
  Shape table(like.dim(), 1);
  if (bias->dim() == 2) {
    table[1] = bias->size(0);
    table.back() = bias->size(1);
  }
  return expanded(bias->dim() == 2 ? bias->view(table) : *bias, with_channels(like, bias->size(-1)));
}

Stack global_attention(Given given) {
  const Operands x(given);
  const optional<Tensor> window = expanded_window(given.optional_tensor(), x.query);
  const auto [outside, outside_value] = given.outside();
  std::vector<Tensor> axis_bias = given.tensors();
  for (size_t axis = 0; axis < axis_bias.size(); ++axis) {
    axis_bias[axis] = expanded(axis_bias[axis], with_channels(x.query, x.key.size(2 + axis)));
  }
  optional<Tensor> key_bias = given.optional_tensor();
  if (key_bias) {
    key_bias = expanded(*key_bias, x.key.sizes().slice(0, x.key.dim() - 1));
  }
  const optional<Tensor> key_mask = given.optional_tensor();
  const std::vector<int64_t> window_size = given.integers(x.axes());
  return {x.query,
          x.key,
          x.value,
          window,
          outside,
          axis_bias,
          key_bias,
          key_mask,
          window_size,
          outside_value,
          given.scale(x.query),
          given.flag(),
          given.flag()};
}

Stack grid_attention(Given given) {
  const Operands x(given);
  const optional<Tensor> window = expanded_window(given.optional_tensor(), x.query);
  const auto [outside, outside_value] = given.outside();
  const std::vector<int64_t> window_size = given.integers(x.axes());
  return {x.query, x.key, x.value, window, outside, window_size, outside_value, given.scale(x.query), given.flag()};
}

Stack local_attention(Given given) {
  optional<Tensor> query = given.optional_tensor(), key = given.optional_tensor();
  const Tensor given_value = given.tensor();
  const Operands x(query.value_or(given_value), key.value_or(given_value), given_value);
  if (query) {
    query = x.query;
  }
  if (key) {
    key = x.key;
  }
  const optional<Tensor> window = expanded_window(given.optional_tensor(), x.value);
  const optional<Tensor> key_mask = given.optional_tensor();
  const std::vector<int64_t> kernel_size = given.integers(2);
  const int64_t dilation = given.integer();
  const double scale = given.scale(x.query);
  return {query, key, x.value, window, key_mask, kernel_size, dilation, scale, given.integer(), given.flag()};
}

Stack strided_attention(Given given) {
  const Operands x(given);
  std::vector<Tensor> offset_bias = given.tensors();
  for (Tensor& bias : offset_bias) {
    bias = expanded(bias, with_channels(x.query, bias.size(-1)));
  }
  const std::vector<int64_t> step = given.integers(x.axes());
  const std::string pattern = given.text();
  return {x.query, x.key, x.value, offset_bias, step, pattern, given.scale(x.query), given.flag()};
}

Stack dynamic_conv(Given given) {
  const Tensor value = given.tensor(), logits = given.tensor();
  require(at::isFloatingType(value.scalar_type()) && at::isFloatingType(logits.scalar_type()));
  const std::vector<int64_t> kernel_size = given.integers(2);
  return {value, logits, kernel_size, given.integer()};
}

struct Function {
  Stack (*prepare)(Given);
  Check check;
};
const std::map<std::string, Function> FUNCTIONS{
    {"dynamic_conv", {dynamic_conv, check_dynamic_conv}},
    {"global_attention", {global_attention, check_global_attention}},
    {"grid_attention", {grid_attention, check_grid_attention}},
    {"local_attention", {local_attention, check_local_attention}},
    {"strided_attention", {strided_attention, check_strided_attention}},
};

// Prepares the arguments of the operator, or declines the call.
Stack prepared(const c10::OperatorHandle& op, const Function& function, PyObject* const* arguments) {
  // A trace records the sizes with which Python computes. Modes and transforms of Python see what Python calls.
  require(!at::tracer::impl::is_dispatch_enabled() && !at::impl::torch_function_mode_enabled() &&
          !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode));
  Stack stack = function.prepare(Given(arguments));
  const Call call(op, stack);
  function.check(call);
  const std::vector<Tensor> tensors = call.all_tensors();
  for (const Tensor& x : tensors) {
    require(x.device() == tensors[0].device());
  }
  return stack;
}

// Calls the function of a name. Returns None if it declines the call.
PyObject* direct_call(PyObject*, PyObject* const* arguments, Py_ssize_t) {
  HANDLE_TH_ERRORS
  const std::string name = PyUnicode_AsUTF8(arguments[0]);
  const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(("mmattn::" + name).c_str(), "");
  Stack stack;
  try {
    stack = prepared(op, FUNCTIONS.at(name), arguments + 1);
  } catch (const Declined&) {
    Py_RETURN_NONE;
  } catch (const c10::Error&) {  // the arguments do not fit together
    Py_RETURN_NONE;
  }
  const bool return_lse = stack.back().isBool() && stack.back().toBool();
  {
    const pybind11::gil_scoped_release others_run;
    op.callBoxed(stack);
  }
  PyObject* const out = THPVariable_Wrap(stack[0].toTensor());
  return return_lse ? Py_BuildValue("(NN)", out, THPVariable_Wrap(stack[1].toTensor())) : out;
  END_HANDLE_TH_ERRORS
}

}  // namespace
}  // namespace mmattn

// The import registers the operators.
PyMODINIT_FUNC PyInit__C() {
  static PyMethodDef methods[] = {
      {"direct_call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(mmattn::direct_call)), METH_FASTCALL,
       nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods};
  return PyModule_Create(&module);
}
