"""The declared operators and the functions that can run them. ``backends.py`` chooses. This file imports nothing."""

from collections.abc import Callable
from typing import Any

# Operator name → its declaration.
OPERATORS: dict[str, Any] = {}
# Name of an operator, or of its backward operator → implementation, such as 'reference' → function of the arguments.
FUNCTIONS: dict[str, dict[str, Callable]] = {}


def register(name: str, implementation: str, forward: Callable, backward: Callable) -> None:
    """Register an implementation and its derivative. They return NotImplemented for calls that they do not support."""
    FUNCTIONS.setdefault(name, {})[implementation] = forward
    FUNCTIONS.setdefault(f'{name}_backward', {})[implementation] = backward


def run(name: str, arguments: tuple) -> Any:
    """Run an operator for which no native kernel runs. ``backends.py`` replaces this function with one that chooses."""
    return FUNCTIONS[name]['reference'](*arguments)
