"""Check the kernels on the GPUs of this machine: ``python -m mmattn.utils.check_gpu``.

By default, compositions of PyTorch's operators run on a GPU. For each kernel, dtype class and pass, this check compares
values and gradients with the reference in float64, and the time with the time of the composition. From then on, kernels
that are correct and faster run on such GPUs. CUDA kernels of global_attention, grid_attention and strided_attention,
which are expected to be slower than Triton's, are only checked with ``--kernels cuda``.

The check requires only torch. Each kernel is checked in a separate process, because a kernel that crashes makes the GPU
unusable for the whole process. Findings are written after each kernel. To resume an interrupted check, run the same
command again. The exit code is 1 if the check cannot run, or if a kernel is incorrect.
"""

import argparse
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import mmattn.utils.command

import torch
from torch import Tensor

from mmattn.ops import backends, library, triton

from . import cases, verdict
from .cases import Case, Workload
from .verdict import DTYPE_CLASSES, PASSES, Finding, Key

FORWARD, BACKWARD = PASSES
BACKENDS = {'cuda': 'native', 'triton': 'triton'}  # kernel → backend; on the CPU, 'cuda' stands for its native kernel
REPEATS = 15
QUICK_REPEATS = 3
TIMEOUT = 600.0  # seconds, for one kernel
OUT_OF_MEMORY = 'out of memory'


def main() -> int:
    """Check the kernels on every kind of GPU. Return the exit code."""
    parser = argparse.ArgumentParser(prog='check_gpu', description='Check the kernels of mmattn on this machine.')
    parser.add_argument('--device', help='GPU to check, such as cuda:1; default: each kind of GPU once')
    parser.add_argument('--operators', nargs='+', choices=library.KERNELS, default=library.KERNELS)
    parser.add_argument(
        '--kernels', choices=verdict.KERNELS, help='only CUDA kernels, all of them, or only Triton kernels'
    )
    parser.add_argument('--dtypes', nargs='+', choices=DTYPE_CLASSES, default=DTYPE_CLASSES)
    parser.add_argument('--again', action='store_true', help='also check what was checked before')
    parser.add_argument('--quick', action='store_true', help='use small maps, and write no verdict')
    args = parser.parse_args()
    if os.environ.pop('MMATTN_BACKEND', None) == 'reference':  # the check selects the backend, also in its processes
        parser.error('MMATTN_BACKEND=reference disables the kernels; unset it')
    on_cpu = args.device == 'cpu'  # tests the check itself
    incorrect = False
    for device in ['cpu'] if on_cpu else _gpus(args.device):
        kind = {} if on_cpu else verdict.machine(torch.device(device).index)
        if not on_cpu:
            print(', '.join(f'{name} {value}' for name, value in kind.items()))
        findings = check_all(device, kind, args)
        print_summary(findings)
        incorrect = incorrect or any(finding.state == 'incorrect' for finding in findings.values())
    return int(incorrect)


def _gpus(device: str | None) -> list[str]:
    if not torch.cuda.is_available():
        raise SystemExit(f'torch {torch.__version__} finds no usable GPU')
    count = torch.cuda.device_count()
    if device is None:
        return [f'cuda:{i}' for i in {str(verdict.machine(i)): i for i in reversed(range(count))}.values()]
    index = torch.device(device).index or 0
    if torch.device(device).type != 'cuda' or index >= count:
        raise SystemExit(f'--device must be one of {", ".join(f"cuda:{i}" for i in range(count))}; got {device}')
    return [f'cuda:{index}']


def selected_kernels(device: str, operators: Sequence[str], only: str | None) -> list[tuple[str, str]]:
    """List the operators and kernels to check, and print which kernels cannot run."""
    if device == 'cpu':
        return [(operator, 'cuda') for operator in operators]
    kernels = []
    reasons: dict[str, list[str]] = {}
    for operator in operators:
        for kernel in verdict.KERNELS if only is None else (only,):
            opt_in = kernel == 'cuda' and operator in backends.OPT_IN and only is None
            if opt_in or (kernel == 'triton' and operator not in triton.OPERATORS):
                continue
            if reason := verdict.unusable_kernel(operator, kernel):
                reasons.setdefault(f'{kernel}: {reason}', []).append(operator)
            else:
                kernels.append((operator, kernel))
    for reason, names in reasons.items():
        print(f'not checked: {", ".join(names)}, {reason}')
    if not kernels:
        raise SystemExit(
            f'there is no kernel to check; for CUDA kernels, install nvcc of the CUDA version of torch, and run: '
            f'FORCE_CUDA=1 {library.BUILD}'
        )
    return kernels


