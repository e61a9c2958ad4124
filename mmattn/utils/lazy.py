"""Names of a package that are imported from its modules when they are first used."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], list[str]]:
    """Make ``__getattr__`` and ``__all__`` of a package that imports its public names from modules at their first use.

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
        return getattr(import_module(module_of[name]), name)

    return load, sorted(module_of)
