"""A converter as a command: its faults, threads, and the folders that it reads and writes."""

import argparse
import fcntl
import glob
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypeVar
from urllib.error import URLError

from mmattn.utils.arguments import command
from mmattn.utils.command import checkpoint_cache
from mmattn.utils.faults import SHOWN, Faults, FaultsError
from mmattn.utils.files import atomic_write
from mmattn.utils.progress import track

MARK = 'converted.txt'  # marks an output of a converter, unlike other data sets
LOCK = '.lock'  # in the scratch folder of a process, which holds it
THREADS = min(8, os.cpu_count() or 1)  # each thread holds an image with all its labels
OutDir = Annotated[Path, 'folder to create']
Overwrite = Annotated[bool, 'replace an existing output']
AllowOtherCounts = Annotated[bool, 'for a part of the release: only warn if its numbers of files differ']
T = TypeVar('T')


def converter(convert: Callable[..., None]) -> Callable[[Sequence[str] | None], int]:
    """Make a converter a :func:`mmattn.utils.arguments.command` that prints its faults and returns its exit code."""

    @wraps(convert)
    def run(**arguments: Any) -> int:
        outputs = (getattr(value, 'out_dir', None) for value in arguments.values())  # of arguments in a dataclass
        return _print_faults(partial(convert, **arguments), arguments.get('out_dir') or next(filter(None, outputs), ''))

    return command(run)


def run_converter(
    convert: Callable[[argparse.Namespace], None], parser: argparse.ArgumentParser, argv: Sequence[str] | None
) -> int:
    """Run a converter with the arguments of a parser and ``--overwrite``, as :func:`converter` does."""
    parser.add_argument('--overwrite', action='store_true', help='replace an existing output folder')
    args = parser.parse_args(argv)
    return _print_faults(partial(convert, args), args.out_dir)


def _print_faults(convert: Callable[[], None], out: Path | str) -> int:
    earlier = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a terminated run cleans up
    count = 1
    try:
        convert()
    except FaultsError as fault:
        lines, count = fault.lines(SHOWN), len(fault.lines())
    except URLError as error:
        place = checkpoint_cache()
        lines = [f'cannot download a file ({error.reason}); copy it from the address that the output names to {place}']
    except OSError as error:
        path = error.filename2 or error.filename or out  # a failed copy names both files
        lines = [f'{path}: {error.strerror or error}']
    except KeyboardInterrupt:
        print('Interrupted.', file=sys.stderr)
        return 130
    else:
        return 0
    finally:
        signal.signal(signal.SIGTERM, earlier)
    if len(lines) == 1:
        print(f'error: {lines[0]}', file=sys.stderr)
    else:
        print('\n  '.join([f'error: {count:,} faults', *lines]), file=sys.stderr)
    return 1


@contextmanager
def output_folder(out: Path, overwrite: bool, sources: Iterable[Path], written: Collection[str]) -> Iterator[Path]:
    """Yield a temporary folder next to ``out``. Its subfolder ``new`` becomes ``out`` when the block ends.

    ``out`` must not contain any of the ``sources``. With ``overwrite``, ``out`` may exist if it has no other files than
    ``written``, the names of files and folders that may be deleted. If ``out`` has come to exist since the start, the
    result is kept beside it. Nothing of it is kept after an interruption, unlike with
    :class:`~mmattn.utils.resumable.Resumable`: a folder of files whose names depend on all inputs is made as a whole.
    """
    out = out.resolve()
    if any(out in (source.resolve(), *source.resolve().parents) for source in sources):
        raise FaultsError(out, 'contains the input; choose another --out-dir')
    check_replaceable(out, overwrite, written)
    with replace_folder(out) as scratch:
        mark = Path(scratch, MARK)  # from the start, for what a killed process leaves
        mark.write_bytes(os.fsencode(f'{shlex.join(sys.argv)}\n'))  # file names may be any bytes
        yield scratch
        mark.rename(Path(scratch, 'new', MARK))
        try:
            check_replaceable(out, overwrite, written)
        except FaultsError as fault:
            kept = Path(tempfile.mkdtemp(prefix=f'{out.name}.converted-', dir=out.parent), out.name)
            Path(scratch, 'new').rename(kept)
            raise FaultsError({**fault.by_path, str(kept): ['the result of this conversion']}) from fault


def write_texts(texts: Mapping[Path, str]) -> None:
    """Write texts in UTF-8 by path, aside first. No file gets its name before all of them are written."""
    with ExitStack() as stack:
        for path, text in texts.items():
            stack.enter_context(atomic_write(path)).write_text(text, encoding='utf-8')


