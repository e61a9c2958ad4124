"""Chooses what runs an operator: a native kernel, a Triton kernel, a composition, or the reference.

No other module chooses. The first of the :func:`candidates` without a reason against it runs. Nothing here looks at
values, and a call of an operator never communicates with other processes: processes that make different calls would
deadlock. A process chooses the kernels for its GPUs once: at the first call of an operator on a GPU, from the verdicts
of the check (``gpu/verdict.py``), or in :func:`agree_on_kernels`, for all processes of a run.
"""

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import distributed

from . import library, registry, triton
from .autograd import list_tensors
from .gpu import verdict
from .gpu.verdict import DTYPE_CLASSES, PASSES

DIFFERENT = 'the processes have different GPUs or builds'
# CUDA kernels that are expected to be slower than Triton's and than compositions: the check measures them on request.
OPT_IN = ('global_attention', 'grid_attention', 'strided_attention')
DTYPES = {  # dtypes of the kernels' operands
    'cpu': (torch.float32, torch.bfloat16),
    'cuda': (torch.float32, torch.float16, torch.bfloat16),
}

_lock = threading.RLock()
_backend = os.environ.get('MMATTN_BACKEND', 'auto')
# (operator, dtype class, pass) → what runs, and the reasons against the other kernels.
Selection = dict[tuple[str, str, str], tuple[str, dict[str, str]]]
_selection: Selection | None = None
_failures: dict[str, str] = {}  # Triton kernels that failed in this process → the message
_orders: dict[tuple, list[str]] = {}  # the candidates that run, first to last
_traced: list[str] | None = None  # names of the operators whose Triton kernels ran


class Candidate(NamedTuple):
    """An implementation of an operator, and why it does not run, or ''."""

    implementation: str
    reason: str


def candidates(name: str, device: torch.device, dtype: torch.dtype) -> list[Candidate]:
    """List the implementations of an operator, or of '<operator>_backward', in the order in which they are tried."""
    return [
        Candidate('native', _against_native(name, device, dtype)),
        Candidate('triton', _against_triton(name, device, dtype)),
        Candidate('composition', _against_composition(name, device)),
        Candidate('reference', ''),
    ]


def _against_native(name: str, device: torch.device, dtype: torch.dtype) -> str:
    if name.removesuffix('_backward') not in library.KERNELS:
        return 'the operator has no kernel'
    if library.UNAVAILABLE_REASON is not None:
        return library.UNAVAILABLE_REASON
    if not library.has_kernel(name, device.type):
        return f'no kernel was built for {device.type}'
    if dtype not in DTYPES.get(device.type, ()):
        return f'no kernel for {dtype}'
    if _backend in ('composition', 'reference') or (_backend == 'triton' and triton.interpreted()):
        return f"backend '{_backend}' is selected"
    return '' if _backend == 'native' or device.type == 'cpu' else _against_kernel('cuda', name, dtype)


def _against_triton(name: str, device: torch.device, dtype: torch.dtype) -> str:
    if name.removesuffix('_backward') not in triton.OPERATORS:
        return 'the operator has no Triton kernel'
    if device.type != 'cuda' and not triton.interpreted():
        return 'Triton runs on GPUs only'
    if triton.unavailable_reason():
        return triton.unavailable_reason()
    if dtype not in DTYPES['cuda']:
        return f'no kernel for {dtype}'
    if name in _failures:
        return _failures[name]
    if _backend not in ('auto', 'triton'):
        return f"backend '{_backend}' is selected"
    return '' if _backend == 'triton' else _against_kernel('triton', name, dtype)


def _against_composition(name: str, device: torch.device) -> str:
    if 'composition' not in registry.FUNCTIONS[name]:
        return 'the operator has no composition'
    if _backend == 'reference':
        return f"backend '{_backend}' is selected"
    return 'on a CPU, the reference is as fast' if device.type == 'cpu' and _backend != 'composition' else ''


