"""Packages of the extra ``language``, which are imported when they are used."""

from importlib import import_module
from types import ModuleType


def import_optional(name: str) -> ModuleType:
    """Import a module of the extra ``language``. If it is missing, the ImportError gives the command that installs it.

    Example:
        >>> import_optional('sacremoses').__name__
        'sacremoses'
    """
    package = name.partition('.')[0]
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != package:  # the package is there, but broken
            raise
        raise ImportError(f"{package} is not installed: pip install 'mmattn[language]'") from error
