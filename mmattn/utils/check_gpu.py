"""Compare the kernels on this GPU with float64: ``python -m mmattn.utils.check_gpu``.

A line has an operator, a kernel and a dtype; the largest error of output and gradients, as a share of the largest
number of each; that of the composition, of PyTorch's own operators in this dtype; and the time of both passes in units
of the composition's. The last line is the value of MMATTN_BACKEND that selects the kernels which are right and faster
here. The exit code is 1 if a kernel is wrong: off by more than four times the composition's error and some roundings.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import mmattn.ops
import mmattn.utils.command
from mmattn.ops import dispatch, triton
from mmattn.utils.profiling import milliseconds

# How many: more where sums have no more digits than their terms.
ROUNDINGS = {torch.float16: 4, torch.bfloat16: 4, torch.float32: 64}


def calls(side: int) -> Iterator[tuple[str, tuple[int, ...], dict[str, Any], dict[str, Any]]]:
    """Yield operators as layers call them on maps of a side: batch, heads and positions; other axes; and settings."""
    size, k = (side, side), side // 6 * 2 + 1
    few, many = (dict(query=(x,), key=(x,), value=(x,)) for x in (32, 64))
    yield 'global_attention', (1, 1, *size), dict(many, window_bias=(k * k,), outside_bias=()), dict(window_size=k)
    yield 'global_attention', (2, 8, 4 * side), many, dict(is_causal=True)
    yield 'grid_attention', (2, 1, *size), dict(many, window_bias=(2 * k - 1,), outside_bias=()), dict(window_size=k)
    yield 'local_attention', (1, 8, *size), dict(few, window_bias=(9,)), dict(kernel_size=3)
    yield 'dynamic_conv', (1, 8, *size), dict(value=(32,), logits=(9,)), dict(kernel_size=3)
    yield 'dynamic_conv', (1, 16, *size), dict(value=(16,), logits=(169,)), dict(kernel_size=13)
    yield 'strided_attention', (1, 1, 8, *size), few, dict(pattern='block', step=(4, 8, 8))


def results(operator: str, tensors: dict[str, Tensor], settings: dict[str, Any]) -> list[Tensor]:
    """Compute the output of an operator, and the gradients of all its tensors."""
    leaves = {name: x.detach().requires_grad_() for name, x in tensors.items()}
    out = getattr(mmattn.ops, operator)(**leaves, **settings)
    gradient = torch.arange(out.numel(), device=out.device).remainder(13).sub(6).to(out.dtype).view(out.shape)
    return [out.detach(), *torch.autograd.grad(out, [*leaves.values()], gradient)]


def error_of(actual: list[Tensor], expected: list[Tensor]) -> float:
    """Compute the largest error as a share of the largest number of its tensor, or of 1 % of that of all tensors."""
    largest = torch.stack([x.abs().max() for x in expected])
    errors = torch.stack([(x.double() - y).abs().max() for x, y in zip(actual, expected)])
    return (errors / largest.clamp(min=0.01 * largest.max().item())).max().item()  # NaN if there is one


def main() -> int:
    """Report on every kernel. Return the exit code."""
    parser = argparse.ArgumentParser(prog='check_gpu', description='Compare the kernels on a GPU with float64.')
    parser.add_argument('--device', default='cuda:0', help='GPU, such as cuda:1; default: cuda:0')
    parser.add_argument('--quick', action='store_true', help='use small maps')
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type != 'cpu':  # which tests the report itself, on the kernels for CPUs
        if not torch.cuda.is_available():
            raise SystemExit(f'torch {torch.__version__} finds no usable GPU')
        torch.cuda.set_device(device)
        versions = f'torch {torch.__version__}, {triton.unavailable_reason() or f"Triton {triton.version()}"}'
        print(f'{torch.cuda.get_device_name(device)}, {versions}')
    print(f'{"operator":20}{"kernel":10}{"dtype":10}{"error":>9}{"composition":>14}{"time":>9}')
    times: dict[tuple[str, str], list[float]] = defaultdict(list)  # in units of the composition's; inf if wrong
    for operator, position, channels, settings in calls(13 if args.quick else 65):
        generator = torch.Generator().manual_seed(0)
        drawn = {name: torch.randn(*position, *x, generator=generator) for name, x in channels.items()}
        for kernel in dispatch.kernels_of(operator, device):
            for dtype, roundings in ROUNDINGS.items():
                tensors = {name: x.to(device, dtype) for name, x in drawn.items()}
                run = partial(results, operator, tensors, settings)
                if (found := dispatch.run_by(kernel, operator, run)) is None:
                    continue  # a dtype that it does not support
                doubles = {name: x.double() for name, x in tensors.items()}
                with dispatch.backend(f'{operator}=reference'):
                    expected = results(operator, doubles, settings)
                with dispatch.backend(f'{operator}={kernel}'):
                    time = milliseconds(run)
                with dispatch.backend(f'{operator}=composition'):
                    error, least, ratio = error_of(found, expected), error_of(run(), expected), time / milliseconds(run)
                is_right = error <= 4 * least + roundings * torch.finfo(dtype).eps
                times[operator, kernel].append(ratio if is_right else float('inf'))
                line = f'{operator:20}{kernel:10}{str(dtype)[6:]:10}{error:9.1e}{least:14.1e}{ratio:9.2f}'
                print(line if is_right else f'{line}  WRONG', flush=True)
        if failure := dispatch.failure(operator):
            print(f'{operator}: {failure}')
    selected = {operator: kernel for (operator, kernel), ratios in reversed(times.items()) if max(ratios) < 1}
    print(f'MMATTN_BACKEND={",".join(map("=".join, sorted(selected.items()))) or "auto"}')
    return int(any(float('inf') in ratios for ratios in times.values()))


if __name__ == '__main__':
    mmattn.utils.command.run(main)
