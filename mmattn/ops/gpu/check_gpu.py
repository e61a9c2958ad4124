"""Check the kernels for GPUs on the GPUs of this machine: ``python -m mmattn.utils.check_gpu``.

For each CUDA and each Triton kernel, the check compares values and gradients with the reference in float64. Then it
compares times with the reference, and with alternatives in PyTorch and mmcv. The verdict is written to the cache: from
then on, kernels that are correct and take at most 1.1 times the time of the best alternative on every workload run on
such GPUs. The exit code is 1 if the check cannot run, or if a kernel is incorrect.

The check requires only torch. Each operator is checked in a separate process, because a kernel that crashes makes the
GPU unusable for the whole process.
"""

import argparse
import json
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import mmattn.utils.command

import torch
from torch import Tensor

from mmattn.ops import backends, library, triton
from mmattn.utils.files import write_text

from . import cases, verdict
from .cases import Case, Workload

DTYPES = {
    'cuda': (torch.float32, torch.float16, torch.bfloat16),
    'cpu': (torch.float32, torch.bfloat16),  # dtypes with CPU kernels
}
FORWARD, FORWARD_AND_BACKWARD = 'forward', 'forward + backward'
REPEATS = 15
QUICK_REPEATS = 3
TIMEOUT = 1800.0  # seconds, for one operator


def main() -> int:
    """Check every operator on every kind of GPU. Return the exit code."""
    parser = argparse.ArgumentParser(prog='check_gpu', description='Check the CUDA kernels of mmattn on this machine.')
    parser.add_argument('--device', help='GPU to check, such as cuda:1; default: each kind of GPU once')
    parser.add_argument('--quick', action='store_true', help='use small maps, skip FlexAttention, and write no verdict')
    parser.add_argument('--once', action='store_true', help='skip GPUs that have a verdict')
    args = parser.parse_args()
    if os.environ.pop('MMATTN_BACKEND', None) == 'reference':  # the check selects the backend, also in its processes
        parser.error('MMATTN_BACKEND=reference disables the kernels; unset it')
    devices = [args.device] if args.device == 'cpu' else _gpus(args.device)
    correct = True
    for device in devices:
        if device == 'cpu':  # tests the check itself
            findings = check_all(device, args.quick)
        else:
            kind = verdict.machine(torch.device(device).index)
            if args.once and verdict.read(kind) is not None:
                print(f'{kind["gpu"]} already has a verdict')
                continue
            print(', '.join(f'{name} {value}' for name, value in kind.items() if name != 'library'))
            findings = check_all(device, args.quick)
            if not args.quick:
                write(kind, findings)
        correct = correct and all(finding['correct'] for finding in findings.values())
    return 0 if correct else 1


def _gpus(device: str | None) -> list[str]:
    """Return the selected GPU, or the first GPU of each kind."""
    if not torch.cuda.is_available():
        raise SystemExit(f'torch {torch.__version__} finds no usable GPU')
    if not _kernels():
        raise SystemExit(
            f'there are no CUDA kernels ({library.UNAVAILABLE_REASON or "they were built without CUDA"}), and no '
            f'Triton kernels ({triton.unavailable_reason()}). For CUDA kernels, install nvcc of the CUDA version of '
            f'torch, and run: FORCE_CUDA=1 {library.BUILD}'
        )
    count = torch.cuda.device_count()
    if device is None:
        return [f'cuda:{i}' for i in {str(verdict.machine(i)): i for i in reversed(range(count))}.values()]
    index = torch.device(device).index or 0
    if torch.device(device).type != 'cuda' or index >= count:
        raise SystemExit(f'--device must be one of {", ".join(f"cuda:{i}" for i in range(count))}; got {device}')
    return [f'cuda:{index}']


def write(kind: dict[str, str], findings: dict[str, dict]) -> None:
    """Write the verdict, and print which implementation each operator uses from now on."""
    path = verdict.verdict_path(kind)
    write_text(path, json.dumps({'machine': kind, 'operators': findings}, indent=2, ensure_ascii=False) + '\n')
    print(f'\nOn {kind["gpu"]}, according to {path}:')
    for name, finding in findings.items():
        reason = verdict.reason_against(finding)
        otherwise = 'not used' if name.endswith(verdict.TRITON) else 'reference'
        print(f'{name}: {f"{otherwise}; the kernel is {reason}" if reason else "kernel"}')