def _against_kernel(kernel: str, name: str, dtype: torch.dtype) -> str:
    operator, pass_ = name.removesuffix('_backward'), PASSES[name.endswith('_backward')]
    dtypes = DTYPE_CLASSES[dtype == torch.float32]
    selected, reasons = (_selection or {}).get((operator, dtypes, pass_), ('composition', {}))
    return '' if selected == kernel else reasons.get(kernel, verdict.NOT_CHECKED)


def run(name: str, arguments: tuple) -> Any:
    """Run an operator for which no native kernel has run. The dispatcher tries native kernels first."""
    device, dtype = _device_and_dtype(arguments)
    if device.type == 'cuda' and _selection is None:
        choose_kernels()
        if not _against_native(name, device, dtype):
            return getattr(torch.ops.mmattn, name).default(*arguments)
    for implementation in _order(name, device, dtype):
        if implementation == 'triton':
            outputs = _run_triton(name, arguments)
        else:
            if implementation == 'composition' and device.type != 'cpu':
                arguments = _with_lse(name, arguments, device, dtype)
            outputs = registry.FUNCTIONS[name][implementation](*arguments)
        if outputs is not NotImplemented:
            return outputs
    raise NotImplementedError(f'nothing runs mmattn::{name} for {dtype} on {device}')


def _device_and_dtype(arguments: tuple) -> tuple[torch.device, torch.dtype]:
    tensors = list_tensors(arguments)
    return tensors[0].device, next((x.dtype for x in tensors if x.is_floating_point()), torch.float32)


def _order(name: str, device: torch.device, dtype: torch.dtype) -> list[str]:
    key = name, device.type, dtype
    if key not in _orders:
        running = [x.implementation for x in candidates(name, device, dtype) if not x.reason]
        _orders[key] = [x for x in running if x != 'native']  # a native kernel has declined the call
    return _orders[key]


def _with_lse(name: str, arguments: tuple, device: torch.device, dtype: torch.dtype) -> tuple:
    """Request the log-sum-exp of a composition if a kernel, which needs it, will compute the gradients."""
    operator = registry.OPERATORS.get(name)
    if operator is None or not operator.returns_lse:
        return arguments
    first = next(x for x in candidates(f'{name}_backward', device, dtype) if not x.reason)
    return arguments if first.implementation == 'composition' else (*operator.Arguments(*arguments)[:-1], True)


def _run_triton(name: str, arguments: tuple) -> Any:
    # If the kernel fails to compile or to start, warn, and do without it in this process.
    try:
        outputs = triton.run(name, arguments)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        message = str(error).strip().partition('\n')[0] or type(error).__name__
        _failures[name] = f'the kernel failed: {message}'
        _orders.clear()
        warnings.warn(f'mmattn: the Triton kernel of {name} failed, PyTorch runs instead: {message}', stacklevel=2)
        return NotImplemented
    if outputs is not NotImplemented and _traced is not None:
        _traced.append(name)
    return outputs


