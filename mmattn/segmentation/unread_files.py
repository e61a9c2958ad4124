"""Files in the folders of a data set that look like its images or masks, but are not read."""

import os
from collections.abc import Collection, Iterator

SUFFIXES = {f'.{name}' for name in ('avif', 'bmp', 'gif', 'heic', 'heif', 'jfif', 'jp2', 'jpe', 'jpeg', 'jpg')}
SUFFIXES |= {f'.{name}' for name in ('pbm', 'pgm', 'png', 'pnm', 'ppm', 'tif', 'tiff', 'webp')}


def unread_files(folder: str, suffix: str, read: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield files that look like images of a data set but are not read, and the reason.

    A name is compared with ``suffix`` without case and without the image format: for ``_leftImg8bit.png``,
    ``b_leftImg8bit.JPG`` is reported, ``b.png`` is not. Hidden files are not reported, nor is a file that differs from
    a file that is read only in its format.

    Args:
        folder (str): folder to search, including subfolders, as ``BaseSegDataset`` does.
        suffix (str): ``img_suffix`` or ``seg_map_suffix``, such as '.png' or '_leftImg8bit.png'.
        read (collection of str): paths of the files that are read.

    Yields:
        tuple: path, and reason: a folder, a broken link, a file with another suffix, or a file with ``suffix`` that is
        not in ``read``.
    """
    tag = _stem(f'_{suffix}')[1:]
    known = {_stem(path) for path in read}
    for parent, folders, files in os.walk(folder, followlinks=True):
        for name in sorted(folders + files):
            path = os.path.join(parent, name)
            looks_read = os.path.splitext(name)[1].lower() in SUFFIXES and _stem(path).endswith(tag)
            if name.startswith('.') or not looks_read or _stem(path) in known:
                continue
            if name in folders:
                yield path, 'a folder that is named like an image'
            elif not os.path.exists(path):
                yield path, 'a broken link'
            elif not name.endswith(suffix):
                yield path, f'not read: its name does not end in {suffix}'
            else:
                yield path, 'not read'


def _stem(path: str) -> str:
    """Return a normalized, lower-case path without its last suffix."""
    return os.path.splitext(os.path.normpath(path))[0].lower()
