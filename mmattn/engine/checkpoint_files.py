"""The one loader of checkpoints: by whatever address a file is named, it runs no code and unpacks to nothing larger."""

import argparse
import fcntl
import os
import re
import sys
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from urllib.parse import urlparse

import numpy as np
import torch
from mmengine.fileio import get_file_backend
from mmengine.logging import HistoryBuffer
from mmengine.runner import (
    CheckpointLoader,
    get_deprecated_model_names,
    get_external_models,
    get_mmcls_models,
    get_torchvision_models,
)

from mmattn._compat import mmengine_home, replace_load_state_dict
from mmattn.engine.loaded_keys import load_and_report, remember_checkpoint

TRUST = 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'
LARGEST_PICKLE = 2**26  # bytes. That of a network with 1,000 layers and its optimizer has 1 MB
HASH = re.compile(r'-(?!(?:19|20)\d{6}\.)([0-9a-f]{8,64})\.\w+$')  # at the end of a name, but no date
REMOTE = r'(\S+\:)?(s3|petrel)://'
PREFIXES = (  # all that mmengine registers
    *('', 'http://', 'https://', 'modelzoo://', 'torchvision://', 'open-mmlab://', 'openmmlab://', 'mmcls://'),
    *(r'(\S+\:)?s3://', r'(\S+\:)?petrel://', 'pavi://'),
)
REFUSED = re.compile(r'GLOBAL (\S+)|unrecognized function|Can only (?:build|create)')  # an object, in torch's errors


def guard_checkpoints() -> None:
    """Make mmengine, and what is built on it, read checkpoints by :func:`read_checkpoint`, in the whole process.

    mmengine reads a checkpoint wherever a config names one: ``load_from``, ``resume``, ``init_cfg`` and ``pretrained``
    of any module. It would run the code in a file, or fail on its own checkpoints. The types that OpenMMLab stores
    beside the weights become safe for ``torch.load``, and the log says how many keys of a model are loaded. The tools,
    the inferencers and ``mmattn.CheckpointHook`` call this function, importing mmattn does not. In a script with none
    of them, call it before you build a model.
    """
    torch.serialization.add_safe_globals(_safe_types())
    CheckpointLoader.register_scheme(PREFIXES, load_from_checked, force=True)
    replace_load_state_dict(load_and_report)


def load_from_checked(filename: str, map_location: Any = None) -> Any:
    """Read a checkpoint for mmengine, which logs the name of this function."""
    remember_checkpoint(filename)
    with _local(filename) as path:
        content = _load(path, map_location)
    if filename.startswith('mmcls://'):
        weights, prefix = content.get('state_dict', content), 'backbone.'
        return dict(state_dict={k.removeprefix(prefix): x for k, x in weights.items() if k.startswith(prefix)})
    return content


def read_checkpoint(address: str | Path, map_location: Any = 'cpu') -> dict:
    """Read a checkpoint, without running code.

    Args:
        address (str or Path): a file, or an address as in :func:`check_checkpoint`.
        map_location: as in ``torch.load``. Defaults to 'cpu'. With 'meta', no weights are read, only their shapes.

    Returns:
        dict: usually with 'state_dict' and 'meta'. Of ``mmcls://`` only the backbone, as in mmengine.

    Raises:
        OSError, ValueError: as in :func:`check_checkpoint`.
    """
    content = load_from_checked(str(address), map_location)
    weights = content.get('state_dict', content) if isinstance(content, dict) else content
    if not isinstance(weights, dict):
        raise ValueError(f'{address} is not a checkpoint (its weights are of type {type(weights).__name__})')
    return content


def check_checkpoint(address: str | Path) -> None:
    """Check that a checkpoint can be read, and that reading it runs no code. Call :func:`guard_checkpoints`, too.

    The weights themselves are not read. In a folder, such as one that DeepSpeed writes for several processes, each
    file is checked. With ``TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1`` in the environment, nothing is checked, as in
    ``torch.load``.

    Args:
        address (str or Path): a file, a folder of parts, or what mmengine takes for one: ``https://``,
            ``torchvision://``, ``open-mmlab://``, ``mmcls://`` or ``s3://``. A URL is downloaded into torch's cache.
            If its name ends with a hash, such as '-2cccc1ad.pth', the file must have it.

    Raises:
        OSError: the file does not exist (FileNotFoundError), or cannot be read or downloaded.
        TypeError: the address is neither a string nor a Path.
        ValueError: the file is not a checkpoint, is compressed, or contains objects that may run code. The message
            gives the reason.

    Example:
        >>> _ = Path('notes.txt').write_text('no weights', encoding='utf-8')
        >>> check_checkpoint('notes.txt')
        Traceback (most recent call last):
        ValueError: notes.txt is not a checkpoint, or damaged (Unsupported operand 110)
    """
    guard_checkpoints()
    if not isinstance(address, str | Path):
        raise TypeError(f'the weights must be the path or URL of a checkpoint; got {type(address).__name__}')
    if not _is_trusted():
        parts = [path for path in Path(address).expanduser().rglob('*') if path.suffix in ('.pt', '.pth', '.bin')]
        for part in parts:
            _load(part, 'meta')
        if not parts:
            read_checkpoint(address, 'meta')


