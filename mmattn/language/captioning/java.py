"""The Java programs of pycocoevalcap, an optional package."""

from __future__ import annotations

import shutil
from pathlib import Path

from mmattn.language.text.subwords import import_optional


def java_command(jar: str, *options: str) -> list[str]:
    """Return the start of the command that runs a program of pycocoevalcap: its class path, or its archive.

    Args:
        jar (str): path of the archive in the package.
        *options (str): of Java.

    Raises:
        ImportError: pycocoevalcap is not installed; the message gives the command that installs it.
        FileNotFoundError: ``java`` is not on the PATH, or the archive is not in the package.
    """
    path = Path(next(iter(import_optional('pycocoevalcap').__path__)), jar)
    java = shutil.which('java')
    if java is None:
        raise FileNotFoundError('java: not on the PATH; a Java runtime (8 or later) is required')
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no such file; reinstall pycocoevalcap')
    return [java, *options, '-cp', str(path)]
