"""Settings of two configs that differ, with their places and values."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

ABSENT = 'not set'


def differing_values(where: str, a: Any, b: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the place below ``where`` and both values of each setting that differs; ABSENT for one that is not set."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            yield from differing_values(f'{where}.{key}' if where else key, a.get(key, ABSENT), b.get(key, ABSENT))
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for i, pair in enumerate(zip(a, b)):
            yield from differing_values(f'{where}.{i}', *pair)
    elif a != b:
        yield where, a, b


def value_text(value: Any) -> str:
    """Format a value of :func:`differing_values`, shortened."""
    return value if value is ABSENT else textwrap.shorten(repr(value), 200)
