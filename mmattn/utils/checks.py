"""Checks of arguments: numbers and choices. Errors name the argument, the accepted values and the given value."""

import sys
from collections.abc import Collection
from numbers import Real
from typing import Any

LARGEST = sys.float_info.max  # here, since Dynamo of torch 2.4 does not trace sys.float_info


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Check that an argument is one of ``choices``."""
    if value not in choices:
        raise ValueError(f'{name} must be one of {tuple(choices)}; got {value!r}')


def check_count(name: str, number: int, least: int = 1) -> None:
    """Check that an argument is an integer of at least ``least``."""
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f'{name} must be an integer; got {number!r}')
    if number < least:
        raise ValueError(f'{name} must be at least {least}; got {number}')


def check_counts(**numbers: int) -> None:
    """Check that arguments, given by their names, are integers of at least 1."""
    for name, number in numbers.items():
        check_count(name, number)


def check_divisor(name: str, number: int, of: str, channels: int) -> None:
    """Check that the argument ``name`` is an integer ≥ 1 that divides ``channels``, the argument ``of``."""
    check_count(of, channels)
    check_count(name, number)
    if channels % number:
        raise ValueError(f'{name} must divide {of}={channels}; got {number}')


def check_number(name: str, number: float, least: float | None = None, most: float | None = None) -> None:
    """Check that an argument is a finite number from ``least`` to ``most``. A tensor would lose its gradient."""
    if not isinstance(number, Real) or isinstance(number, bool):
        raise TypeError(f'{name} must be a number; got {number!r}')
    # torch.compile does not trace math.isfinite of a dynamic number. A larger integer is not a float.
    if not -LARGEST <= number <= LARGEST:
        raise ValueError(f'{name} must be finite; got {number}')
    if (least is not None and number < least) or (most is not None and number > most):
        raise ValueError(f'{name} must be {f"from {least} to {most}" if most else f"at least {least}"}; got {number}')


def check_fraction(name: str, number: float) -> None:
    """Check that an argument, such as a probability, is a number from 0 to 1."""
    check_number(name, number, 0, 1)


def check_positive(name: str, number: float) -> None:
    """Check that an argument is a finite number above 0."""
    check_number(name, number)
    if number <= 0:
        raise ValueError(f'{name} must be above 0; got {number}')


def check_map(layer: object, x: Any, channels: int) -> None:
    """Check that the input of a layer is a batch of maps with ``channels``."""
    if x.dim() != 4 or x.shape[1] != channels:
        hint = '; for one map, x[None]' if x.dim() == 3 and len(x) == channels else ''
        raise ValueError(f'{type(layer).__name__} takes x of shape (B, {channels}, H, W); got {tuple(x.shape)}{hint}')
    if not x.is_floating_point() or 0 in x.shape[2:]:
        raise ValueError(f'{type(layer).__name__} takes x of floats with positions; got {x.dtype} {tuple(x.shape)}')
