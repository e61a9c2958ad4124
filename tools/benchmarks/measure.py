"""What the benchmarks of operators share: the peers must agree, then time and extra memory side by side."""
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mmattn.utils.profiling import extra_memory, median_time

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


def measure(function: Callable[..., Tensor], inputs: Sequence[Tensor], repeats: int) -> tuple[float, ...]:
    """Return seconds and extra MiB of the forward pass, and of forward and backward pass."""

    def forward() -> Tensor:
        with torch.no_grad():
            return function(*inputs)

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(*inputs).sum(), inputs)

    return (median_time(forward, repeats), extra_memory(forward)[1],
            median_time(both, repeats), extra_memory(both)[1])


def line(*cells: str | float) -> str:
    """Return a row of a Markdown table, numbers to three digits."""
    return '| ' + ' | '.join(x if isinstance(x, str) else f'{x:.3g}' if x < 10 else f'{x:.0f}' for x in cells) + ' |'