registry.run = run


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Select the implementation of the operators in a ``with`` block, for all threads.

    Compute the gradients in the same block as the outputs. If the kernels are not available, the RuntimeError says why.

    Args:
        name (str): 'native' (native kernels), 'triton' (Triton kernels on GPUs, where they exist), 'composition'
            (PyTorch's own operators in the dtype of the operands), 'reference' (literal references in float32 or
            float64), or the default 'auto' (kernels on CPUs, checked kernels and compositions on GPUs).

    Example:
        >>> with backend('reference'), kernels_run() as kernels:
        ...     _ = torch.ops.mmattn.dynamic_conv(torch.randn(1, 1, 4, 4, 2), torch.randn(1, 1, 4, 4, 9), [3, 3], 1)
        >>> kernels
        []
    """
    if name not in library.BACKENDS:
        raise ValueError(f'backend must be one of {", ".join(library.BACKENDS)}; got {name!r}')
    if name == 'native' and library.UNAVAILABLE_REASON is not None:
        raise RuntimeError(f"backend 'native' requires native kernels: {library.UNAVAILABLE_REASON}")
    if name == 'triton' and triton.unavailable_reason():
        raise RuntimeError(f"backend 'triton' is not available: {triton.unavailable_reason()}")
    before = _backend
    _select(name)
    try:
        yield
    finally:
        _select(before)


def _select(name: str) -> None:
    global _backend
    _backend = name
    _orders.clear()
    if library.UNAVAILABLE_REASON is None:
        torch.ops.mmattn_native.set_backend(library.native_backend(name, triton.interpreted()))
        _allow_native()


@contextmanager
def kernels_run() -> Iterator[list[str]]:
    """Record the operators whose kernels run in a ``with`` block. The list is filled when the block ends."""
    global _traced
    names: list[str] = []
    _traced = names
    if library.UNAVAILABLE_REASON is None:
        torch.ops.mmattn_native.trace(True)
    try:
        yield names
    finally:
        _traced = None
        if library.UNAVAILABLE_REASON is None:
            names += torch.ops.mmattn_native.trace(False)


def available_kernels(operator: str) -> list[str]:
    """List the kernels for GPUs that this installation has for an operator: 'cuda', 'triton'."""
    kernels = ['cuda'] if library.has_kernel(operator, 'cuda') else []
    return [*kernels, 'triton'] if operator in triton.OPERATORS and not triton.unavailable_reason() else kernels


def select_kernels(kinds: list[dict[str, str]]) -> Selection:
    """Select what runs on these kinds of GPUs, by operator, dtype class and pass, with the reasons against the rest."""
    verdicts = [verdict.read(kind) for kind in kinds] or [{}]
    selection: Selection = {}
    for operator in library.KERNELS:
        for dtypes in DTYPE_CLASSES:
            for pass_ in PASSES:
                kernels = available_kernels(operator)
                choices = [verdict.select(findings, operator, dtypes, pass_, kernels) for findings in verdicts]
                selected, reasons = choices[0]
                if any(choice[0] != selected for choice in choices):
                    selected, reasons = 'composition', dict.fromkeys(kernels, DIFFERENT)
                selection[operator, dtypes, pass_] = selected, reasons
    return selection


def choose_kernels() -> None:
    """Choose the kernels for the GPUs of this process, once. Warns if faster kernels may be available."""
    with _lock:
        if _selection is None:
            _apply(select_kernels(verdict.machines()))
            if _backend == 'auto' and (missing := what_may_be_faster()):
                warnings.warn(f'mmattn: {missing}', stacklevel=2)


def agree_on_kernels() -> None:
    """Choose the kernels for all processes of a distributed run. All processes must call this function.

    Rank 0 chooses, so only its machine needs verdicts. If the GPUs or the builds differ, no kernel runs on a GPU.
    """
    kinds = verdict.machines()
    selection = select_kernels(kinds)
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        gathered: list[Any] = [None] * distributed.get_world_size()
        sources = verdict.sources()
        kernels = {operator: available_kernels(operator) for operator in library.KERNELS}
        distributed.all_gather_object(gathered, (kinds, sources, kernels, selection))
        if all(other[:3] == gathered[0][:3] for other in gathered):
            selection = gathered[0][3]
        else:
            selection = {key: ('composition', dict.fromkeys(kernels[key[0]], DIFFERENT)) for key in selection}
    with _lock:
        _apply(selection)


def what_may_be_faster() -> str:
    """Say which kernels for GPUs were not checked or are missing, and how to get them. '' if there are none."""
    texts = []
    unchecked = sorted(
        {
            operator
            for (operator, _, _), (_, reasons) in (_selection or {}).items()
            for kernel, reason in reasons.items()
            if reason == verdict.NOT_CHECKED and not (kernel == 'cuda' and operator in OPT_IN)
        }
    )
    if unchecked:
        texts.append(
            f'PyTorch runs {", ".join(unchecked)} on this GPU; kernels that may be faster were not checked on it; to '
            f'check them, run: {verdict.COMMAND}'
        )
    if triton.unavailable_reason():
        texts.append(f'Triton kernels do not run: {triton.unavailable_reason()}')
    if not library.has_kernel('local_attention', 'cuda'):
        reason = library.UNAVAILABLE_REASON or 'they were built without CUDA'
        texts.append(
            f'CUDA kernels of local_attention and dynamic_conv do not run: {reason}; to build them, install '
            f'nvcc of the CUDA version of torch, and run: FORCE_CUDA=1 {library.BUILD}'
        )
    return '; '.join(texts)


def describe_on_gpu(operator: str) -> str:
    """Name what runs an operator on a GPU, in 16 bit and float32, forward and backward, with the reasons."""
    texts: dict[str, list[str]] = {}
    for dtype, dtypes in ((torch.bfloat16, DTYPE_CLASSES[0]), (torch.float32, DTYPE_CLASSES[1])):
        for pass_, name in zip(PASSES, (operator, f'{operator}_backward')):
            listed = candidates(name, torch.device('cuda'), dtype)
            first = next(i for i, x in enumerate(listed) if not x.reason)
            reasons = '; '.join(f'{x.implementation}: {x.reason}' for x in listed[:first])
            text = f'{listed[first].implementation}{f" ({reasons})" if reasons else ""}'
            texts.setdefault(text, []).append(f'{dtypes} {pass_}')
    if len(texts) == 1:
        return next(iter(texts))
    return ', '.join(f'{" and ".join(calls)}: {text}' for text, calls in texts.items())


def explain(operator: Callable, *args: Any, **kwargs: Any) -> str:
    """Explain which implementation runs a call of an operator, and why the others do not.

    ``operator`` is a function of ``mmattn.ops``, such as :func:`global_attention`, followed by the arguments of the
    call. For the forward and the backward pass, the result has a line for each implementation, up to the one that runs.

    Example:
        >>> from mmattn.ops import dynamic_conv
        >>> value, logits = torch.randn(1, 8, 32, 32, 16).half(), torch.randn(1, 8, 32, 32, 9)
        >>> print(explain(dynamic_conv, value, logits, kernel_size=3))  # doctest: +ELLIPSIS
        dynamic_conv, torch.float16 on cpu
        forward: reference
        ...
    """
    name, arguments = operator.__name__, getattr(operator, 'arguments', None)
    if arguments is None:
        raise ValueError(f'operator must be one of mmattn.ops with kernels, such as global_attention; got {name}')
    device, dtype = _device_and_dtype(arguments(*args, **kwargs))
    if device.type == 'cuda':
        choose_kernels()
    lines = [f'{name}, {dtype} on {device}']
    for pass_, full_name in zip(PASSES, (name, f'{name}_backward')):
        listed = candidates(full_name, device, dtype)
        first = next(i for i, x in enumerate(listed) if not x.reason)
        lines.append(f'{pass_}: {listed[first].implementation}')
        lines += [f'    not {x.implementation}: {x.reason}' for x in listed[:first]]
    return '\n'.join(lines)


def _apply(selection: Selection) -> None:
    global _selection
    _selection = selection
    _orders.clear()
    if library.UNAVAILABLE_REASON is None:
        _allow_native()


def _allow_native() -> None:
    for (operator, dtypes, pass_), _ in (_selection or {}).items():
        if dtypes == DTYPE_CLASSES[0] and library.has_kernel(operator, 'cuda'):
            name = f'{operator}_backward' if pass_ == PASSES[1] else operator
            sixteen_bit, float32 = (
                not _against_native(name, torch.device('cuda'), dtype) for dtype in (torch.float16, torch.float32)
            )
            torch.ops.mmattn_native.allow(name, sixteen_bit, float32)