def check_all(device: str, kind: dict[str, str], args: argparse.Namespace) -> dict[Key, Finding]:
    """Check the kernels one by one, and write the findings after each. Returns all findings, old ones included."""
    earlier = verdict.read(kind) if kind and not args.quick else {}
    findings: dict[Key, Finding] = {}
    kernels = selected_kernels(device, args.operators, args.kernels)
    for number, (operator, kernel) in enumerate(kernels, 1):
        title = f'{number} of {len(kernels)}: {operator}, {kernel}'
        missing = [
            dtypes
            for dtypes in args.dtypes
            if args.again or any(Key(operator, kernel, dtypes, pass_) not in earlier for pass_ in PASSES)
        ]
        for key in (Key(operator, kernel, dtypes, pass_) for dtypes in args.dtypes for pass_ in PASSES):
            if key.dtypes not in missing:
                findings[key] = earlier[key]
        if not missing:
            print(f'{title}: checked before')
            continue
        print(title, flush=True)
        try:
            new = isolated(operator, kernel, missing, device, args.quick)
        except KeyboardInterrupt:
            raise KeyboardInterrupt('Run the same command again to resume.') from None
        findings |= new
        if kind and not args.quick:
            path = verdict.write(kind, new)
            print(f'    written to {path}', flush=True)
    return findings


def print_summary(findings: dict[Key, Finding]) -> None:
    """Print a table of the kernels with their times in units of the composition's time, or why they do not run."""
    columns = [(dtypes, pass_) for dtypes in DTYPE_CLASSES for pass_ in PASSES]
    print('\nTimes in units of the time of the composition. Kernels below 1 run; otherwise the composition does.')
    print(f'{"operator, kernel":28}' + ''.join(f'{f"{dtypes} {pass_}":>20}' for dtypes, pass_ in columns))
    notes = []
    for operator, kernel in dict.fromkeys((key.operator, key.kernel) for key in findings):
        cells = []
        for column in columns:
            finding = findings.get(Key(operator, kernel, *column))
            if finding is not None and finding.time and finding.composition:
                cells.append(f'{finding.time / finding.composition:.2f}')
            else:
                cells.append('' if finding is None else finding.state)
            if finding is not None and finding.state in ('incorrect', 'not measured'):
                notes.append(f'{operator}, {kernel}, {" ".join(column)}: {finding.state}: {finding.message}')
        print(f'{f"{operator}, {kernel}":28}' + ''.join(f'{cell:>20}' for cell in cells))
    print('\n'.join(notes))


def isolated(
    operator: str, kernel: str, dtypes: Sequence[str], device: str, quick: bool, timeout: float = TIMEOUT
) -> dict[Key, Finding]:
    """Run :func:`check` in a new process. A kernel that ends its process is incorrect."""
    context = multiprocessing.get_context('spawn')
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, operator, kernel, dtypes, device, quick))
    process.start()
    sender.close()
    try:
        if receiver.poll(timeout):
            return receiver.recv()
        finding = Finding('not measured', message=f'no result after {timeout:g} s')
    except EOFError:
        process.join()
        finding = Finding('incorrect', message=f'the process ended with exit code {process.exitcode}')
    finally:
        process.kill()
        process.join()
    print(f'    {finding.state}: {finding.message}', flush=True)
    return _for_all(operator, kernel, dtypes, finding)


def _for_all(operator: str, kernel: str, dtypes: Iterable[str], finding: Finding) -> dict[Key, Finding]:
    return {Key(operator, kernel, dtype_class, pass_): finding for dtype_class in dtypes for pass_ in PASSES}


