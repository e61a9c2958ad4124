"""Size, labels and hash of image files, which are kept in the user's cache, so that a file is read once."""

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from itertools import groupby
from multiprocessing.pool import ThreadPool
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from mmengine.logging import print_log
from PIL import Image, UnidentifiedImageError

from mmattn.utils.faults import one_line
from mmattn.utils.files import write_text
from mmattn.utils.images import lossy_mask_fault

VERSION = 1  # of the facts: another one reads all files again
THREADS = 4  # decoders release the GIL
LFS = b'version https://git-lfs'


class Facts(NamedTuple):
    """Facts of an image or a mask, or only its fault."""

    size: str = ''  # width and height, such as '640×480'
    labels: tuple[int, ...] = ()  # of a mask, as training has them
    digest: str = ''  # of the bytes of an image
    fault: str = ''


def read_facts(infos: Iterable[dict], key: str, loader: Any) -> dict[str, Facts]:
    """Look at the files ``info[key]`` that are new, or have changed since they were last looked at: path → facts."""
    samples = {info[key]: info for info in infos if info.get(key)}
    facts: dict[str, Facts] = {}
    how, due = f'{VERSION} {loader!r}', monotonic() + 5
    with ThreadPool(THREADS) as pool:
        for folder, paths in groupby(sorted(samples, key=os.path.dirname), os.path.dirname):
            stamps = {path: f'{how} {_stamp(path, samples[path])}' for path in paths}
            cache = _cache_path(folder)
            kept = _read_cache(cache)
            new = [path for path, stamp in stamps.items() if stamp not in kept]
            for path, fact in zip(new, pool.imap(lambda path: _look_at(samples[path], key, loader.transform), new)):
                kept[stamps[path]] = fact
                if monotonic() > due:
                    print_log(f'Check: {len(facts) + new.index(path):,} of {len(samples):,} files', 'current')
                    due = monotonic() + 5
            facts |= {path: Facts(*kept[stamp]) for path, stamp in stamps.items()}
            if new:
                text = json.dumps({stamp: fact for stamp, fact in kept.items() if not Facts(*fact).fault})
                with suppress(OSError):
                    write_text(cache, f'{crc32(text.encode())}\n{text}')
    return facts


def _look_at(info: dict, key: str, load: Callable[[dict], Any]) -> Facts:
    """Decode a file with the loader of its pipeline, which also maps the labels of a mask."""
    path = info[key]
    try:
        loaded = load({**info, 'seg_fields': []})
        if loaded is None:  # by ``ignore_empty``
            return Facts()
        if key == 'img_path':
            return Facts(_size(loaded['img']), digest=sha256(Path(path).read_bytes()).hexdigest())
        labels, fault = loaded['gt_seg_map'], ''
        with suppress(UnidentifiedImageError), Image.open(path) as header:
            fault = lossy_mask_fault(header)
            if header.mode.startswith('I') and header.getextrema()[1] > 255:  # type: ignore[operator]
                fault = 'a mask with labels above 255, which loading changes'
        if labels.ndim != 2:
            fault = f'a mask of the shape {labels.shape}, not of one label a pixel'
        return Facts(fault=fault) if fault else Facts(_size(labels), np.unique(labels).tolist())
    except Exception as error:  # decoders raise many types
        with suppress(OSError), open(path, 'rb') as stream:
            if stream.read(len(LFS)) == LFS:
                return Facts(fault='a pointer of Git LFS: run git lfs pull')
        return Facts(fault=f'cannot be loaded: {one_line(error)}')


def _size(pixels: np.ndarray) -> str:
    return f'{pixels.shape[1]}×{pixels.shape[0]}'


def _cache_path(folder: str) -> Path:
    root = os.environ.get('MMATTN_CACHE') or Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache', 'mmattn')
    return Path(root, 'check', f'{sha256(os.fsencode(os.path.abspath(folder))).hexdigest()[:16]}.facts')


def _read_cache(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        checksum, text = path.read_text(encoding='utf-8').split('\n')
        if checksum == str(crc32(text.encode())):
            return json.loads(text)
    return {}


def _stamp(path: str, info: dict) -> str:
    """Tell what a file's facts depend on."""
    settings = f'{os.path.basename(path)} {info.get("label_map")} {info.get("reduce_zero_label")}'
    with suppress(OSError):
        status = os.stat(path)
        return f'{settings} {status.st_size} {status.st_mtime_ns} {status.st_ino}'
    return settings
