"""What a long run has finished, recorded in a file, from which an interrupted run continues."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, TypeVar

import torch
from torch import nn

from .faults import FaultsError, reading, shorten
from .files import check_writable, lock

SHORT = 60  # characters of a value in a message: digests are longer
R = TypeVar('R', bound='Resumable')


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


class OtherRunError(FaultsError):
    """A file was written by a run with other settings. ``differing`` names them."""

    differing: list[str] = []


def check_same_run(path: Path, recorded: Mapping[str, Any], settings: Mapping[str, Any], restart: str) -> None:
    """Raise an :class:`OtherRunError` if the settings in a file differ from those of this run.

    ``restart`` says how to start again. Further settings in the file are ignored.
    """
    settings = _as_json(settings)
    if differing := [key for key in settings if recorded.get(key) != settings[key]]:
        names = ', '.join(shorten(differing, 10))
        values = {key: repr(recorded[key]) for key in differing if key in recorded}
        shown = ', '.join(f'{key} is {value}' for key, value in values.items() if len(value) <= SHORT)
        there = f' (there, {shown})' if shown else ''
        error = OtherRunError(f'{path} is of another run, which differs in {names}{there}. To start again, {restart}')
        error.differing = differing
        raise error


@dataclass
class Resumable:
    """Record what a run has finished in a file, and continue from it after any interruption, ``kill -9`` included.

    The first line of the file has the settings, which are everything that results depend on. Each further line has the
    key of a result, as ``index``, and its values. If a killed process left the last line incomplete, the line is
    removed, and only its result is lost. If a write fails, as on a full disk, what was written before stays.

    Entering the context creates the folder of the file. It raises an OSError if the file cannot be read or written, or
    if another process uses it. On a file system without locks, nothing is locked. It raises a ValueError if the file is
    another one or damaged, and an :class:`OtherRunError` if a run with other settings has written it. A refused file is
    not changed.

    Args:
        path (str or Path, optional): the file. None: nothing is recorded.
        settings (Mapping): as JSON. Values of other types count as their texts.
        resume (bool): False: the file is emptied first. Defaults to True.
        key_type (type): int or str. Defaults to int.
        is_intact (Callable): given a key and its values in the order of the file, says whether the result is still
            there. From the first that is not, the file is cut. Defaults to always.
        restart (str): how to start again, for messages.
        locked (bool): lock the file. Defaults to True.

    Example:
        >>> for _ in range(2):
        ...     with Resumable('scores.part', dict(model='a')) as run:
        ...         print(run.done)
        ...         run.add({3: dict(score=0.5)})
        {}
        {3: {'score': 0.5}}
    """

    path: str | Path | None
    settings: Mapping[str, Any]
    resume: bool = True
    key_type: type = int
    is_intact: Callable[[Any, dict[str, Any]], bool] = lambda key, values: True
    restart: str = 'set resume=False, or --overwrite in place of --resume'
    locked: bool = True
    done: dict[Any, dict[str, Any]] = field(default_factory=dict, init=False)
    _file: IO[bytes] | None = field(default=None, init=False)

    def __enter__(self: R) -> R:
        if self.path is not None:
            path = Path(self.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, 'a+b', buffering=0)
            try:
                self._continue(self._file, path)
            except BaseException:
                self._file.close()
                raise
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, results: Mapping[Any, Mapping[str, Any]]) -> None:
        """Add results by key. When the call returns, they are in the file."""
        self._append([dict(index=key, **values) for key, values in results.items()])
        self.done.update({key: dict(values) for key, values in results.items()})

    def _continue(self, file: IO[bytes], path: Path) -> None:
        self.done.clear()
        try:
            if self.locked:
                lock(file)
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, 'in use by another process', str(path)) from None
        if not self.resume:
            file.truncate(0)
        file.seek(0)
        content = file.read()
        if _lines([_as_json(self.settings)]).startswith(content):  # new, or killed at its start
            file.truncate(0)
            self._append([_as_json(self.settings)])
            return
        if b'\n' not in content:  # not what a killed process leaves
            raise FaultsError(f'{path}, line 1: not the progress of a run')
        end = 0
        for number, line in enumerate(content[: content.rfind(b'\n') + 1].splitlines(keepends=True), 1):
            with reading(f'{path}, line {number}', f'not the progress of a run; to start again, {self.restart}'):
                values = json.loads(line)
                if type(values) is not dict:
                    raise ValueError(f'got {values!r:.80}')
                if number > 1:
                    key = values.pop('index')
                    if type(key) is not self.key_type:
                        raise ValueError(f'index is {key!r:.80}')
                    if not self.is_intact(key, values):
                        break
                    self.done[key] = values
            if number == 1:
                check_same_run(path, values, self.settings, self.restart)
            end += len(line)
        file.truncate(end)

    def _append(self, records: Iterable[Mapping[str, Any]]) -> None:
        if self._file is None:
            return
        data, end = memoryview(_lines(records)), self._file.seek(0, os.SEEK_END)
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            self._file.truncate(end)
            raise type(error)(error.errno, error.strerror, str(self.path)) from error


def _as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(settings, default=str))


def _lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    lines = ''.join(f'{json.dumps(record, ensure_ascii=False)}\n' for record in records)
    return lines.encode(errors='surrogatepass')  # file names may be any bytes; json.loads decodes so
