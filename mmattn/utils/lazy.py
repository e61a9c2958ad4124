"""Names of a package that are imported from its modules when they are first used."""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .optional import OPENMMLAB, requires


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], list[str]]:
    """Make ``__getattr__`` and ``__all__`` of a package that imports its public names from modules at their first use.

    If an OpenMMLab package is missing, the ImportError gives the command that installs it.

    Args:
        package (str): ``__name__`` of the package.
        modules (mapping of str to str): module → public names, separated by spaces. A module is relative to the
            package, or starts with ``mmattn.``. No name may also name a module of the package.

    Example:
        >>> load, names = lazy_names('mmattn.layers', {'attended_residual': 'AttendedResidual'})
        >>> names, load('AttendedResidual').__name__
        (['AttendedResidual'], 'AttendedResidual')
    """
    module_of = {
        name: module if module.startswith('mmattn.') else f'{package}.{module}'
        for module, names in modules.items()
        for name in names.split()
    }

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f'module {package!r} has no attribute {name!r}')
        try:
            return getattr(import_module(module_of[name]), name)
        except ModuleNotFoundError as error:
            missing = str(error.name).partition('.')[0]
            if missing not in OPENMMLAB or find_spec(missing) is not None:
                raise
            raise ImportError(requires(f'{package}.{name}', [missing])) from error

    return load, sorted(module_of)