def check_all(device: str, quick: bool) -> dict[str, dict]:
    """Check the kernels one by one, each in a separate process."""
    return {name: isolated(name, device, quick) for name in (library.KERNELS if device == 'cpu' else _kernels())}


def _kernels() -> list[str]:
    """List the kernels for GPUs that can run."""
    return [name for name in verdict.operators() if not (name.endswith(verdict.TRITON) and triton.unavailable_reason())]


def isolated(name: str, device: str, quick: bool, timeout: float = TIMEOUT) -> dict[str, Any]:
    """Run :func:`check` in a new process. A kernel without a result counts as incorrect."""
    context = multiprocessing.get_context('spawn')
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, name, device, quick))
    process.start()
    sender.close()
    try:
        if receiver.poll(timeout):
            return receiver.recv()
        message = f'no result after {timeout:g} s'
    except EOFError:
        process.join()
        message = f'the process ended with exit code {process.exitcode}'
    finally:
        process.kill()
        process.join()
    print(f'{name}: {message}', flush=True)
    return _finding(correct=False, message=message)


def _send(sender: Connection, name: str, device: str, quick: bool) -> None:
    sender.send(check(name, device, quick))


def check(name: str, device: str, quick: bool) -> dict[str, Any]:
    """Check one kernel, print the measurements, and return its entry of the verdict."""
    operator = name.removesuffix(verdict.TRITON)
    # Of an operator with two kernels, only this one runs in this process.
    verdict.apply_choice({x: '' if x == name else 'another kernel is checked' for x in verdict.operators()})
    if device != 'cpu':
        torch.cuda.set_device(device)
    try:
        taken = compare_all(operator, device, quick)
        ratio, alternative = time_all(operator, device, quick) if taken else (None, '')
    except Exception as error:
        message = str(error).strip().partition('\n')[0] or type(error).__name__
        print(f'{name}: {message}', flush=True)
        return _finding(correct=False, message=message)
    message = '' if taken else 'the kernel supports no case'
    return _finding(correct=taken, ratio=ratio, alternative=alternative, message=message)


def _finding(correct: bool, ratio: float | None = None, alternative: str = '', message: str = '') -> dict[str, Any]:
    return {'correct': correct, 'ratio': ratio, 'alternative': alternative, 'message': message}


# Correctness


def compare_all(operator: str, device: str, quick: bool) -> bool:
    """Compare all cases in all dtypes, and check whether the kernel supports any. ArithmeticError if results differ."""
    wrong, taken = [], False
    for case in cases.cases(operator, device, quick):
        for dtype in DTYPES[device.partition(':')[0]]:
            title = f'{operator}, {case.title}, {_name(dtype)}'
            ran, error = compare(operator, case, dtype)
            taken = taken or ran
            print(f'{title}: {error or ("correct" if ran else "not supported by the kernel")}', flush=True)
            if error:
                wrong.append(f'{case.title}, {_name(dtype)}: {error}')
    if wrong:
        raise ArithmeticError(wrong[0] + (f' (and {len(wrong) - 1} more)' if len(wrong) > 1 else ''))
    return taken


def compare(operator: str, case: Case, dtype: torch.dtype) -> tuple[bool, str]:
    """Check whether the kernels ran, and describe the error of their results, or return '' without an error.

    Kernel and reference receive the same numbers, rounded to ``dtype``. The tolerance of a number x is eps · abs(x)
    plus 2 · eps (1e-5 for float32) times the largest absolute value of its tensor: a result is rounded once, the
    backward pass starts from the rounded output, and sums are accumulated in float32. For a tensor that nearly
    vanishes, 1e-3 of the largest value of all tensors replaces its own largest value.
    """
    with backends.kernels_run() as kernels:
        actual = evaluate(operator, case, dtype, dtype)
    ran = {operator, f'{operator}_backward'} <= set(kernels)
    with backends.backend('reference'):
        expected = evaluate(operator, case, dtype, torch.float64)
    eps = torch.finfo(dtype).eps
    least = 1e-3 * max(x.abs().max().item() for x in expected.values())
    for name, x in expected.items():
        scale = max(x.abs().max().item(), least)
        allowed = eps * x.abs() + (1e-5 if dtype == torch.float32 else 2 * eps) * scale
        off = ((actual[name].double() - x).abs() / allowed).nan_to_num(nan=math.inf)
        if off.max() > 1:
            return ran, f'{name} differs by {off.max():.3g} times the tolerance'
    return ran, ''


