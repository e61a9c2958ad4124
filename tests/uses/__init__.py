"""What people do with the package, as tables of inputs with the verdict that each must have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Use(NamedTuple):
    """One use: ``do`` gets an empty folder, which is also the working directory."""

    kind: str
    what: str
    do: Callable[[Path], Any]
    verdict: str  # 'works', 'error' or 'warning'
    about: Any = True  # the result, or a pattern of the message


def works(kind: str, what: str, do: Callable[[Path], Any], result: Any = True) -> Use:
    """A use that returns ``result``."""
    return Use(kind, what, do, 'works', result)


def error(kind: str, what: str, do: Callable[[Path], Any], pattern: str) -> Use:
    """A use that raises an error whose message has ``pattern``."""
    return Use(kind, what, do, 'error', pattern)


def warning(kind: str, what: str, do: Callable[[Path], Any], pattern: str) -> Use:
    """A use that works, and says ``pattern``."""
    return Use(kind, what, do, 'warning', pattern)
