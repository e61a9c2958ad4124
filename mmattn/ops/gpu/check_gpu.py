"""Report how the kernels for GPUs do on this machine: ``python -m mmattn.utils.check_gpu``.

For each kernel and dtype class, the report says whether values and gradients are those of the reference in float64, and
gives the times of both passes in units of the composition's, of PyTorch's own operators. It changes nothing: the table
of ``dispatch.py`` decides what runs. The last line is the value of MMATTN_BACKEND that selects the kernels which are
correct and faster here. The exit code is 1 if a kernel is incorrect.

Each kernel runs in a process of its own, because one that crashes makes the GPU unusable for its process.
"""

import argparse
import math
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

import mmattn.utils.command
from mmattn.ops import dispatch, library, triton
from mmattn.ops.dispatch import HALF, PASSES

from . import cases
from .cases import Case

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
        for kernel in kernels_of(operator, torch.device(args.device)):
            found = {x: isolated(operator, kernel, x, args.device, args.quick) for x in args.dtypes}
            findings[operator, kernel] = found
            cells = [f'{x.ratios[y]:.2f}' if y in x.ratios else '-' for x in found.values() for y in PASSES]
            print(f'{f"{operator}, {kernel}":28}' + ''.join(f'{cell:>18}' for cell in cells), flush=True)
            for dtypes, finding in found.items():
                if finding.error:
                    print(f'    {dtypes}: {finding.error}', flush=True)
    print(f'MMATTN_BACKEND={selected(findings) or "auto"}')
    return int(not all(finding.is_correct for found in findings.values() for finding in found.values()))


def kernels_of(operator: str, device: torch.device) -> list[str]:
    """List the kernels that this installation has for an operator on a device: 'native', 'triton'."""
    found = ['native'] if library.has_kernel(operator, device.type) else []
    with_triton = operator in triton.OPERATORS and device.type == 'cuda' and not triton.unavailable_reason()
    return [*found, 'triton'] if with_triton else found


def selected(findings: dict[tuple[str, str], dict[str, Finding]]) -> str:
    """Name the kernels that are correct, and faster in the mean of both passes, in every class that they support."""
    pairs = []
    for (operator, kernel), found in findings.items():
        means = [sum(x.ratios.values()) / len(x.ratios) for x in found.values() if x.ratios]
        if means and max(means) < 1 and all(x.is_correct for x in found.values()):
            pairs.append(f'{operator}={kernel}')
    return ','.join(pairs)


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
        return Finding(dispatch._failures.get(operator, 'the kernel supports no case'), {})
    error = f'{errors[0]}{f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""}' if errors else ''
    return Finding(error, time_all(operator, kernel, dtypes, device, quick), not errors)


def _dtypes(dtypes: str, device: str) -> tuple[torch.dtype, ...]:
    return (torch.bfloat16,) if (dtypes, device) == ('16 bit', 'cpu') else DTYPE_CLASSES[dtypes]


# Correctness


def compare_all(operator: str, kernel: str, dtypes: str, device: str, quick: bool) -> tuple[bool, list[str]]:
    """Compare all cases in the dtypes of a class. Returns whether the kernel supports one, and the errors."""
    supported, errors = False, []
    for case in cases.cases(operator, device, quick):
        for dtype in _dtypes(dtypes, device):
            ran, found = compare(operator, case, dtype, kernel)
            supported = supported or ran
            errors += [f'{case.title}, {dtype}: {error}' for error in found]
    return supported, errors


def compare(operator: str, case: Case, dtype: torch.dtype, kernel: str = 'native') -> tuple[bool, list[str]]:
    """Check whether the kernels ran, and describe the errors of their results.

    Kernel and reference receive the same numbers, rounded to ``dtype``.
    """
    try:
        with dispatch.backend(f'{operator}={kernel}'), dispatch.kernels_run() as kernels:
            actual = evaluate(operator, case, dtype, dtype)
    except RuntimeError as error:
        if 'has no kernel for these tensors' in str(error):
            return False, []
        raise
    if not {operator, f'{operator}_backward'} <= set(kernels):
        return False, []
    with dispatch.backend('reference'):
        expected = evaluate(operator, case, dtype, torch.float64)
    errors = errors_in_tolerances(actual, expected, dtype)
    return True, [f'{name} differs by {off:.3g} times the tolerance' for name, off in errors.items() if off > 1]


