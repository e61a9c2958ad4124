"""Atomic writes, copies of files, and folders that only one process uses at a time."""

import ast
import errno
import fcntl
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TypeVar
from uuid import uuid4
from zlib import crc32

LONGEST = 255  # bytes of a file name
T = TypeVar('T', str, Path)
BLOCK = 1 << 12  # bytes at the end of a file that nearly always differ where the files do


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder, and rename it to ``path`` when the block ends without an error.

    The temporary path is unique, so two processes never write to the same file. It has the suffix of ``path``, because
    many libraries choose the format by suffix. The folder of ``path`` is created. If the block raises, the temporary
    file is removed and ``path`` is not changed. An OSError names ``path``. If a library reports no error when a write
    fails, check the file at the end of the block.

    Example:
        >>> with atomic_write('scores.csv') as temporary:
        ...     _ = temporary.write_text('image,score', encoding='utf-8')
        >>> Path('scores.csv').read_text(encoding='utf-8')
        'image,score'
    """
    path = Path(path)
    end = f'.{uuid4().hex[:12]}.part{path.suffix}'
    stem = os.fsdecode(os.fsencode(path.stem)[: LONGEST - 1 - len(os.fsencode(end))])
    temporary = path.with_name(f'.{stem}{end}')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(temporary), temporary):
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` as UTF-8 with :func:`atomic_write`."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding='utf-8')


def remove_temporary_files(folder: str | Path) -> None:
    """Remove temporary files of :func:`atomic_write` that killed processes left. The caller must hold the folder."""
    for path in Path(folder).glob(f'.*.{"[0-9a-f]" * 12}.part*'):
        path.unlink(missing_ok=True)


def check_writable(folder: str | Path) -> None:
    """Check that files can be created in a folder, or in its nearest existing parent. Create nothing.

    If files cannot be created, the OSError names ``folder``.
    """
    folder = Path(folder)
    # a dangling link counts as existing, because no folder can be created in its place
    nearest = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), Path())
    try:
        with TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        message = f'this folder cannot be written to ({error.strerror})'
        raise type(error)(error.errno, message, str(folder)) from None


def check_path(argument: str, value: object) -> Path:
    """Check that an argument is a path, not for example an image, an open file or None. Return it as a ``Path``."""
    if not isinstance(value, str | Path):
        raise TypeError(f'{argument} must be a path (str or Path); got {type(value).__name__}')
    return Path(value)


def common_folder(paths: Iterable[str | Path]) -> str:
    """Get the absolute path of the deepest folder that contains all files, '' of no file. Paths may be relative.

    Example:
        >>> common_folder(['/data/val/bonn/1.png', '/data/val/2.png'])
        '/data/val'
    """
    folders = [os.path.dirname(os.path.abspath(path)) for path in paths]
    return os.path.commonpath(folders) if folders else ''


def find_copies(paths: Iterable[T]) -> list[list[T]]:
    """Group files with the same bytes. In a group, the file with the shortest name, the original, comes first.

    A file is read whole only if another file has its size and its last bytes.

    Args:
        paths (iterable of str or Path): the files. Those that cannot be read are left out.

    Example:
        >>> for name in ('a.txt', 'a-Copy1.txt', 'b.txt'):
        ...     _ = Path(name).write_text(name[0], encoding='utf-8')
        >>> find_copies(['a-Copy1.txt', 'a.txt', 'b.txt'])
        [['a.txt', 'a-Copy1.txt']]
    """
    groups: list[list] = [[*dict.fromkeys(paths)]]
    keys: tuple[Callable, ...] = (read_end, _digest)
    for key in keys:
        by_key = defaultdict(list)
        for number, group in enumerate(groups):
            for path in group:
                with suppress(OSError):
                    by_key[number, key(path)].append(path)
        groups = [group for group in by_key.values() if len(group) > 1]
    return [sorted(group, key=lambda path: (len(Path(path).name), len(str(path)), path)) for group in groups]


def read_end(path: str | Path) -> tuple[int, int]:
    """Return the size of a file, and a checksum of its last bytes."""
    with open(path, 'rb') as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - BLOCK))
        return size, crc32(file.read())


def _digest(path: str | Path) -> bytes:
    return sha256(Path(path).read_bytes()).digest()


def check_not_input(argument: str, output: str | Path, inputs: Iterable[str | Path]) -> None:
    """Check that ``output`` is none of the inputs, and is not in an input folder. Links are followed.

    ``inputs`` are files and folders that are read, and need not exist. The message calls the output ``argument``.
    """
    target = Path(output).resolve()
    for source in map(Path, inputs):
        inside = source.is_dir() and source.resolve() in (target, *target.parents)
        if inside or (source.exists() and target.exists() and target.samefile(source)):
            raise ValueError(f'{argument} {output} would replace an input, {source}; choose another path')


def input_files(args: object) -> list[Path]:
    """List the existing files among the arguments of a tool, except ``--out``, and the base files of configs."""
    values = [value for name, value in vars(args).items() if name != 'out']
    items = [item for value in values for item in (value if isinstance(value, list | tuple) else [value])]
    files = [Path(item) for item in items if isinstance(item, str | Path) and os.path.isfile(item)]
    return list(dict.fromkeys(file for path in files for file in config_files(path)))


def config_files(path: Path) -> list[Path]:
    """List a file and, if it is a config, its base files and theirs. Bases of a package, ``mmseg::…``, are left out."""
    files = [path]
    for file in files:  # grows with the base files
        files += [base for base in _base_files(file) if base not in files]
    return files


def _base_files(config: Path) -> list[Path]:
    if config.suffix != '.py':
        return []
    try:
        assigned = [node for node in ast.parse(config.read_bytes()).body if isinstance(node, ast.Assign)]
        values = [ast.literal_eval(node.value) for node in assigned if ast.unparse(node.targets[0]) == '_base_']
    except (SyntaxError, ValueError):  # what is wrong with the config is said where it is read
        return []
    names = [name for value in values for name in ([value] if isinstance(value, str) else value)]
    files = [(config.parent / name).resolve() for name in names]
    return [file for file in files if file.is_file()]


def hold(folder: str | Path) -> IO[str]:
    """Lock ``.lock`` in a folder until this process ends or the returned file is closed.

    Unlike the lock of :func:`exclusive`, forked processes do not inherit this lock. The workers of a data loader
    outlive a process that is killed, and must not block its successor. On a file system without locks, nothing is
    locked. If another process holds the folder, a BlockingIOError names the folder.
    """
    file = open(Path(folder, '.lock'), 'a+', encoding='utf-8')  # noqa: SIM115
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            file.close()
            raise BlockingIOError(errno.EWOULDBLOCK, 'in use by another run', str(folder)) from None
    return file


def lock(file: IO) -> None:
    """Lock an open file for this process and the child processes that inherit it, or raise a BlockingIOError.

    On a file system without locks, nothing is locked.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise


@contextmanager
def exclusive(folder: str | Path) -> Iterator[int]:
    """Create a folder, lock ``.lock`` in it for this process, and yield the file descriptor of the lock.

    The operating system releases the lock when the process ends for any reason. Child processes that inherit the file
    descriptor also hold the lock. On a file system without locks, nothing is locked. If another process holds the
    folder, a BlockingIOError names the folder and the process.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / '.lock', 'a+', encoding='utf-8') as file:
        try:
            lock(file)
        except BlockingIOError:
            file.seek(0)
            message = f'in use by another process ({file.read() or "unknown"})'
            raise BlockingIOError(errno.EWOULDBLOCK, message, str(folder)) from None
        file.truncate(0)
        file.write(f'PID {os.getpid()}')
        file.flush()
        yield file.fileno()