def evaluate(operator: str, case: Case, dtype: torch.dtype, computed: torch.dtype) -> dict[str, Tensor]:
    """Compute the output and the gradients of all tensors, in dtype ``computed``, for inputs rounded to ``dtype``."""
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


def time_all(operator: str, device: str, quick: bool) -> tuple[float | None, str]:
    """Time all workloads in float32 and in 16 bits. Returns the worst ratio to the best alternative, and its name."""
    print(' ratio  kernel/ms  workload: alternatives/ms', flush=True)
    worst: tuple[float, str] | None = None
    for dtype in DTYPES[device.partition(':')[0]][:2]:
        for work in cases.workloads(operator, device, dtype, quick):
            for passes in (FORWARD, FORWARD_AND_BACKWARD):
                with backends.kernels_run() as kernels:
                    timed(work.ours, work.inputs, passes)()
                if operator not in kernels:
                    continue
                rivals, times = measure(work, passes, device, QUICK_REPEATS if quick else REPEATS)
                best = min(rivals, key=lambda name: times[name])
                ratio, where = times['kernel'] / times[best], f'{work.title}, {_name(dtype)}, {passes}'
                alternatives = ', '.join(f'{name} {1e3 * t:.3f}' for name, t in times.items() if name != 'kernel')
                print(f'{ratio:6.2f} {1e3 * times["kernel"]:10.3f}  {operator}, {where}: {alternatives}', flush=True)
                worst = max(worst or (0.0, ''), (ratio, f'{best} ({where})'))
    return worst or (None, '')


def measure(work: Workload, passes: str, device: str, repeats: int) -> tuple[list[str], dict[str, float]]:
    """Time all calls in seconds. Also returns the names of the alternatives that compute the same as the kernel."""
    ours = timed(work.ours, work.inputs, passes)
    calls = {'kernel': ours, 'reference': _by_reference(ours)}
    rivals = ['reference']
    for name, function in [*work.rivals.items(), *work.less.items()]:
        call = timed(function, work.inputs if name in work.rivals else work.inputs[:3], passes)
        try:
            call()
        except Exception as error:  # not enough memory, or not in this version: no alternative
            print(f'{name} does not run: {str(error).strip().partition(chr(10))[0]}', flush=True)
            continue
        if name in work.rivals:
            rivals.append(name)
            calls[name] = call
        else:
            calls[f'{name} without positions'] = call
    return rivals, medians(calls, device, repeats)


def timed(function: Callable[..., Tensor], inputs: list[Tensor], passes: str) -> Callable[[], Any]:
    """Build the call to be timed: the forward pass, or the forward and backward pass."""

    def forward() -> Tensor:
        with torch.no_grad():
            return function(*inputs)

    def both() -> tuple[Tensor, ...]:
        out = function(*inputs)
        return torch.autograd.grad(out, inputs, torch.ones_like(out))

    return forward if passes == FORWARD else both


def _by_reference(call: Callable[[], Any]) -> Callable[[], Any]:
    def reference() -> Any:
        with backends.backend('reference'):
            return call()

    return reference


def medians(calls: dict[str, Callable[[], Any]], device: str, repeats: int) -> dict[str, float]:
    """Measure the median time of each call in seconds, after two warm-up calls. The calls alternate."""
    for call in [*calls.values()] * 2:
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            with _clock(device) as seconds:
                call()
            times[name].append(seconds())
    return {name: statistics.median(seconds) for name, seconds in times.items()}


@contextmanager
def _clock(device: str) -> Iterator[Callable[[], float]]:
    """Yield a function that returns, after the block, the seconds that the device spent on it."""
    if device == 'cpu':
        start = time.perf_counter()
        stop = start
        yield lambda: stop - start
        stop = time.perf_counter()
        return
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    yield lambda: events[0].elapsed_time(events[1]) / 1e3
    events[1].record()
    torch.cuda.synchronize()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix('torch.')


if __name__ == '__main__':
    mmattn.utils.command.run(main)