@contextmanager
def _local(address: str) -> Iterator[Path]:
    scheme, separator, name = address.partition('://')
    if re.match(REMOTE, address):
        with tempfile.NamedTemporaryFile(suffix='.pth') as file:
            file.write(get_file_backend(address, backend_args=dict(backend='petrel')).get(address))
            file.flush()
            yield Path(file.name)
    elif not separator:
        yield Path(address).expanduser()
    else:
        place = address if scheme in ('http', 'https') else _place(scheme, name)
        yield _download(place) if '://' in place else Path(mmengine_home(), place)


def _place(scheme: str, name: str) -> str:
    if scheme in ('torchvision', 'modelzoo'):
        places = get_torchvision_models()
    elif scheme == 'mmcls':
        places = get_mmcls_models()
    elif scheme in ('open-mmlab', 'openmmlab'):
        name, places = get_deprecated_model_names().get(name, name), get_external_models()
    else:
        raise ValueError(
            f'{scheme}://{name}: a checkpoint is a file, or an address that begins with http(s)://, torchvision://, '
            'open-mmlab://, mmcls:// or s3://'
        )
    if name not in places:
        raise ValueError(f'{scheme}://{name}: mmengine knows no weights of this name')
    return places[name]


def _download(url: str) -> Path:
    folder = Path(torch.hub.get_dir(), 'checkpoints')  # as torch.hub
    path = folder / Path(urlparse(url).path).name
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / '.lock', 'w', encoding='utf-8') as file:  # of several processes, one downloads
            fcntl.flock(file, fcntl.LOCK_EX)
            if not path.exists():
                print(f'Downloading: "{url}" to {path}', file=sys.stderr)
                named = HASH.search(path.name)
                try:
                    torch.hub.download_url_to_file(url, str(path), named and named[1], sys.stderr.isatty())
                except RuntimeError as error:
                    raise ValueError(f'{url}: the file is not the one that its name promises: {error}') from error
    return path


def _load(path: Path, map_location: Any) -> Any:
    torch.serialization.add_safe_globals(_safe_types())  # the continued mmengine takes its own back, ours among them
    try:
        with open(path, 'rb') as file:
            is_zip = file.read(4) == b'PK\x03\x04'  # as torch decides
        if is_zip and not _is_trusted():
            _check_size(path)
        mapped = is_zip and str(map_location) == 'meta'
        return torch.load(path, map_location=map_location, weights_only=not _is_trusted(), mmap=mapped)
    except (OSError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:  # the unpickler, and the zip module at a damaged directory, may raise any
        if isinstance(error, UnpicklingError) and (refused := REFUSED.search(str(error))):
            raise ValueError(
                f'{path} contains {refused[1] or "an object"}, which may run code when it is loaded. If you trust its '
                f'source, set the environment variable {TRUST}=1'
            ) from error
        reason = str(error).rpartition('WeightsUnpickler error:')[2].strip()  # without torch's advice around it
        reason = re.split(r'\n|\. In PyTorch', reason)[0] or type(error).__name__
        raise ValueError(f'{path} is not a checkpoint, or damaged ({reason})') from error


def _check_size(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        records = archive.infolist()
    if any(record.compress_type for record in records) or sum(x.file_size for x in records) > path.stat().st_size:
        raise ValueError('its records are compressed or overlap, and would take more memory than the file')
    if any(record.filename.endswith('.pkl') and record.file_size > LARGEST_PICKLE for record in records):
        raise ValueError(f'its pickle has more than {LARGEST_PICKLE >> 20} MB')


def _is_trusted() -> bool:
    return os.environ.get(TRUST, '0').lower() in ('1', 'y', 'yes', 'true')


@cache
def _safe_types() -> list[Any]:
    """List the types in checkpoints of OpenMMLab other than tensors: of mmengine, mmcv 1.x, and both NumPy 1 and 2."""
    functions: Any = np.zeros(0).__reduce__()[0], np.float64().__reduce__()[0]  # which unpickle arrays and numbers
    modules = 'numpy.core.multiarray', 'numpy._core.multiarray'
    mappings = ('mmengine.config.config', 'ConfigDict'), ('mmcv.utils.config', 'ConfigDict'), ('addict.addict', 'Dict')
    codes = np.typecodes['AllInteger'] + np.typecodes['AllFloat'] + '?SUmM'
    return [
        *(_named(module, function.__name__, function) for function in functions for module in modules),
        *(_named(*name, _mapping) for name in mappings),
        _named('builtins', 'getattr', _attribute),
        *{type(np.dtype(code)) for code in codes},
        *(np.ndarray, np.dtype, HistoryBuffer, slice, bytes, argparse.Namespace),
    ]


def _named(module: str, name: str, function: Callable) -> type:
    """Make a class that calls a function: before torch 2.6, what is safe can only be registered by its own name."""
    return type(name, (), dict(__module__=module, __new__=lambda _, *arguments: function(*arguments)))


def _mapping(*items: Any) -> OrderedDict:
    # torch fills only dict and OrderedDict, and mmcv 1.x's own class is gone; addict repeats its items
    return OrderedDict(*(x for x in items if isinstance(x, dict)))


def _attribute(owner: Any, name: str) -> object:
    # a pickle names a method of HistoryBuffer by getattr, which reaches every function of Python
    if owner is not HistoryBuffer or name.startswith('_'):
        raise UnpicklingError(f'Unsupported global: GLOBAL getattr({name!r}), not of HistoryBuffer')
    return getattr(owner, name)
