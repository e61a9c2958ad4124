"""What the benchmarks of operators share: the peers must agree, then time and extra memory side by side."""
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mmattn.utils.profiling import extra_memory, interleaved_times, median_time

HEAD = '| | | forward s | extra MiB | forward + backward s | extra MiB |\n|---|---|---|---|---|---|'


def verify(functions: dict[str, Callable[..., Tensor]], inputs: Sequence[Tensor], tolerance: float = 2e-4) -> None:
    """Raise if the functions differ in values or gradients from the first one by more than float32 explains."""
    expected = None
    for name, function in functions.items():
        out = function(*inputs)
        result = (out, *torch.autograd.grad(out.square().sum(), inputs))
        expected = expected or result
        for a, b in zip(result, expected):
            torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance,
                                       msg=lambda text, name=name: f'{name}: {text}')


def passes(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> tuple[Callable, Callable]:
    """Return the calls that are measured: the forward pass, and forward and backward pass."""

    def forward() -> Tensor:
        with torch.no_grad():
            return function(*inputs)

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(*inputs).sum(), inputs)

    return forward, both


def measure(function: Callable[..., Tensor], inputs: Sequence[Tensor], repeats: int) -> tuple[float, ...]:
    """Return seconds and extra MiB of the forward pass, and of forward and backward pass."""
    return tuple(number for call in passes(function, inputs)
                 for number in (median_time(call, repeats), extra_memory(call)[1]))


def measure_in_turns(functions: dict[str, Callable[..., Tensor]], inputs: Sequence[Tensor],
                     repeats: int) -> dict[str, tuple[float, ...]]:
    """As :func:`measure`, for several functions whose times are taken in turns."""
    calls = {name: passes(function, inputs) for name, function in functions.items()}
    times = [interleaved_times({name: both[i] for name, both in calls.items()}, repeats) for i in range(2)]
    return {name: tuple(number for i in range(2) for number in (times[i][name], extra_memory(both[i])[1]))
            for name, both in calls.items()}


def line(*cells: str | float) -> str:
    """Return a row of a Markdown table, numbers to three digits."""
    return '| ' + ' | '.join(x if isinstance(x, str) else f'{x:.3g}' if x < 10 else f'{x:.0f}' for x in cells) + ' |'