def errors_in_tolerances(
    actual: dict[str, Tensor], expected: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, float]:
    """Compute the largest error of each result in units of its tolerance, infinite for NaN.

    The tolerance of a number x is eps · abs(x) plus 2 · eps (1e-5 for float32) times the largest absolute value of its
    tensor: a result is rounded once, the backward pass starts from the rounded output, and sums are accumulated in
    float32. For a tensor that nearly vanishes, 1e-3 of the largest value of all tensors replaces its own largest value.
    """
    eps = torch.finfo(dtype).eps
    least = 1e-3 * max(x.abs().max().item() for x in expected.values())
    errors = {}
    for name, x in expected.items():
        scale = max(x.abs().max().item(), least, 1e-30)
        allowed = eps * x.abs() + (1e-5 if dtype == torch.float32 else 2 * eps) * scale
        difference = (actual[name].to(x.device).double() - x.double()).abs()
        errors[name] = (difference / allowed).nan_to_num(nan=math.inf).max().item()
    return errors


def evaluate(operator: str, case: Case, dtype: torch.dtype, computed: torch.dtype) -> dict[str, Tensor]:
    """Compute the output and all gradients in dtype ``computed``, for inputs rounded to ``dtype``."""
    arguments, leaves = _prepare(case, dtype, computed)
    output = getattr(mmattn.ops, operator)(**arguments)
    # Generated on the CPU, so that it is the same for every device.
    cotangent = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    grads = torch.autograd.grad(output, list(leaves.values()), cotangent.to(output.device, computed))
    return {'output': output.detach(), **dict(zip(leaves, grads))}


def _prepare(case: Case, dtype: torch.dtype, computed: torch.dtype) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the arguments of a case, and those among them that have gradients, by name."""
    leaves: dict[str, Tensor] = {}

    def leaf(name: str, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        leaves[f'gradient of {name}'] = x.to(dtype).to(computed).requires_grad_()
        return leaves[f'gradient of {name}']

    arguments = {
        name: [leaf(f'{name}[{i}]', x) for i, x in enumerate(value)] if isinstance(value, list) else leaf(name, value)
        for name, value in case.tensors.items()
    }
    return {**arguments, **case.settings}, leaves


# Times


def time_all(operator: str, kernel: str, dtypes: str, device: str, quick: bool) -> dict[str, float]:
    """Time both passes of the timed cases. The case with the largest ratio to the composition counts."""
    worst: dict[str, float] = {}
    dtype = _dtypes(dtypes, device)[0]
    for case in (x for x in cases.cases(operator, device, quick) if x.is_timed):
        arguments, leaves = _prepare(case, dtype, dtype)
        call = partial(getattr(mmattn.ops, operator), **arguments)
        seconds: dict[str, list[float]] = {}
        for name in (kernel, 'composition'):
            with dispatch.backend(f'{operator}={name}'), dispatch.kernels_run() as kernels:
                try:
                    out = call()
                except RuntimeError as error:
                    if 'has no kernel for these tensors' not in str(error):
                        raise
                    break
                backward = partial(
                    torch.autograd.grad, out, [*leaves.values()], torch.ones_like(out), retain_graph=True
                )
                seconds[name] = [median_seconds(x, quick) for x in (torch.no_grad()(call), backward)]
            if name == kernel and operator not in kernels:
                break
        else:
            for pass_, time, composition in zip(PASSES, seconds[kernel], seconds['composition']):
                worst[pass_] = max(worst.get(pass_, 0.0), time / composition)
    return worst


def median_seconds(call: Callable[[], Any], quick: bool) -> float:
    """Measure the median time of a call, on a GPU until it has finished."""
    threads = torch.get_num_threads()
    timer = Timer('call()', globals={'call': call}, num_threads=threads)
    return timer.blocked_autorange(min_run_time=0.02 if quick else 0.5).median


if __name__ == '__main__':
    mmattn.utils.command.run(main)
