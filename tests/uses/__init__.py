"""What people do with the package, as tables of inputs by kind, with the verdict that each must have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Use(NamedTuple):
    """One use: ``do`` gets an empty folder, which is also the working directory."""

    what: str
    do: Callable[[Path], Any]
    verdict: str  # 'works', 'error' or 'warning'
    about: Any = True  # the result, or a pattern of the message


def works(what: str, do: Callable[[Path], Any], result: Any = True) -> Use:
    """A use that returns ``result``."""
    return Use(what, do, 'works', result)


def error(what: str, do: Callable[[Path], Any], pattern: str) -> Use:
    """A use that raises an error whose message has ``pattern``."""
    return Use(what, do, 'error', pattern)


def warning(what: str, do: Callable[[Path], Any], pattern: str) -> Use:
    """A use that works, and says ``pattern``."""
    return Use(what, do, 'warning', pattern)


def later(function: Callable[..., Any]) -> Callable[..., Callable[[Path], Any]]:
    """Give a function its other arguments in the table, and its first, the folder, when the use is tried."""
    return lambda *arguments, **options: lambda folder: function(folder, *arguments, **options)
