"""Load mmengine's checkpoints with ``weights_only``, which unpickles only types that are registered as safe."""

from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer


def add_safe_globals() -> None:
    """Register the types in mmengine's checkpoints, other than tensors, as safe to load, in the whole process.

    The original mmengine does not do this, and cannot load its own checkpoints with torch ≥ 2.6. Importing mmattn does
    not do it either. ``mmattn.CheckpointHook`` calls this function when a Runner builds it, and
    :func:`check_checkpoint`, which the tools and inferencers call, when it checks a file. In a script with neither,
    call it once before you load a checkpoint. The list is
    ``get_torch_safe_globals`` of the continued mmengine, plus all number types of NumPy: float32, the type of the best
    mIoU of mmseg, is missing there. ``getattr``, which reaches every function of Python, is replaced by a function for
    the methods of ``HistoryBuffer``. Checkpoints written with NumPy 1 or 2 are loaded with both.
    """
    # The functions that unpickle arrays and numbers; NumPy 2 has moved them.
    functions = np.zeros(0).__reduce__()[0], np.float64().__reduce__()[0]
    pickled_by: list[Any] = [_named(f, module) for f in functions for module in ('numpy.core', 'numpy._core')]
    numbers = {type(np.dtype(code)) for code in np.typecodes['AllInteger'] + np.typecodes['AllFloat']}
    torch.serialization.add_safe_globals([HistoryBuffer, slice, _method, *pickled_by, np.ndarray, np.dtype, *numbers])


def _named(function: Any, package: str) -> Any:
    # Before torch 2.6, a safe function can only be registered by its own name.
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    call.__module__, call.__name__, call.__qualname__ = f'{package}.multiarray', *[function.__name__] * 2
    return call


def _method(owner: object, name: str) -> object:
    if owner is not HistoryBuffer or name.startswith('_'):
        raise UnpicklingError(f'Unsupported global: GLOBAL getattr({name!r}), not of HistoryBuffer')
    return getattr(owner, name)


# Pickles of methods contain the name builtins.getattr.
_method.__module__, _method.__name__, _method.__qualname__ = 'builtins', 'getattr', 'getattr'
