"""The registries of scope ``mmattn``, and which folder registers what.

mmengine imports this module by itself when a config names ``mmattn.X``, so no ``custom_imports`` is needed. It imports
mmengine alone: mmengine takes an ImportError in here for "not in the registry" and hides the cause.
"""
from importlib.util import find_spec

from mmengine.config.utils import MODULE2PACKAGE
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import OPTIM_WRAPPERS as MMENGINE_OPTIM_WRAPPERS
from mmengine.registry import Registry

# mmengine's `get_config('mmattn::…')` and `_base_ = 'mmattn::…'` look the package up in this table.
MODULE2PACKAGE['mmattn'] = 'mmattn'

# How to install the package behind an import name: the maintained continuation, the original.
DISTRIBUTIONS = {
    'mmcv': ('onedl-mmcv', 'mmcv'),
    'mmseg': ('onedl-mmsegmentation', 'mmsegmentation'),
    'mmdet': ('onedl-mmdetection', 'mmdet'),
}

# folder: (the package it needs beside mmengine and torch, the names that it registers)
FOLDERS: dict[str, tuple[str | None, tuple[str, ...]]] = {
    'mmattn.engine': (None, ('CPUAmpOptimWrapper', )),
    'mmattn.layers': ('mmcv', ('BilateralNonLocal2d', 'BilateralCrissCrossAttention', 'BilateralMultiheadAttention')),
    'mmattn.segmentation': ('mmseg', ('BiNLHead', 'BiCCHead')),
}


def _missing(package: str | None) -> bool:
    return package is not None and find_spec(package) is None


class FolderRegistry(Registry):
    """A registry that answers for names whose folder needs a package that is not installed.

    Args:
        name (str): Name of the registry, as in mmengine.
        parent (Registry): mmengine's registry of the same name.
        folders (list[str]): Keys of ``FOLDERS`` whose import registers modules here. Those whose package is absent are
            left out, so that it costs its own folder and nothing else; one that is installed but broken raises its own
            ImportError.
    """

    def __init__(self, name: str, parent: Registry, folders: list[str]) -> None:
        present = [folder for folder in folders if not _missing(FOLDERS[folder][0])]
        super().__init__(name, parent=parent, scope='mmattn', locations=present)
        self._absent = [folder for folder in folders if folder not in present]

    def get(self, key: str) -> type | None:
        """Return the class registered as ``key``.

        Raises:
            ImportError: ``key`` lives in a folder whose package is not installed; the message tells how to install it.
        """
        for folder in self._absent:
            package, names = FOLDERS[folder]
            if key.removeprefix('mmattn.') in names:
                continued, original = DISTRIBUTIONS[str(package)]
                raise ImportError(f"'mmattn.{key.removeprefix('mmattn.')}' needs the package '{package}', which is not "
                                  f'installed: pip install {continued} (maintained) or pip install {original} '
                                  '(original); see the extras mmattn[onedl] and mmattn[openmmlab]')
        return super().get(key)


MODELS = FolderRegistry('model', MMENGINE_MODELS, ['mmattn.layers', 'mmattn.segmentation'])
OPTIM_WRAPPERS = FolderRegistry('optim_wrapper', MMENGINE_OPTIM_WRAPPERS, ['mmattn.engine'])
