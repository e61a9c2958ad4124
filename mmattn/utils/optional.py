"""Packages that only a part of mmattn requires: how to install them, and imports at their first use."""

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

# Distributions by import name: the maintained continuation, the original.
OPENMMLAB = {
    'mmengine': ('onedl-mmengine', 'mmengine'),
    'mmcv': ('onedl-mmcv', 'mmcv'),
    'mmseg': ('onedl-mmsegmentation', 'mmsegmentation'),
    'mmdet': ('onedl-mmdetection', 'mmdet'),
}


def requires(name: str, packages: Sequence[str]) -> str:
    """Say that ``name`` requires OpenMMLab packages that are missing, and how to install them."""
    continued, original = (' '.join(names) for names in zip(*(OPENMMLAB[package] for package in packages)))
    return (
        f"'{name}' requires {' and '.join(packages)}, not installed here: "
        f'pip install {continued} (maintained) or pip install {original} (original)'
    )


def import_optional(name: str, extra: str = 'language') -> ModuleType:
    """Import a module of an extra of ours. If it is missing, the ImportError gives the command that installs it.

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
        raise ImportError(f"{package} is not installed: pip install 'mmattn[{extra}]'") from error
