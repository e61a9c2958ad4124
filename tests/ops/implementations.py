"""What computes an operator: each implementation as a context, in which public functions run by it in both passes.

The CUDA sources run on the CPU, by the headers in ``cuda_on_cpu``. Triton's kernels run in its interpreter, which must
be chosen before Triton is imported: in a process with ``TRITON_INTERPRET=1`` they have a row here, as in
``test_triton.py``.
"""

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils import cpp_extension

from mmattn.ops import dispatch, library, table_attention, triton

from ..requirements import requires
from .test_cuda_compiles import CSRC, OPERATOR, TORCH, built

ON_CPU = Path(__file__).parent / 'cuda_on_cpu'
HALF = torch.bfloat16, torch.float16
CUDA = 'local_attention', 'dynamic_conv', 'grid_attention', 'strided_attention'


class Implementation(NamedTuple):
    """A context, and what runs in it."""

    name: str
    running: Callable[[], Any]
    dtypes: tuple[torch.dtype, ...]
    operators: tuple[str, ...] | None = library.KERNELS  # None: all
    lacks: Callable[[str], tuple[str, ...]] = lambda name: ()  # arguments that an operator does not take

    def takes(self, call):
        """Whether it runs a call. Kernels then run in both passes, or there is an error."""
        given = {name for name, x in {**call.tensors, **call.settings}.items() if x is not None and x is not False}
        return (self.operators is None or call.operator in self.operators) and given.isdisjoint(
            self.lacks(call.operator)
        )


@contextlib.contextmanager
def as_on_gpus():
    """PyTorch's attention computes a slice and its gradients. On CPUs, formulas do, in the operands' dtype."""
    with pytest.MonkeyPatch.context() as patch, dispatch.backend('composition'):
        patch.setattr(table_attention, 'uses_sdpa', lambda device: True)
        yield


@contextlib.contextmanager
def instruction_set(name):
    chosen = torch.ops.mmattn_native.cpu_capability()
    torch.ops.mmattn_native.set_cpu_capability(name)
    try:
        with dispatch.backend('native'):
            yield
    finally:
        torch.ops.mmattn_native.set_cpu_capability(chosen)


@functools.cache
def instruction_sets():
    """Those that the processor supports."""
    if library.UNAVAILABLE_REASON is not None:
        return []
    chosen, found = torch.ops.mmattn_native.cpu_capability(), []
    for name in library.CPU_CAPABILITIES:
        torch.ops.mmattn_native.set_cpu_capability(name)
        found.append(torch.ops.mmattn_native.cpu_capability())
    torch.ops.mmattn_native.set_cpu_capability(chosen)
    return list(dict.fromkeys(found))


@functools.cache
def cuda_library():
    """Load the raw operators, with the schemas of the dispatcher operators."""
    flags = ['-O2', '-g0', '-std=c++20', '-U_FORTIFY_SOURCE', '-Wall', '-Wextra', '-Werror', '-Wno-unknown-pragmas']
    command = ['g++', '-shared', '-fPIC', *flags, f'-I{ON_CPU}', f'-I{CSRC}', *TORCH]
    sources = [ON_CPU / 'calls.cpp', '-x', 'c++', *sorted((CSRC / 'cuda').glob('*.cu'))]
    libraries = [f'-L{cpp_extension.TORCH_LIB_PATH}', '-lc10', '-ltorch_cpu']
    torch.ops.load_library(built(command, [*sources, *libraries], ON_CPU, CSRC / 'cuda', *OPERATOR, name='on_cpu.so'))
    schemas = torch.library.Library('cuda_on_cpu', 'DEF')
    for name in CUDA:
        for each in (name, f'{name}_backward'):
            schemas.define(str(getattr(torch.ops.mmattn, each).default._schema).removeprefix('mmattn::'))
    return schemas


def in_place_of(kernel, compute, implementation, arguments):
    return kernel(*arguments) if implementation == 'composition' else compute(implementation, arguments)


@contextlib.contextmanager
def cuda_on_cpu():
    cuda_library()
    with pytest.MonkeyPatch.context() as patch, dispatch.backend('composition'):
        for name in CUDA:
            for method, each in (('compute', name), ('compute_backward', f'{name}_backward')):
                kernel, otherwise = getattr(torch.ops.cuda_on_cpu, each), getattr(dispatch.OPERATORS[name], method)
                patch.setattr(dispatch.OPERATORS[name], method, functools.partial(in_place_of, kernel, otherwise))
        yield


def cuda_lacks(name):
    return dispatch.OPERATORS[name].cuda_lacks


@functools.cache
def interpreter():
    from ..fuzz import triton_kernels

    triton_kernels.speed_up_interpreter()


@contextlib.contextmanager
def in_triton():
    interpreter()
    with dispatch.backend('triton'), dispatch.kernels_run() as ran:
        yield
    assert {'global_attention', 'global_attention_backward'} <= {*ran}


EXACT = (torch.float64,)
REFERENCE = Implementation('reference', lambda: dispatch.backend('reference'), EXACT, None)
COMPOSITION = Implementation('composition', lambda: dispatch.backend('composition'), EXACT)
AS_ON_GPUS = Implementation('composition, as on GPUs', as_on_gpus, EXACT)
NATIVE = [
    Implementation(name, functools.partial(instruction_set, name), (torch.float32, torch.bfloat16))
    for name in instruction_sets()
]
CUDA_ON_CPU = Implementation('CUDA', cuda_on_cpu, (torch.float32, *HALF), CUDA, cuda_lacks)
# The interpreter's products of bfloat16 are wrong.
TRITON = Implementation('Triton', in_triton, (torch.float32, torch.float16), ('global_attention',))
# By what an environment needs, and whether they run by default.
GROUPS = [
    pytest.param([REFERENCE, COMPOSITION, AS_ON_GPUS, *NATIVE[-1:]], id='default'),
    pytest.param(NATIVE[:-1], id='instruction sets', marks=[pytest.mark.kernels, requires('native operators')]),
    pytest.param([CUDA_ON_CPU], id='CUDA', marks=[pytest.mark.kernels, requires('g++')]),
    *([pytest.param([TRITON], id='Triton')] if triton.interpreted() else []),
]
by_all = pytest.mark.parametrize('implementations', GROUPS)


def run_each(implementations, call, check, dtypes=(torch.float64, torch.float32, *HALF)):
    """Call ``check`` with each dtype in each implementation that takes a call, while it runs. An error says which."""
    rows = [(x, dtype) for x in implementations if x.takes(call) for dtype in x.dtypes if dtype in dtypes]
    if not rows:
        pytest.skip('none of these takes the call')
    for implementation, dtype in rows:
        try:
            with implementation.running(), memory_is_nan_first():
                check(dtype)
        except Exception as error:
            raise AssertionError(f'{implementation.name}, {dtype}, {call.operator}: {call.settings}') from error


@contextlib.contextmanager
def memory_is_nan_first():
    """Memory that torch hands out is NaN first, so that every number of a result must be written."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
