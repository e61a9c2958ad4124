"""The one door for checkpoints: whoever names one, by whatever address, its file is checked before it is unpickled."""

import errno
import fcntl
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any
from urllib.parse import urlparse

import torch
from mmengine.fileio import get_file_backend
from mmengine.runner import (
    CheckpointLoader,
    get_deprecated_model_names,
    get_external_models,
    get_mmcls_models,
    get_torchvision_models,
)

from mmattn._compat import PythonUnpickler, mmengine_home, weights_only_names
from mmattn.engine.safe_globals import add_safe_globals, safe_names
from mmattn.utils.faults import shorten

TRUST = 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'
CHUNK = 2**24  # bytes read at once
LEGACY = b'\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.'  # first bytes of checkpoints of torch < 1.6
HASH = re.compile(r'-(?!(?:19|20)\d{6}\.)([0-9a-f]{8,64})\.\w+$')  # at the end of a name, but no date
REMOTE = r'(\S+\:)?(s3|petrel)://'
PREFIXES = (  # all that mmengine registers
    *('', 'http://', 'https://', 'modelzoo://', 'torchvision://', 'open-mmlab://', 'openmmlab://', 'mmcls://'),
    *(r'(\S+\:)?s3://', r'(\S+\:)?petrel://', 'pavi://'),
)
PARTS = '.pt', '.pth', '.bin'  # of a folder
# classes that DeepSpeed stores beside the weights
DEEPSPEED = {
    f'deepspeed.{name}'
    for name in (
        'runtime.fp16.loss_scaler.LossScaler',
        'runtime.fp16.loss_scaler.DynamicLossScaler',
        'runtime.fp16.loss_scaler.LossScaleConfig',
        'runtime.fp16.loss_scaler.LossScaleProfile',
        'runtime.zero.config.ZeroStageEnum',
        'utils.tensor_fragment.fragment_address',
    )
}


def guard_checkpoints() -> None:
    """Make mmengine, and what is built on it, read checkpoints by :func:`read_checkpoint`, in the whole process.

    mmengine reads a checkpoint wherever a config names one: ``load_from``, ``resume``, ``init_cfg`` and ``pretrained``
    of any module. It would run the code in a file. The tools, the inferencers and ``mmattn.CheckpointHook`` call this
    function, importing mmattn does not. In a script with none of them, call it before you build a model.
    """
    add_safe_globals()
    CheckpointLoader.register_scheme(PREFIXES, load_from_checked, force=True)


def load_from_checked(filename: str, map_location: Any = None) -> Any:
    """Read a checkpoint for mmengine, which logs the name of this function."""
    return read_checkpoint(filename, map_location)


def read_checkpoint(address: str | Path, map_location: Any = 'cpu') -> Any:
    """Check a checkpoint as :func:`check_checkpoint` does, and read it.

    Args:
        address (str or Path): a file, or an address as in :func:`check_checkpoint`.
        map_location: as in ``torch.load``. Defaults to 'cpu'.

    Returns:
        the content, usually a dict with 'state_dict' and 'meta'. Of ``mmcls://`` only the backbone, as in mmengine.
    """
    with _local(str(address)) as path:
        _check(path)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, 'a file is read here; this is a checkpoint in parts', str(path))
        with _refusing(path):  # the check maps the file, and torch does not compare the sizes of its records then
            checkpoint = torch.load(path, map_location=map_location, weights_only=not _is_trusted())
    if str(address).startswith('mmcls://'):
        weights = checkpoint.get('state_dict', checkpoint)
        prefix = 'backbone.'
        return dict(state_dict={k.removeprefix(prefix): x for k, x in weights.items() if k.startswith(prefix)})
    return checkpoint