def _send(sender: Connection, *arguments: Any) -> None:
    sender.send(check(*arguments))


def check(operator: str, kernel: str, dtypes: Sequence[str], device: str, quick: bool) -> dict[Key, Finding]:
    """Check one kernel in some dtype classes, and print what was found."""
    backends._apply({})  # this process selects by `backends.backend` alone
    if device != 'cpu':
        torch.cuda.set_device(device)
    findings = {}
    for dtype_class in dtypes:
        try:
            wrong = compare_all(operator, kernel, dtype_class, device, quick)
            times = {} if len(wrong) == len(PASSES) else time_all(operator, kernel, dtype_class, device, quick)
        except torch.cuda.OutOfMemoryError:
            wrong, times = {}, dict.fromkeys(PASSES, Finding('not measured', message=OUT_OF_MEMORY))
        except NotComparable as error:
            wrong, times = {}, dict.fromkeys(PASSES, Finding('not measured', message=str(error)))
        except Exception as error:
            message = _first_line(error)
            wrong, times = dict.fromkeys(PASSES, message), {}
        for pass_ in PASSES:
            finding = Finding('incorrect', message=wrong[pass_]) if pass_ in wrong else times[pass_]
            findings[Key(operator, kernel, dtype_class, pass_)] = finding
            ratio = f', {finding.time / finding.composition:.2f} times' if finding.time and finding.composition else ''
            print(f'    {dtype_class} {pass_}: {finding.state}{ratio} {finding.message}', flush=True)
    return findings


class NotComparable(Exception):
    """A kernel that cannot be compared, which is not its fault."""


def _first_line(error: Exception) -> str:
    return str(error).strip().partition('\n')[0] or type(error).__name__


def _dtypes(dtypes: str, device: str) -> tuple[torch.dtype, ...]:
    if dtypes == 'float32':  # the first dtype of a class is timed
        return (torch.float32,)
    return (torch.bfloat16,) if device == 'cpu' else (torch.bfloat16, torch.float16)


# Correctness


def compare_all(operator: str, kernel: str, dtypes: str, device: str, quick: bool) -> dict[str, str]:
    """Compare all cases in the dtypes of a class. Returns the first error of each pass that has one."""
    wrong: dict[str, list[str]] = {}
    supported = False
    for case in cases.cases(operator, device, quick):
        for dtype in _dtypes(dtypes, device):
            ran, errors = compare(operator, case, dtype, kernel)
            supported = supported or ran
            for pass_, error in errors.items():
                wrong.setdefault(pass_, []).append(f'{case.title}, {_name(dtype)}: {error}')
    if not supported:
        raise NotComparable('the kernel supports no case')
    return {
        pass_: errors[0] + (f' (and {len(errors) - 1} more)' if len(errors) > 1 else '')
        for pass_, errors in wrong.items()
    }


def compare(operator: str, case: Case, dtype: torch.dtype, kernel: str = 'cuda') -> tuple[bool, dict[str, str]]:
    """Check whether the kernels ran, and describe the errors of their results, by pass.

    Kernel and reference receive the same numbers, rounded to ``dtype``. The tolerance of a number x is eps · abs(x)
    plus 2 · eps (1e-5 for float32) times the largest absolute value of its tensor: a result is rounded once, the
    backward pass starts from the rounded output, and sums are accumulated in float32. For a tensor that nearly
    vanishes, 1e-3 of the largest value of all tensors replaces its own largest value. A wrong output is an error of
    both passes, because the gradients are computed from it.
    """
    try:
        with backends.backend(BACKENDS[kernel]), backends.kernels_run() as kernels:
            actual = evaluate(operator, case, dtype, dtype)
    except RuntimeError as error:
        if 'has no kernel for these tensors' in str(error):
            return False, {}
        raise
    if not {operator, f'{operator}_backward'} <= set(kernels):
        return False, {}
    with backends.backend('reference'):
        expected = evaluate(operator, case, dtype, torch.float64)
    eps = torch.finfo(dtype).eps
    least = 1e-3 * max(x.abs().max().item() for x in expected.values())
    errors: dict[str, str] = {}
    for name, x in expected.items():
        scale = max(x.abs().max().item(), least)
        allowed = eps * x.abs() + (1e-5 if dtype == torch.float32 else 2 * eps) * scale
        off = ((actual[name].double() - x).abs() / allowed).nan_to_num(nan=math.inf)
        if off.max() > 1:
            difference = f'{name} differs by {off.max():.3g} times the tolerance'
            if name == 'output':
                errors.setdefault(FORWARD, difference)
            errors.setdefault(BACKWARD, difference)
    return True, errors