@contextmanager
def replace_folder(path: str | Path) -> Iterator[Path]:
    """Yield a scratch folder next to ``path``. Its subfolder ``new`` replaces ``path`` when the block ends.

    If the block raises, ``path`` stays as it is. The parent of ``path`` is created. Scratch folders that killed
    processes left are removed.

    Example:
        >>> with replace_folder('pictures') as scratch:
        ...     (scratch / 'new').mkdir()
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f'{glob.escape(path.name)}.part-*'):
        with suppress(OSError), open(left / LOCK, 'rb') as file:  # an error: it is held, or cannot be
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left)
    with (
        TemporaryDirectory(prefix=f'{path.name}.part-', dir=path.parent) as folder,
        open(Path(folder, 'new.lock'), 'wb') as file,
    ):
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        os.rename(file.name, Path(folder, LOCK))  # locked before another process can find it
        yield Path(folder)
        old = Path(folder, 'old')
        if path.exists():
            path.rename(old)
        try:
            Path(folder, 'new').rename(path)
        except BaseException:
            if old.exists():
                old.rename(path)
            raise


def check_replaceable(out: Path, overwrite: bool, written: Collection[str]) -> None:
    """Raise a fault if ``out`` exists and may not be replaced, see :func:`output_folder`."""
    if not out.exists():
        return
    if not overwrite:
        raise FaultsError(out, 'already exists; --overwrite replaces it')
    if not (out / MARK).is_file():
        raise FaultsError(out, f'not written by a converter (it has no {MARK}); --overwrite would delete it')
    if foreign := {path.name for path in out.iterdir()} - {*written, MARK}:
        raise FaultsError(out, f'also contains {min(foreign)}, which --overwrite would delete')


def check_config_names(names: Mapping[str, object]) -> None:
    """Raise a fault for each name that no config may have. ``names`` maps the names of classes to their files.

    mmengine replaces what is in double braces in the text of a config, and what it inserts can be code.
    """
    faults = Faults()
    for name, file in names.items():
        if '{{' in name or '}}' in name:
            faults.add(file, f'a config cannot have the name {name!r}: mmengine would replace what is in double braces')
    faults.check()


def check_config_folder(folder: Path) -> None:
    """Raise a fault if a config cannot lie in ``folder``, whose path mmengine writes into it."""
    path = str(folder.resolve())
    if {*'\'"\\\n'} & {*path}:
        raise FaultsError(folder, 'a config cannot be in a folder with quotes or backslashes in its path')
    check_config_names({path: folder})


def train_command(config: Path) -> str:
    """Return the command that trains a written config, with the train.py of these tools, wherever they were copied."""
    tool = os.path.relpath(Path(__file__).resolve().parents[2] / 'train.py')
    return shlex.join(['python', tool, str(config)])


def check_folder(folder: Path) -> None:
    """Raise a fault if there is no such folder."""
    if not folder.is_dir():
        raise FaultsError(folder, 'no such folder')


def is_converted(path: Path, folder: Path) -> bool:
    """Check whether a path below a folder is in the output of a converter, which is no part of a release."""
    return any((parent / MARK).is_file() for parent in path.parents if folder in parent.parents)


def files_below(folder: Path) -> list[Path]:
    """List the files of a folder and its subfolders, sorted by path. Links are followed.

    Hidden names are skipped, and the outputs of converters below the folder.
    """
    found = []
    for root, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [x for x in folders if not x.startswith('.') and not Path(root, x, MARK).is_file()]
        found += [Path(root, name) for name in names if not name.startswith('.')]
    return sorted(found)


def warn_of_test_set(splits: Collection[str]) -> None:
    """Warn if a data set has no training data."""
    if 'train' not in splits:
        print('warning: no split train: a test set for a trained model, see docs/datasets.md', file=sys.stderr)


def check_held_out(place: object, images: Collection[Any]) -> None:
    """Raise a fault if every second of the ``images`` is to be held out for testing, but there is only one."""
    if len(images) == 1:
        raise FaultsError(place, 'one image, but a part is held out for testing: give two, or a test split')


def find(folder: Path, pattern: str) -> Path:
    """Find the first match in ``folder``, or up to two levels below, as in archives, but in no converter's output."""
    for above in ('', '*/', '*/*/'):
        for path in sorted(folder.glob(above + pattern)):
            if not is_converted(path, folder):
                return path
    raise FaultsError(folder, f'no {pattern} in it')


def convert_all(samples: Sequence[T], convert: Callable[[T], None]) -> Faults:
    """Call ``convert`` on every sample, in threads, with a progress bar. Collect what it raises because of a file."""
    faults = Faults()

    def faults_error(sample: T) -> FaultsError | None:
        try:
            convert(sample)
        except FaultsError as error:
            return error
        return None

    with ThreadPoolExecutor(THREADS) as pool:
        try:
            for error in track(pool.map(faults_error, samples), 'Converting', len(samples)):
                if error:
                    faults.include(error)
        except BaseException:  # a full disk, or Ctrl-C: do not convert the others first
            pool.shutdown(cancel_futures=True)
            raise
    return faults
