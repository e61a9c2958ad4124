"""The types in checkpoints other than tensors: those that are created when a checkpoint is loaded, and no others."""

import argparse
from collections import OrderedDict
from enum import Enum
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer


def add_safe_globals() -> None:
    """Register the types in checkpoints of OpenMMLab, other than tensors, as safe to load, in the whole process.

    The original mmengine does not do this, and cannot load its own checkpoints with torch ≥ 2.6. Importing mmattn does
    not do it either: :func:`guard_checkpoints` does, which the tools and inferencers call. The types are those of
    ``get_torch_safe_globals`` of the continued mmengine, and what other versions of mmengine, mmcv and NumPy wrote: all
    number types of NumPy, its texts and times, ``ConfigDict`` and ``argparse.Namespace``. ``getattr``, which reaches
    every function of Python, is replaced by a function for the methods of ``HistoryBuffer``.
    """
    torch.serialization.add_safe_globals([*_types(), *(_sharded() if _is_distributed() else ())])


def safe_names() -> set[str]:
    """Get the full names of all types that are safe to load, also of those that exist only in a process group."""
    sharded = _sharded() if torch.distributed.is_available() else []
    return {f'{kind.__module__}.{kind.__qualname__}' for kind in [*_types(), *sharded]}


def _types() -> list[Any]:
    # The functions that unpickle arrays and numbers; NumPy 2 has moved them.
    functions = np.zeros(0).__reduce__()[0], np.float64().__reduce__()[0]
    pickled_by = [_named(f, f'{module}.multiarray') for f in functions for module in ('numpy.core', 'numpy._core')]
    codes = np.typecodes['AllInteger'] + np.typecodes['AllFloat'] + '?SUmM'
    numbers = {type(np.dtype(code)) for code in codes}
    names = ('mmengine.config.config', 'ConfigDict'), ('mmcv.utils.config', 'ConfigDict'), ('addict.addict', 'Dict')
    mappings = [_named(_Mapping, module, name) for module, name in names]
    return [
        HistoryBuffer,
        slice,
        bytes,
        _method,
        *pickled_by,
        np.ndarray,
        np.dtype,
        *numbers,
        *mappings,
        argparse.Namespace,
    ]


def _named(function: Any, module: str, name: str = '') -> Any:
    # Before torch 2.6, a safe function can only be registered by its own name.
    if isinstance(function, type):
        return type(name, (function,), dict(__module__=module, __qualname__=name))

    def call(*arguments: Any) -> Any:
        return function(*arguments)

    call.__module__, call.__name__, call.__qualname__ = module, *[function.__name__] * 2
    return call


class _Mapping:  # torch fills only dict and OrderedDict, and mmcv 1.x's own class is gone
    def __new__(cls, *items: Any) -> Any:
        return OrderedDict(*(x for x in items if isinstance(x, dict)))  # addict repeats its items


def _method(owner: Any, name: str) -> object:
    is_method = owner is HistoryBuffer and not name.startswith('_')
    is_member = isinstance(owner, type) and issubclass(owner, Enum) and name in owner.__members__
    is_state = (getattr(owner, '__name__', ''), name) == ('ShardedTensor', 'ProcessGroupState')
    if not (is_method or is_member or is_state):
        raise UnpicklingError(f'Unsupported global: GLOBAL getattr({name!r}), not of HistoryBuffer')
    return getattr(owner, name)


# Pickles of methods contain the name builtins.getattr.
_method.__module__, _method.__name__, _method.__qualname__ = 'builtins', 'getattr', 'getattr'


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _sharded() -> list[Any]:
    # FSDP's parts hold ShardedTensors, which can only be created in a process group.
    from torch.distributed._shard import metadata, sharded_tensor, sharding_spec
    from torch.distributed._shard.sharded_tensor.metadata import MEM_FORMAT_ENCODING  # lazy: only parts need them
    from torch.distributed.remote_device import _remote_device

    return [
        sharded_tensor.ShardedTensor,
        sharded_tensor.ShardedTensor.ProcessGroupState,
        sharded_tensor.Shard,
        sharded_tensor.ShardedTensorMetadata,
        sharded_tensor.TensorProperties,
        MEM_FORMAT_ENCODING,
        metadata.ShardMetadata,
        sharding_spec.EnumerableShardingSpec,
        sharding_spec.ChunkShardingSpec,
        _remote_device,
    ]
