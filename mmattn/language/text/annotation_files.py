"""JSON files of annotations, and the relative paths in configs of their data sets."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

from mmattn.utils.faults import reading


def read_json(path: str | Path) -> Any:
    """Read a JSON file, which may be compressed (``.gz``). A ValueError names a damaged file."""
    path = Path(path)
    data = path.read_bytes()
    with reading(path, 'not a JSON file'):
        text = (gzip.decompress(data) if path.suffix == '.gz' else data).decode('utf-8-sig')
        content = json.loads(text)
        if re.search(r'\\u[dD]', text):  # half a character could not be written again
            json.dumps(content, ensure_ascii=False).encode()
        return content


def check_text(value: Any) -> str:
    """Return ``value`` if it is a string. Raise a TypeError if it is not."""
    if not isinstance(value, str):
        raise TypeError(f'expected str; got {value!r}')
    return value


def in_folder(folder: str, place: Any) -> Any:
    """Prepend a folder to a path, or to each of a list. Another value, such as None, stays as it is."""
    if isinstance(place, list | tuple):
        return [in_folder(folder, path) for path in place]
    return str(Path(folder, place)) if isinstance(place, str | Path) else place
