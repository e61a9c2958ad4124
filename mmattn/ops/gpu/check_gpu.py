"""Report how the kernels for GPUs do on this machine: ``python -m mmattn.utils.check_gpu``.

For each kernel and dtype class, the report says whether values and gradients are those of the reference in float64, and
gives the times of both passes in units of the composition's, of PyTorch's own operators. It changes nothing: the table
of ``dispatch.py`` decides what runs. The last line is the value of MMATTN_BACKEND that selects the kernels which are
correct and faster here. The exit code is 1 if a kernel is incorrect.

Each kernel runs in a process of its own, because one that crashes makes the GPU unusable for its process.
"""

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

import torch

import mmattn.utils.command
from mmattn.ops import dispatch, library, operator_calls, testing, triton
from mmattn.ops.autograd import list_tensors
from mmattn.ops.dispatch import HALF
from mmattn.ops.reports import PASSES
from mmattn.utils import profiling

DTYPE_CLASSES = {'16 bit': HALF, 'float32': (torch.float32,)}


class Finding(NamedTuple):
    """What was found on a kernel in a dtype class."""

    error: str  # why it is incorrect, or was not measured; '' if it is correct
    ratios: dict[str, float]  # pass → time in units of the composition's, on the case with the largest ratio
    is_correct: bool = True


def main() -> int:
    """Report on every kernel. Return the exit code."""
    parser = argparse.ArgumentParser(prog='check_gpu', description='Report how the kernels of mmattn do on a GPU.')
    parser.add_argument('--device', default='cuda:0', help='GPU, such as cuda:1; default: cuda:0')
    parser.add_argument('--operators', nargs='+', choices=library.KERNELS, default=library.KERNELS)
    parser.add_argument('--dtypes', nargs='+', choices=DTYPE_CLASSES, default=list(DTYPE_CLASSES))
    parser.add_argument('--quick', action='store_true', help='use small maps')
    args = parser.parse_args()
    if args.device != 'cpu':  # which tests the report itself, on the kernels for CPUs
        if not torch.cuda.is_available():
            raise SystemExit(f'torch {torch.__version__} finds no usable GPU')
        versions = f'torch {torch.__version__}, {triton.unavailable_reason() or f"Triton {triton.version()}"}'
        print(f'{torch.cuda.get_device_name(args.device)}, {versions}')
    findings: dict[tuple[str, str], dict[str, Finding]] = {}
    columns = [f'{dtypes} {pass_}' for dtypes in args.dtypes for pass_ in PASSES]
    print(f'{"times / composition":28}' + ''.join(f'{column:>18}' for column in columns))
    for operator in args.operators:
        for kernel in operator_calls.kernels_of(operator, torch.device(args.device)):
            found = {x: isolated(operator, kernel, x, args.device, args.quick) for x in args.dtypes}
            findings[operator, kernel] = found
            cells = [f'{x.ratios[y]:.2f}' if y in x.ratios else '-' for x in found.values() for y in PASSES]
            print(f'{f"{operator}, {kernel}":28}' + ''.join(f'{cell:>18}' for cell in cells), flush=True)
            for dtypes, finding in found.items():
                if finding.error:
                    print(f'    {dtypes}: {finding.error}', flush=True)
    print(f'MMATTN_BACKEND={selected(findings) or "auto"}')
    return int(not all(finding.is_correct for found in findings.values() for finding in found.values()))


def selected(findings: dict[tuple[str, str], dict[str, Finding]]) -> str:
    """Name the kernels that are correct, and faster in the mean of both passes, in every class that they support.

    Where an operator has two, the native one, which also supports float32, comes first.
    """
    chosen: dict[str, str] = {}
    for (operator, kernel), found in findings.items():
        means = [sum(x.ratios.values()) / len(x.ratios) for x in found.values() if x.ratios]
        if means and max(means) < 1 and all(x.is_correct for x in found.values()):
            chosen.setdefault(operator, kernel)
    return ','.join(f'{operator}={kernel}' for operator, kernel in chosen.items())


def isolated(operator: str, kernel: str, dtypes: str, device: str, quick: bool) -> Finding:
    """Run :func:`check` in a new process. A kernel that ends the process, or raises an error, is incorrect."""
    with ProcessPoolExecutor(1, multiprocessing.get_context('spawn')) as pool:
        try:
            return pool.submit(check, operator, kernel, dtypes, device, quick).result()
        except Exception as error:
            return Finding(str(error).strip().partition('\n')[0] or type(error).__name__, {}, False)


def check(operator: str, kernel: str, dtypes: str, device: str, quick: bool) -> Finding:
    """Compare a kernel with the reference, and time it, in a dtype class."""
    if device != 'cpu':
        torch.cuda.set_device(device)
    supported, errors = compare_all(operator, kernel, dtypes, device, quick)
    if not supported:  # a Triton kernel that does not compile says why
        return Finding(dispatch.failure(operator) or 'the kernel supports no case', {})
    error = f'{errors[0]}{f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""}' if errors else ''
    return Finding(error, time_all(operator, kernel, dtypes, device, quick), not errors)


def _dtypes(dtypes: str, device: str) -> tuple[torch.dtype, ...]:
    return (torch.bfloat16,) if (dtypes, device) == ('16 bit', 'cpu') else DTYPE_CLASSES[dtypes]


def compare_all(operator: str, kernel: str, dtypes: str, device: str, quick: bool) -> tuple[bool, list[str]]:
    """Compare all calls in the dtypes of a class. Returns whether the kernel supports one, and the errors."""
    supported, errors = False, []
    for call in operator_calls.all_calls(operator, device, quick):
        for dtype in _dtypes(dtypes, device):
            result = testing.errors(call, dtype, kernel)
            supported = supported or result is not None
            for name, error in (result or {}).items():
                if error > 1:
                    name = f'gradient of {name[2:]}' if name.startswith('d_') else name
                    errors.append(f'{call.title}, {dtype}: {name} differs by {error:.3g} times the tolerance')
    return supported, errors


def time_all(operator: str, kernel: str, dtypes: str, device: str, quick: bool) -> dict[str, float]:
    """Time both passes of the timed calls. The call with the largest ratio to the composition counts."""
    worst: dict[str, float] = {}
    dtype, most = _dtypes(dtypes, device)[0], 0.02 if quick else 0.5
    for call in (x for x in operator_calls.large_calls(operator, device, quick) if x.is_timed):
        tensors = operator_calls.cast(call.tensors, dtype)
        given = [x.requires_grad_() for x in list_tensors(tuple(tensors.values())) if x.is_floating_point()]
        forward = partial(operator_calls.operator(operator), **tensors, **call.settings)
        times: dict[str, list[float]] = {}
        for name in (kernel, 'composition'):
            if (out := testing.run_by(name, operator, forward, has_backward=False)) is None:
                break
            with dispatch.backend(f'{operator}={name}'):
                backward = partial(torch.autograd.grad, out, given, torch.ones_like(out), retain_graph=True)
                times[name] = [profiling.milliseconds(x, most) for x in (torch.no_grad()(forward), backward)]
        if len(times) == 2:
            for pass_, time, composition in zip(PASSES, times[kernel], times['composition']):
                worst[pass_] = max(worst.get(pass_, 0.0), time / composition)
    return worst


if __name__ == '__main__':
    mmattn.utils.command.run(main)
