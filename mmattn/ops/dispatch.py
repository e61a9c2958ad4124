"""Chooses what runs an operator: :data:`TABLE`, and :func:`choose`, which reads it.

On a CPU, the dispatcher of PyTorch calls a native kernel at once where it supports the call. All other calls come to
:func:`run`. Nothing here looks at values, measures, or communicates, so all processes of a run choose alike.
"""

import functools
import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from . import library, triton
from .autograd import list_tensors

FLOAT32 = (torch.float32,)
HALF = (torch.float16, torch.bfloat16)
BACKENDS = ('auto', 'native', 'triton', 'composition', 'reference')
NO_KERNEL = 'has no kernel for these tensors'  # in the error, here and in native code, where one is selected alone


class Row(NamedTuple):
    """What runs an operator on a device, for some dtypes of its operands, in each pass."""

    operator: str
    device: str
    dtypes: tuple[torch.dtype, ...]
    forward: str
    backward: str
    reason: str
    unverified_from: float = math.inf  # compute capability from which it also runs on GPUs where nobody verified it
    channels: int | None = None  # of query and value of a head: no others were faster


class Kind(NamedTuple):
    """What the implementation of a call is chosen by."""

    device: torch.device
    dtype: torch.dtype
    channels: int | None = None  # of query and value, if they have as many, and a row of the table asks for them


# CUDA and Triton kernels were compared with float64 and timed on an NVIDIA H200, with torch 2.11.0, CUDA 13.0 and
# Triton 3.6.0 (docs/results/gpu_h200.json). Their rows hold for its compute capability, 9.x. Elsewhere, and for what
# has no row, the composition runs on a GPU, and the reference on a CPU. Times are in units of the composition's.
# local_attention is plain C++, without tensor cores, inline assembly or atomics: it also runs from 8.0 on, with the
# values of an emulation that has the limits of 8.0. dynamic_conv does not: a process that had run it on the H200, with
# right values, was aborted when it ended, and nobody knows why. Of strided_attention in 16 bit, heads of 32 and of 4
# channels were timed: with 4, the times of the CUDA kernel are 1.29 and 1.91.
VERIFIED = 9
# fmt: off
TABLE = (
    Row('local_attention',   'cpu',  (*FLOAT32, torch.bfloat16), 'native', 'native', 'P3, P4 in docs/performance.md'),
    Row('dynamic_conv',      'cpu',  (*FLOAT32, torch.bfloat16), 'native', 'native', 'docs/performance.md'),
    Row('grid_attention',    'cpu',  (*FLOAT32, torch.bfloat16), 'native', 'native', 'P2, P5 in docs/performance.md'),
    Row('strided_attention', 'cpu',  (*FLOAT32, torch.bfloat16), 'native', 'native', 'P6 in docs/performance.md'),
    Row('global_attention',  'cpu',  (*FLOAT32, torch.bfloat16), 'native', 'native', 'P1, P7 in docs/performance.md'),
    Row('local_attention',   'cuda', HALF,    'native', 'native',      'times 0.21 and 0.26', 8),
    Row('local_attention',   'cuda', FLOAT32, 'native', 'native',      'times 0.20 and 0.25', 8),
    Row('dynamic_conv',      'cuda', HALF,    'native', 'native',      'times 0.38 and 0.49 with 13×13 neighbours'),
    Row('dynamic_conv',      'cuda', FLOAT32, 'native', 'native',      'times 0.42 and 0.44 with 13×13 neighbours'),
    Row('grid_attention',    'cuda', HALF,    'native', 'composition', 'times 0.97 and 2.05; half the memory'),
    Row('grid_attention',    'cuda', FLOAT32, 'native', 'composition', 'times 0.80 and 1.35; a quarter of the memory'),
    Row('strided_attention', 'cuda', HALF,    'native', 'native',      'P6: times 0.21 and 0.48', channels=32),
    Row('strided_attention', 'cuda', FLOAT32, 'native', 'native',      'times 0.25 to 1.05 and 0.48 to 0.88'),
    Row('global_attention',  'cuda', HALF,    'triton', 'triton',      'P1: times 1.00 and 0.31; 0.11 of the memory'),
)
# fmt: on

CHOSEN_BY_CHANNELS = {row.operator for row in TABLE if row.channels is not None}
# Operator name → its declaration.
OPERATORS: dict[str, Any] = {}

_backends: dict[str, str] = {}  # operator → what the environment variable or `backend` selects instead of the table
# (operator, dtype, sizes up to powers of 2) → why its Triton kernels failed for such calls in this process
_failures: dict[tuple[str, torch.dtype, tuple[int, ...]], str] = {}
_traced: list[str] | None = None  # names of the operators whose Triton kernels ran