def evaluate(operator: str, case: Case, dtype: torch.dtype, computed: torch.dtype) -> dict[str, Tensor]:
    """Compute the output and all gradients in dtype ``computed``, for inputs rounded to ``dtype``."""
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
    output = getattr(mmattn.ops, operator)(**arguments, **case.settings)
    # Generated on the CPU, so that it is the same for every device.
    cotangent = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    grads = torch.autograd.grad(output, list(leaves.values()), cotangent.to(output.device, computed))
    return {'output': output.detach(), **dict(zip(leaves, grads))}


# Times


def time_all(operator: str, kernel: str, dtypes: str, device: str, quick: bool) -> dict[str, Finding]:
    """Time the passes of all workloads. The workload with the worst ratio to the composition counts."""
    worst: dict[str, Finding] = {}
    for work in cases.workloads(operator, device, _dtypes(dtypes, device)[0], quick):
        try:
            with backends.backend(BACKENDS[kernel]), backends.kernels_run() as kernels:
                work.call()
        except RuntimeError as error:
            if 'has no kernel for these tensors' not in str(error):
                raise
            continue
        if operator not in kernels:
            continue
        for pass_ in PASSES:
            times = measure(work, kernel, pass_, device, QUICK_REPEATS if quick else REPEATS)
            before = worst.get(pass_)
            if before is None or times['kernel'] / times['composition'] > (before.time or 0) / (
                before.composition or 1
            ):
                state = 'faster' if times['kernel'] < times['composition'] else 'slower'
                worst[pass_] = Finding(state, times['kernel'], times['composition'], work.title)
    none = Finding('not measured', message='the kernel supports no workload')
    return {pass_: worst.get(pass_, none) for pass_ in PASSES}


def measure(work: Workload, kernel: str, pass_: str, device: str, repeats: int) -> dict[str, float]:
    """Time a pass of the kernel and of the composition, in ms."""
    selected = {'kernel': BACKENDS[kernel], 'composition': 'composition'}
    try:
        calls = {name: timed(work, backend, pass_) for name, backend in selected.items()}
        return medians(calls, device, repeats)
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise NotComparable(_first_line(error)) from error


def timed(work: Workload, backend: str, pass_: str) -> Callable[[], Any]:
    """Build the call to be timed: the forward pass, or the backward pass alone."""

    def forward() -> Tensor:
        with backends.backend(backend), torch.no_grad():
            return work.call()

    if pass_ == FORWARD:
        return forward
    with backends.backend(backend):
        out = work.call()
    cotangent = torch.ones_like(out)

    def backward() -> tuple[Tensor, ...]:
        with backends.backend(backend):
            return torch.autograd.grad(out, work.inputs, cotangent, retain_graph=True)

    return backward


def medians(calls: dict[str, Callable[[], Any]], device: str, repeats: int) -> dict[str, float]:
    """Measure the median time of each call in ms, after two warm-up calls. The calls alternate."""
    for call in [*calls.values()] * 2:
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            with _clock(device) as milliseconds:
                call()
            times[name].append(milliseconds())
    return {name: statistics.median(values) for name, values in times.items()}


@contextmanager
def _clock(device: str) -> Iterator[Callable[[], float]]:
    """Yield a function that returns, after the block, the ms that the device spent on it."""
    if device == 'cpu':
        start = time.perf_counter()
        stop = start
        yield lambda: 1e3 * (stop - start)
        stop = time.perf_counter()
        return
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    yield lambda: events[0].elapsed_time(events[1])
    events[1].record()
    torch.cuda.synchronize()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix('torch.')


if __name__ == '__main__':
    mmattn.utils.command.run(main)
