"""The declaration of an operator: its schema, and the functions that ``dispatch.py`` calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils._python_dispatch import TorchDispatchMode

from . import autograd, dispatch
from .autograd import LIBRARY, list_tensors
from .flops import count_flops

CUDA_LIBRARY = torch.library.Library('mmattn_cuda', 'FRAGMENT')  # the CUDA kernels, which `dispatch.py` calls
# `export.py` adds those of operators that ``torch.onnx.export`` can write. For other exporters, give them to
# ``torch.export.ExportedProgram.run_decompositions``.
COMPOSITIONS: dict[Any, Callable] = {}
Arguments = TypeVar('Arguments', bound=tuple)


def schema(arguments: Any, defaults: bool = True) -> str:
    """Write the arguments of an operator, a NamedTuple, as PyTorch's dispatcher declares them.

    ``Annotated[int, torch.SymInt]`` is an int that may be symbolic.

    Example:
        >>> from typing import NamedTuple
        >>> schema(NamedTuple('Scaled', [('x', Tensor), ('bias', Tensor | None), ('size', Sequence[int])]))
        'Tensor x, Tensor? bias, int[] size'
    """
    hints, given = get_type_hints(arguments, include_extras=True), arguments._field_defaults if defaults else {}
    values = {name: f'={value}' for name, value in given.items()}
    return ', '.join(f'{_schema_type(hint)} {name}{values.get(name, "")}' for name, hint in hints.items())


def _schema_type(hint: Any) -> str:
    inner = get_args(hint)
    if not inner:
        return hint.__name__
    if get_origin(hint) is Annotated:
        return inner[1].__name__
    return _schema_type(inner[0]) + ('[]' if get_origin(hint) is Sequence else '?')


class BackwardCall(NamedTuple):
    """The operands of a backward operator."""

    leading: tuple  # gradients of the differentiable outputs, and the kept outputs
    arguments: Any  # of the operator, as a named tuple
    needed: Sequence[bool]  # for each tensor among the arguments: whether it needs a gradient


class Operator(Generic[Arguments]):
    """An operator ``mmattn::<name>`` and its derivative ``mmattn::<name>_backward``.

    On a CPU, PyTorch's dispatcher runs a native kernel if it supports the tensors. All other calls come to
    ``dispatch.py``, which chooses a CUDA or Triton kernel, or PyTorch's operators: the functions below. They take the
    arguments as one named tuple.

    Args:
        name (str): name of the operator.
        arguments (type): a NamedTuple of the arguments: :func:`schema` is derived from it. The first dimension of every
            tensor is the batch. If the last argument is ``return_lse``, the second output is a log-sum-exp, which is
            undefined if it is False.
        forward (Callable): computes the outputs in float32 or float64. Every kernel is compared with it. With
            ``exact=False``, it computes in the dtype of the operands, as on GPUs.
        backward (Callable): called with the gradient of each differentiable output (None if it has none, except for
            the first), the ``kept`` outputs, the arguments, and ``exact`` as above. Returns a gradient or None for each
            tensor among the arguments. Gradients that are not needed are dropped. Native kernels do not compute them.
        fake (Callable): allocates outputs without data.
        flops (Callable): counts FLOPs from the arguments, and a bool, True for the backward pass.
        kept (sequence of str): names of the first outputs, which the derivative needs. Defaults to none.
        differentiable (sequence of str): names of the first outputs, which have a derivative. Defaults to ('out',).
            There are no outputs but these and the kept ones.
        layout (torch.memory_format): memory format of the gradients, for ``torch.empty_like``. Defaults to contiguous.
        always_exact (bool): ``forward`` and ``backward`` have no argument ``exact``: no composition exists. Defaults to
            False.
        cuda_lacks (sequence of str): arguments that the CUDA kernels do not have, for :func:`explain`. The composition
            runs calls with them. Defaults to none.

    Example:
        >>> from typing import NamedTuple
        >>> Square = NamedTuple('Square', [('x', Tensor)])
        >>> SQUARE = Operator('square', Square, forward=lambda a: a.x**2, backward=lambda grad, a: [2 * grad * a.x],
        ...                   fake=lambda a: torch.empty_like(a.x), flops=lambda a, backward: a.x.numel(),
        ...                   always_exact=True)
        >>> torch.ops.mmattn.square(torch.tensor([3.0]))
        tensor([9.])
    """

    def __init__(
        self,
        name: str,
        arguments: type[Arguments],
        *,
        forward: Callable,
        backward: Callable,
        fake: Callable[[Arguments], Any],
        flops: Callable[[Arguments, bool], int],
        kept: Sequence[str] = (),
        differentiable: Sequence[str] = ('out',),
        layout: torch.memory_format = torch.contiguous_format,
        always_exact: bool = False,
        cuda_lacks: Sequence[str] = (),
    ) -> None:
        self.name, self.Arguments, self.cuda_lacks = name, arguments, cuda_lacks
        self._forward, self._backward, self._fake, self._layout = forward, backward, fake, layout
        self._leading = len(differentiable) + len(kept)
        self.keeps_lse = 'lse' in kept
        self.implementations = ('reference',) if always_exact else ('reference', 'composition')
        leading = ['Tensor grad', *(f'Tensor? grad_{x}' for x in differentiable[1:]), *(f'Tensor {x}' for x in kept)]
        outputs = ', '.join(['Tensor'] * max(len(kept), len(differentiable)))
        signature = f'({schema(arguments)}) -> {f"({outputs})" if "," in outputs else outputs}'
        derivative = f'({", ".join(leading)}, {schema(arguments, defaults=False)}, bool[] needed) -> Tensor[]'
        self._define(name, signature, self.fake, self.compute)
        self._define(f'{name}_backward', derivative, self.fake_backward, self.compute_backward)
        dispatch.OPERATORS[name] = self
        self.run = getattr(torch.ops.mmattn, name).default
        autograd.register(name, len(differentiable))
        compose_in_onnx(self.run)
        count_flops(name, lambda *operands: flops(arguments(*operands), False))
        count_flops(f'{name}_backward', lambda *operands: flops(self.backward_call(operands).arguments, True))

    def backward_call(self, operands: tuple) -> BackwardCall:
        """Group the operands of the backward operator."""
        leading, arguments, needed = operands[: self._leading], operands[self._leading : -1], operands[-1]
        return BackwardCall(leading, self.Arguments(*arguments), needed)

    def compute(self, implementation: str, operands: tuple) -> Any:
        """Compute the outputs: 'reference' in float32 or float64, 'composition' in the dtype of the operands."""
        return self._forward(self.Arguments(*operands), **_precision(implementation))

    def compute_backward(self, implementation: str, operands: tuple) -> list[Tensor]:
        """Compute the needed gradients, in the dtypes of the tensors."""
        call = self.backward_call(operands)
        grads = self._backward(*call.leading, call.arguments, **_precision(implementation))
        tensors = list_tensors(call.arguments)
        return [grad.to(x.dtype) for grad, x, needed in zip(grads, tensors, call.needed, strict=True) if needed]

    def fake(self, *operands: Any) -> Any:
        """Allocate outputs without data."""
        return self._fake(self.Arguments(*operands))

    def fake_backward(self, *operands: Any) -> list[Tensor]:
        """Allocate gradients without data."""
        call = self.backward_call(operands)
        tensors = zip(list_tensors(call.arguments), call.needed)
        return [torch.empty_like(x, memory_format=self._layout) for x, needed in tensors if needed]

    def _define(self, name: str, signature: str, fake: Callable, compute: Callable) -> None:
        def run(*operands: Any) -> Any:
            if self.implementations == ('reference',):  # nothing to choose from
                return compute('reference', operands)
            return dispatch.run(name, operands)

        def run_strided(*operands: Any) -> Any:
            # PyTorch calls native code, which checks the arguments, for no other tensors
            if odd := [x for x in list_tensors(operands) if x.layout is not torch.strided or x.is_quantized]:
                raise ValueError(f'{name}: all tensors must be strided, not {odd[0].layout} of {odd[0].dtype}')
            return run(*operands)

        LIBRARY.define(name + signature, tags=(torch.Tag.pt2_compliant_tag,))
        LIBRARY.impl(name, run_strided, 'CompositeExplicitAutograd')
        torch.library.register_fake(f'mmattn::{name}', fake, lib=LIBRARY)
        # Native code for CPUs calls this where no kernel runs.
        LIBRARY.define(f'_dispatch_{name}{signature}')
        LIBRARY.impl(f'_dispatch_{name}', run, 'CompositeExplicitAutograd')
        CUDA_LIBRARY.define(name + signature)


def _precision(implementation: str) -> dict[str, bool]:
    return {} if implementation == 'reference' else dict(exact=False)


def compose_in_onnx(op: Any) -> None:
    """Let ``torch.onnx.export`` write the composition of an operator."""
    if hasattr(torch.library, 'register_torch_dispatch'):  # torch 2.5 and later
        torch.library.register_torch_dispatch(op, ProxyTorchDispatchMode, _trace)


def _trace(mode: Any, op: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
    if not torch.onnx.is_in_onnx_export():
        return mode.__torch_dispatch__(op, types, args, kwargs)
    if op not in COMPOSITIONS:
        name = op._schema.name.removeprefix('mmattn::')
        raise NotImplementedError(f'mmattn.ops.{name} cannot be exported to ONNX: docs/deployment.md says what can')
    with mode:
        return COMPOSITIONS[op](*args)


class _Recorder(TorchDispatchMode):
    """Keeps an operator and its arguments. The call only allocates outputs."""

    call: tuple[Operator, Any] | None = None

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        operator = dispatch.OPERATORS.get(op._schema.name.removeprefix('mmattn::'))
        if operator is None:
            return op(*args, **(kwargs or {}))
        self.call = operator, operator.Arguments(*args)
        return operator.fake(*args)


def record_call(function: Callable, *args: Any, **kwargs: Any) -> tuple[Operator, Any]:
    """Check the arguments of a function of ``mmattn.ops``. Returns its operator, and the arguments as a named tuple."""
    with _Recorder() as recorder, torch.no_grad():
        function(*args, **kwargs)
    if recorder.call is None:
        name = getattr(function, '__name__', function)
        raise ValueError(f'operator must be one of mmattn.ops with kernels, such as global_attention; got {name}')
    return recorder.call