@functools.cache
def choose(name: str, device: torch.device, dtype: torch.dtype, channels: int | None = None) -> list[tuple[str, str]]:
    """List what may run an operator, or '<operator>_backward', in this order, with the reason against each, or ''."""
    operator = name.removesuffix('_backward')
    selected = _backends.get(operator, 'auto')
    if selected == 'auto' or (selected == 'triton' and operator not in triton.OPERATORS):
        row = _row(operator, device, dtype, channels)
        wanted = 'composition' if row is None else row.forward if name == operator else row.backward
    else:
        wanted = selected
    order = [wanted, *(x for x in ('composition', 'reference') if wanted != 'reference' and x != wanted)]
    if selected == 'native':  # nothing else: the caller wants to know that the kernel ran
        order = [wanted]
    elif device.type == 'cpu' and selected != 'composition':  # the reference is faster
        order = [x for x in order if x != 'composition']
    return [(x, _reason_against(x, operator, device, dtype)) for x in order]


def _row(operator: str, device: torch.device, dtype: torch.dtype, channels: int | None) -> Row | None:
    rows = (row for row in TABLE if (row.operator, row.device) == (operator, device.type) and dtype in row.dtypes)
    row = next((row for row in rows if row.channels in (None, channels)), None)
    if row is None or device.type == 'cpu':
        return row
    return row if is_verified(device) or torch.cuda.get_device_capability(device)[0] >= row.unverified_from else None


def is_verified(device: torch.device) -> bool:
    """Check whether the kernels were verified on a GPU of this compute capability. Those of a CPU always are."""
    return device.type != 'cuda' or torch.cuda.get_device_capability(device)[0] == VERIFIED


def _reason_against(implementation: str, operator: str, device: torch.device, dtype: torch.dtype) -> str:
    if implementation == 'native':
        if library.UNAVAILABLE_REASON is not None:
            return library.UNAVAILABLE_REASON
        return '' if library.has_kernel(operator, device.type) else f'no kernel was built for {device.type}'
    if implementation == 'triton':
        if device.type != 'cuda' and not triton.interpreted():
            return 'Triton runs on GPUs only'
        if device.type == 'cuda' and dtype not in HALF:
            return f'no kernel for {dtype}'
        return triton.unavailable_reason()
    return '' if implementation in OPERATORS[operator].implementations else 'the operator has none'


def run(name: str, arguments: tuple) -> Any:
    """Run an operator, or its derivative, with the first implementation that supports the call."""
    kind = call_kind(name, arguments)
    operator = OPERATORS[name.removesuffix('_backward')]
    is_forward = name == operator.name
    for implementation, reason in choose(name, *kind):
        if reason or (implementation, kind.device.type) == ('native', 'cpu'):  # a CPU's has declined the call
            continue
        if implementation in ('native', 'triton'):
            outputs = _run_kernel(implementation, name, arguments)
        else:
            if is_forward and kind.device.type == 'cuda':
                arguments = _with_lse(name, arguments, kind)
            outputs = (operator.compute if is_forward else operator.compute_backward)(implementation, arguments)
        if outputs is not NotImplemented:
            return outputs
    raise RuntimeError(f'mmattn::{name} {NO_KERNEL}: {kind.dtype} on {kind.device}')


def call_kind(name: str, arguments: tuple) -> Kind:
    """Return what the implementation of a call, or of its backward operator, is chosen by."""
    x, channels = list_tensors(arguments)[0], None
    if name.removesuffix('_backward') in CHOSEN_BY_CHANNELS:
        call = _call(name, arguments)
        channels = call.value.shape[-1] if call.query.shape[-1] == call.value.shape[-1] else None
    return Kind(x.device, x.dtype, channels)


def _call(name: str, arguments: tuple) -> Any:
    """Return the arguments of an operator as its named tuple, also from those of its backward operator."""
    operator = OPERATORS[name.removesuffix('_backward')]
    return operator.Arguments(*arguments) if name == operator.name else operator.backward_call(arguments).arguments


def _run_kernel(kernel: str, name: str, arguments: tuple) -> Any:
    """Run a CUDA or Triton kernel. Returns NotImplemented if it does not support the call, or cannot be compiled."""
    if kernel == 'native':
        try:
            return getattr(torch.ops.mmattn_cuda, name).default(*arguments)
        except NotImplementedError:
            return NotImplemented
    operator = name.removesuffix('_backward')
    if _failures and _call_class(name, arguments) in _failures:
        return NotImplemented
    try:
        outputs = triton.run(name, arguments, always=_backends.get(operator) == 'triton')
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        message = str(error).strip().partition('\n')[0] or type(error).__name__
        _failures[_call_class(name, arguments)] = f'the kernel failed: {message}'
        warnings.warn(f'mmattn: the Triton kernel of {name} failed, PyTorch runs instead: {message}', stacklevel=2)
        return NotImplemented
    if outputs is not NotImplemented and _traced is not None:
        _traced.append(name)
    return outputs


def _call_class(name: str, arguments: tuple) -> tuple[str, torch.dtype, tuple[int, ...]]:
    """Which calls fail alike, in both passes: by operator, dtype, and sizes of operands up to powers of 2."""
    tensors = list_tensors(_call(name, arguments))
    sizes = tuple(n.bit_length() for x in tensors for n in (*x.shape, 0))
    return name.removesuffix('_backward'), tensors[0].dtype, sizes