def check_checkpoint(address: str | Path) -> None:
    """Check that a checkpoint is complete and has finite weights, and that loading it runs no code.

    The continued mmengine would also load other files. A folder is accepted if it holds the parts that DeepSpeed or
    mmengine's FSDP writes for several processes; of these, the names of the objects are checked. With
    ``TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1`` in the environment, the objects are not checked, as in ``torch.load``. The
    types that OpenMMLab stores in its checkpoints are registered as safe, see :func:`add_safe_globals`, and mmengine
    reads only checked files afterwards, see :func:`guard_checkpoints`.

    Args:
        address (str or Path): a file, a folder of parts, or what mmengine takes for one: ``https://``,
            ``torchvision://``, ``open-mmlab://``, ``mmcls://`` or ``s3://``. A URL is downloaded into torch's cache.
            If its name ends with a hash, such as '-2cccc1ad.pth', the file must have it.

    Raises:
        OSError: the file does not exist (FileNotFoundError), or cannot be read or downloaded.
        TypeError: the address is neither a string nor a Path.
        ValueError: the file is not a checkpoint, contains objects that may run code, or has weights that are NaN or
            infinite. The message gives the reason.

    Example:
        >>> _ = Path('notes.txt').write_text('no weights', encoding='utf-8')
        >>> check_checkpoint('notes.txt')
        Traceback (most recent call last):
        ValueError: notes.txt is not a checkpoint (torch.save did not write it)
    """
    guard_checkpoints()
    if not isinstance(address, str | Path):
        raise TypeError(f'the weights must be the path or URL of a checkpoint; got {type(address).__name__}')
    with _local(str(address)) as path:
        _check(path)


@contextmanager
def _local(address: str) -> Iterator[Path]:
    scheme, separator, name = address.partition('://')
    if re.match(REMOTE, address):
        with tempfile.NamedTemporaryFile(suffix='.pth') as file:
            file.write(get_file_backend(address, backend_args=dict(backend='petrel')).get(address))
            file.flush()
            try:
                yield Path(file.name)
            except ValueError as error:
                raise ValueError(str(error).replace(file.name, address)) from error
    elif scheme in ('http', 'https'):
        yield _download(address)
    elif not separator:
        yield Path(address).expanduser()
    elif scheme in ('torchvision', 'modelzoo'):
        yield _download(_look_up(address, name, get_torchvision_models()))
    elif scheme == 'mmcls':
        yield _download(_look_up(address, name, get_mmcls_models()))
    elif scheme in ('open-mmlab', 'openmmlab'):
        place = _look_up(address, get_deprecated_model_names().get(name, name), get_external_models())
        is_url = place.startswith(('http://', 'https://'))
        yield _download(place) if is_url else Path(mmengine_home(), place)
    else:
        raise ValueError(
            f'{address}: a checkpoint is a file, or an address that begins with http(s)://, torchvision://, '
            f'open-mmlab://, mmcls:// or s3://; got {scheme}://'
        )


def _look_up(address: str, name: str, places: dict[str, str]) -> str:
    if name not in places:
        raise ValueError(f'{address}: mmengine knows no weights {name!r}')
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


def _is_trusted() -> bool:
    return os.environ.get(TRUST, '0').lower() in ('1', 'y', 'yes', 'true')


def _check(path: Path) -> None:
    add_safe_globals()
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, 'there is no such checkpoint', str(path))
    reason = _why_no_checkpoint(path)
    if reason:
        raise ValueError(f'{path} is not a checkpoint ({reason})')
    if not _is_trusted():
        if path.is_file():
            _check_content(path)
        else:
            for part in _parts(path):
                _check_names(part)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except UnpicklingError as error:
        named = re.search(r'GLOBAL (\S+)', str(error))
        raise ValueError(
            f'{path} contains {named[1] if named else "an object"}, which may run code when it is loaded. If you trust '
            f'its source, set the environment variable {TRUST}=1'
        ) from error
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # the unpickler may raise any
        text = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f'{path} is not a checkpoint (it is damaged: {text})') from error


def _check_content(path: Path) -> None:
    with _refusing(path):
        checkpoint = torch.load(path, map_location='cpu', weights_only=True, mmap=zipfile.is_zipfile(path))
    if not isinstance(checkpoint, dict):
        raise ValueError(f'{path} is not a checkpoint (its content is of type {type(checkpoint).__name__})')
    weights = checkpoint.get('state_dict', checkpoint)
    meta = checkpoint.get('meta') if 'state_dict' in checkpoint else None  # else it may be a weight
    data = meta.get('dataset_meta') if isinstance(meta, dict) else None
    for name, part in (('state_dict', weights), ('meta', meta), ('dataset_meta', data)):
        if not isinstance(part, dict) and (part is not None or part is weights):
            raise ValueError(f'{path} is not a checkpoint (its {name} is of type {type(part).__name__})')
    tensors = {name: x for name, x in weights.items() if type(x) in (torch.Tensor, torch.nn.Parameter)}  # no shards
    if odd := [f'{name} ({kind})' for name, x in tensors.items() if (kind := _odd_kind(x))]:
        raise ValueError(f'{path} has weights that no model here can load: {", ".join(shorten(odd, 3))}')
    if invalid := [name for name, x in tensors.items() if not _is_finite(x)]:
        raise ValueError(f'{path} has NaN or infinite weights: {", ".join(shorten(invalid, 3))}')


