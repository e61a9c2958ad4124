"""A file that records what a long run has finished, from which an interrupted run continues."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from .faults import reading, shorten
from .files import check_writable, lock


def digest(value: Any) -> str:
    """Compute the SHA-256 of a value that can be written as JSON."""
    return sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def weights_digest(model: nn.Module) -> str:
    """Compute the SHA-256 of the names and values of a model's weights."""
    found = sha256()
    for name, x in model.state_dict().items():
        found.update(name.encode())
        found.update(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


def check_output(path: Path, overwrite: bool) -> None:
    """Raise a FileExistsError if a file exists and must not be replaced."""
    if path.exists() and not overwrite:
        raise FileExistsError(errno.EEXIST, 'this file exists; --overwrite replaces it', str(path))


def progress_path(out: Path, resume: bool, overwrite: bool) -> Path:
    """Check the output file ``out`` of a tool. Returns its progress file, ``<out>.part``.

    With ``resume``, the progress file may exist. With ``overwrite``, both files may exist. Otherwise, an OSError names
    the option to use. It is also raised if ``out`` is not a file or its folder is not writable.
    """
    if out.exists() and not out.is_file():  # renaming would replace a device, such as /dev/null
        reason = 'a folder; --out is a file' if out.is_dir() else 'not a regular file, as --out must be'
        raise OSError(errno.EISDIR if out.is_dir() else errno.EINVAL, f'this is {reason}', str(out))
    check_output(out, overwrite)
    check_writable(out.parent)
    path = out.with_name(f'{out.name}.part')
    if path.exists() and not (resume or overwrite):
        message = 'an interrupted run left this file; --resume continues it, --overwrite starts again'
        raise FileExistsError(errno.EEXIST, message, str(path))
    return path


@contextmanager
def open_progress(
    path: str | Path | None, settings: Mapping[str, Any], resume: bool
) -> Iterator[tuple[dict[int, dict], Callable[[dict[int, dict]], None]]]:
    """Open a progress file. Yields its predictions by index, and a function that adds the predictions of a batch.

    The folder of the file is created. With ``resume=False``, the file is emptied first. Its first line has the
    settings, which are everything that the predictions depend on, and every further line a prediction. If a killed
    process left the last line incomplete, the line is removed. Raises an OSError if the file cannot be read or written,
    or if another process uses it. On a file system without locks, nothing is locked. Raises a ValueError if it is
    another file or damaged, or if a run with other settings has written it. Without a path, nothing is recorded.
    """
    if path is None:
        yield {}, lambda predictions: None
        return
    path = Path(path)
    settings = json.loads(json.dumps(settings, default=str))
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, 'a+b', buffering=0) as file:
        try:
            lock(file)
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, 'in use by another process', str(path)) from None
        if not resume:
            file.truncate(0)
        done = _read(file, path, settings)

        def add(predictions: dict[int, dict]) -> None:
            rows = (dict(index=index, **prediction) for index, prediction in predictions.items())
            _append(file, path, [json.dumps(row, ensure_ascii=False) for row in rows])

        if not file.tell():
            _append(file, path, [json.dumps(settings)])
        yield done, add


@contextmanager
def open_file_progress(
    path: str | Path | None, settings: Mapping[str, Any], resume: bool
) -> Iterator[tuple[Callable[[str, Iterable[Path]], bool], Callable[[str, Iterable[Path]], None]]]:
    """Open the progress file of a run that writes files for each input file, see :func:`open_progress`.

    Yields two functions of an input and its outputs. The first says whether this run finished it, and neither the
    input nor the outputs have changed since. The second adds it when its outputs are written.
    """
    with open_progress(path, settings, resume) as (done, add):
        finished = {tuple(state and tuple(state) for state in record.get('files', ())) for record in done.values()}

        def is_finished(source: str, outputs: Iterable[Path]) -> bool:
            return bool(finished) and (_state(source), *map(_state, outputs)) in finished

        def finish(source: str, outputs: Iterable[Path]) -> None:
            states = _state(source), *map(_state, outputs)
            finished.add(states)
            add({len(finished): dict(files=states)})

        yield is_finished, finish


def _state(path: str | Path) -> tuple[str, int, int] | None:
    try:
        stat = Path(path).stat()
    except OSError:
        return None
    return str(Path(path).resolve()), stat.st_size, stat.st_mtime_ns


def _read(file: IO[bytes], path: Path, settings: Mapping[str, Any]) -> dict[int, dict]:
    file.seek(0)
    content = file.read()
    first_line = f'{json.dumps(settings)}\n'.encode()
    if b'\n' not in content and not first_line.startswith(content):  # not what a killed process leaves
        raise ValueError(f'{path}, line 1: not a file of finished predictions')
    file.seek(content.rfind(b'\n') + 1)
    records = []
    for number, line in enumerate(content[: file.tell()].splitlines(), 1):
        with reading(f'{path}, line {number}', 'not a file of finished predictions'):
            records.append(dict(json.loads(line)))
            if number > 1 and type(records[-1]['index']) is not int:
                raise ValueError(f'index is {records[-1]["index"]!r:.80}')
        differing = [key for key in settings if records[0].get(key) != settings[key]]
        if differing:
            names = ', '.join(shorten(differing, 10))
            raise ValueError(
                f'{path} has the finished predictions of another run, which differs in {names}. To start '
                'again, set resume=False, or --overwrite in place of --resume'
            )
    file.truncate()  # removes an incomplete last line
    return {record.pop('index'): record for record in records[1:]}


def _append(file: IO[bytes], path: Path, records: Sequence[str]) -> None:
    data = memoryview(''.join(f'{record}\n' for record in records).encode())
    try:
        while data:
            data = data[file.write(data) :]
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from error