def failure(operator: str) -> str:
    """Say why the Triton kernels of an operator failed in this process, at first, or return ''."""
    return next((reason for (name, *_), reason in _failures.items() if name == operator), '')


def _with_lse(name: str, arguments: tuple, kind: Kind) -> tuple:
    """Request the log-sum-exp of a composition if a kernel, which needs it, will compute the gradients."""
    operator = OPERATORS[name]
    if not operator.keeps_lse or (_failures and _call_class(name, arguments) in _failures):
        return arguments
    backward = next(x for x, reason in choose(f'{name}_backward', *kind) if not reason)
    return arguments if backward == 'composition' else (*arguments[: len(operator.Arguments._fields) - 1], True)


# What a person selects


def parse_backends(text: str, name: str = 'backend') -> dict[str, str]:
    """Read 'native', for all operators, or pairs, 'local_attention=native,dynamic_conv=native': operator → backend."""
    pairs = (
        [x.strip().partition('=')[::2] for x in text.split(',')]
        if '=' in text
        else [(x, text) for x in library.KERNELS]
    )
    for operator, backend in pairs:
        if operator not in library.KERNELS or backend not in BACKENDS:
            raise ValueError(
                f'{name} must be one of {", ".join(BACKENDS)}, or pairs such as local_attention=native, with '
                f'the operators {", ".join(library.KERNELS)}; got {text!r}'
            )
        if backend == 'native' and library.UNAVAILABLE_REASON is not None:
            raise RuntimeError(f"{name} 'native' requires native kernels: {library.UNAVAILABLE_REASON}")
        if backend == 'triton' and triton.unavailable_reason():
            raise RuntimeError(f"{name} 'triton' is not available: {triton.unavailable_reason()}")
    return dict(pairs)


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Select the implementation of the operators in a ``with`` block, for all threads.

    Compute the gradients in the same block as the outputs. If the kernels are not available, the RuntimeError says why.

    Args:
        name (str): 'native' (native kernels, or an error), 'triton' (Triton kernels on GPUs, where they exist),
            'composition' (PyTorch's own operators in the dtype of the operands), 'reference' (literal references in
            float32 or float64), or the default 'auto' (the table of ``dispatch.py``), for all operators; or pairs such
            as 'local_attention=native,dynamic_conv=native'.

    Example:
        >>> with backend('reference'), kernels_run() as kernels:
        ...     _ = torch.ops.mmattn.dynamic_conv(torch.randn(1, 1, 4, 4, 2), torch.randn(1, 1, 4, 4, 9), [3, 3], 1)
        >>> kernels
        []
    """
    before = dict(_backends)
    _select({**before, **parse_backends(name)})
    try:
        yield
    finally:
        _select(before)


def _select(backends: dict[str, str]) -> None:
    _backends.clear()
    _backends.update(backends)
    choose.cache_clear()
    if library.UNAVAILABLE_REASON is not None:
        return
    for operator in library.KERNELS:
        chosen = backends.get(operator, 'auto')
        if chosen == 'triton':  # in Triton's interpreter, its kernels run in place of those for CPUs
            chosen = 'reference' if operator in triton.OPERATORS and triton.interpreted() else 'auto'
        elif chosen == 'composition':
            chosen = 'reference'  # the call comes here
        for name in (operator, f'{operator}_backward'):
            torch.ops.mmattn_native.set_backend(name, chosen)


_select(parse_backends(os.environ.get('MMATTN_BACKEND', 'auto'), 'MMATTN_BACKEND'))


@contextmanager
def kernels_run() -> Iterator[list[str]]:
    """Yield a list of names that has, after the ``with`` block, the operators whose kernels ran in it."""
    global _traced
    names: list[str] = []
    if library.UNAVAILABLE_REASON is None:
        torch.ops.mmattn_native.trace(True)
    _traced = names
    try:
        yield names
    finally:
        _traced = None
        if library.UNAVAILABLE_REASON is None:
            names += torch.ops.mmattn_native.trace(False)


def kernels_of(operator: str, device: torch.device) -> list[str]:
    """List the kernels that this installation has for an operator on a device: 'native', 'triton'."""
    native = ['native'] if library.has_kernel(operator, device.type) else []
    runs = device.type == 'cuda' or triton.interpreted()
    with_triton = operator in triton.OPERATORS and runs and not triton.unavailable_reason()
    return [*native, 'triton'] if with_triton else native


def run_by(implementation: str, operator: str, function: Callable[[], Any], *, has_backward: bool = True) -> Any | None:
    """Call a function that runs an operator. Returns None if the kernel that is selected does not run each pass."""
    with backend(f'{operator}={implementation}'), kernels_run() as kernels:
        try:
            result = function()
        except RuntimeError as error:
            if NO_KERNEL not in str(error):
                raise
            return None
    needed = {operator, f'{operator}_backward'} if has_backward else {operator}
    return result if needed <= {*kernels} or implementation not in ('native', 'triton') else None