def _odd_kind(x: torch.Tensor) -> str:
    if x.is_meta:
        return 'meta, without values'
    if x.is_nested:
        return 'nested'
    if x.layout is not torch.strided:
        return str(x.layout)
    return str(x.dtype) if x.is_quantized or (x.is_floating_point() and x.element_size() == 1) else ''


def _is_finite(x: torch.Tensor) -> bool:
    # a buffer may be an attention mask, with −∞
    return not x.is_floating_point() or bool(x.isfinite().all()) or not bool((x.isnan() | (x == torch.inf)).any())


def _parts(folder: Path) -> list[Path]:
    return [part for part in folder.rglob('*') if part.suffix in PARTS and part.is_file()]


def _why_no_checkpoint(path: Path) -> str:
    if path.is_dir():
        if any(path.glob('*.distcp')):
            return 'mmengine does not read folders of torch.distributed.checkpoint'
        return next((f'{part.name}: {why}' for part in _parts(path) if (why := _why_no_checkpoint(part))), '') or (
            '' if _parts(path) else 'it is a folder'
        )
    with path.open('rb') as file:
        start = file.read(len(LEGACY))
    if not start:
        return 'it is empty'
    if start == LEGACY:
        return ''
    try:
        if not zipfile.is_zipfile(path):
            return 'it is truncated' if start.startswith(b'PK') else 'torch.save did not write it'
        with zipfile.ZipFile(path) as archive:
            names = {name.partition('/')[2] for name in archive.namelist()}
            for record in archive.infolist():
                if record.CRC:  # torch.serialization.set_crc32_options(False) leaves it 0
                    with archive.open(record) as content:
                        while content.read(CHUNK):  # raises at the end if the checksum differs; torch does not check it
                            pass
    except Exception as error:  # of a damaged directory, the zip module raises many types
        return f'it is damaged: {error}'
    if 'constants.pkl' in names:
        return 'it is a TorchScript program'
    return '' if 'data.pkl' in names else 'it is another zip file'


def _check_names(part: Path) -> None:
    """Check the names of the objects in a part of a checkpoint. Whoever reads the part has the classes, not we."""
    with _refusing(part):
        if not zipfile.is_zipfile(part):
            with part.open('rb') as file:
                for _ in range(5):  # magic number, protocol, system, content, keys
                    _Follower(file).load()
            return
        with zipfile.ZipFile(part) as archive:
            for name in archive.namelist():
                if name.endswith('.pkl'):
                    with archive.open(name) as file:
                        _Follower(file).load()


class _Follower(PythonUnpickler):
    """Follow a pickle with empty shells in place of its objects. A name that is not safe raises."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, encoding='latin1')
        self._safe = weights_only_names() | safe_names() | DEEPSPEED

    def find_class(self, module: str, name: str) -> Any:
        full = f'{module}.{name}'.replace('__builtin__', 'builtins')  # of Python 2, as in torch
        if full not in self._safe:
            raise UnpicklingError(f'GLOBAL {full}')
        if full == 'builtins.getattr':
            return _shell_attribute
        return type(name, (_Shell,), dict(full=full))

    def persistent_load(self, pid: Any) -> Any:
        return _Shell()


class _Shell:
    full = ''

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)

    def _ignore(self, *args: Any) -> None:
        pass

    __init__ = __setstate__ = __setitem__ = append = extend = add = _ignore  # type: ignore[assignment]


def _shell_attribute(owner: Any, name: str) -> Any:
    full = getattr(owner, 'full', '')
    allowed = full.endswith(('.HistoryBuffer', 'Enum', '_ENCODING')) or (full[-14:], name) == (
        '.ShardedTensor',
        'ProcessGroupState',
    )
    if name.startswith('_') or not allowed:
        raise UnpicklingError(f'GLOBAL getattr({name!r})')
    return _Shell
