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
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.benchmark import Timer

import mmattn.utils.command
from mmattn.ops import dispatch, library, triton
from mmattn.ops.autograd import list_tensors
from mmattn.ops.dispatch import HALF
from mmattn.ops.reports import PASSES

from . import cases
from .cases import Case

# How many roundings of all inputs a result may be off: more where sums have no more digits than their terms.
ROUNDINGS = {torch.float16: 2, torch.bfloat16: 2, torch.float32: 64}
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
    runs = device.type == 'cuda' or triton.interpreted()
    with_triton = operator in triton.OPERATORS and runs and not triton.unavailable_reason()
    return [*found, 'triton'] if with_triton else found


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
    errors = errors_in_tolerances(actual, *reference(operator, case, dtype))
    return True, [f'{name} differs by {off:.3g} times the tolerance' for name, off in errors.items() if off > 1]


def reference(operator: str, case: Case, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Compute in float64 what inputs rounded to ``dtype`` give. Also returns by how much each number may differ.

    A kernel rounds what it stores and what it multiplies, which changes its results about as rounding the inputs does,
    and the output from which the backward pass starts. So they are all moved by half a unit in the last place, up or
    down, and the tolerance of a tensor is its largest change, times :data:`ROUNDINGS`, and one rounding of each number.
    """
    eps = torch.finfo(dtype).eps
    with dispatch.backend('reference'):
        expected = evaluate(operator, case, dtype, torch.float64)
        moved = evaluate(operator, case, dtype, torch.float64, shift=eps / 2)
    tolerances = {}
    for name, x in expected.items():
        change = torch.where(x == moved[name], 0, moved[name] - x).abs().max()  # also where both are −∞
        tolerances[name] = eps * torch.where(x.isfinite(), x, 0).abs() + ROUNDINGS[dtype] * change
    return expected, tolerances


def errors_in_tolerances(
    actual: dict[str, Tensor], expected: dict[str, Tensor], tolerances: dict[str, Tensor]
) -> dict[str, float]:
    """Compute the largest error of each result in units of its tolerance, infinite for NaN."""
    errors = {}
    for name, x in expected.items():
        y = actual[name].to(x.device).double()
        error = torch.where(x == y, 0, (y - x).abs() / tolerances[name])
        errors[name] = error.nan_to_num(nan=math.inf).max().item() if error.numel() else 0.0
    return errors


def evaluate(
    operator: str, case: Case, dtype: torch.dtype, computed: torch.dtype, shift: float = 0.0
) -> dict[str, Tensor]:
    """Compute the outputs and all gradients in dtype ``computed``, for inputs rounded to ``dtype``.

    With ``shift``, inputs, gradients of outputs, and the output that the backward pass keeps, are multiplied by
    1 ± ``shift``.
    """
    # Generated on the CPU, so that they are the same for every device.
    generator = torch.Generator().manual_seed(1)

    def moved(x: Tensor) -> Tensor:
        return x * (1 + shift * (2 * torch.randint(2, x.shape, generator=generator) - 1).to(x)) if shift else x

    def rounded(x: Tensor) -> Tensor:
        return moved(x.to(dtype).to(computed))

    arguments, leaves = _prepare(case, rounded)
    inputs, axes = {x.data_ptr() for x in list_tensors(list(arguments.values()))}, case.tensors['value'].dim()

    def keep(x: Tensor) -> Tensor:  # the log-sum-exp has fewer axes than the output, and is not rounded
        return moved(x) if x.dim() == axes and x.data_ptr() not in inputs else x

    with saved_tensors_hooks(keep, lambda x: x):
        outputs = getattr(mmattn.ops, operator)(**arguments)
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    draws = [torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) for x in outputs]
    cotangents = [rounded(x.to(y.device)).to(y.dtype) for x, y in zip(draws, outputs)]
    grads = torch.autograd.grad(outputs, list(leaves.values()), cotangents)
    return {**dict(zip(('output', 'log-sum-exp'), (x.detach() for x in outputs))), **dict(zip(leaves, grads))}


def _prepare(case: Case, convert: Callable[[Tensor], Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the arguments of a case, converted, and those among them that have gradients, by name."""
    leaves: dict[str, Tensor] = {}

    def leaf(name: str, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        leaves[f'gradient of {name}'] = convert(x).detach().requires_grad_()
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
        arguments, leaves = _prepare(case, lambda x: x.to(dtype))
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
