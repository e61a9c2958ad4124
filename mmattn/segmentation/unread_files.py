"""Files that lie with the images or masks of a data set, look like them, and are not read."""

import os
from collections.abc import Collection, Iterator

SUFFIXES = {f'.{name}' for name in ('avif', 'bmp', 'gif', 'heic', 'heif', 'jfif', 'jp2', 'jpe', 'jpeg', 'jpg')}
SUFFIXES |= {f'.{name}' for name in ('pbm', 'pgm', 'png', 'pnm', 'ppm', 'tif', 'tiff', 'webp')}


def unread_files(folder: str, suffix: str, read: Collection[str]) -> Iterator[tuple[str, str]]:
    """Find what somebody may believe to be read, and say why it is not.

    A name counts if it ends as ``suffix`` does, but for the case and for which image format it is: beside
    ``a_leftImg8bit.png`` that is ``b_leftImg8bit.JPG``, not ``b.png``. Hidden files do not count, nor does a file of
    the same name as one that is read, but for the format.

    Args:
        folder (str): it and its subfolders are searched, as ``BaseSegDataset`` does.
        suffix (str): ``img_suffix`` or ``seg_map_suffix``, such as '.png' or '_leftImg8bit.png'.
        read (collection of str): paths of the files that are read.

    Yields:
        tuple: a path, and what it is: a folder, a link to nothing, a file with another suffix, or one with ``suffix``
        that is not in ``read``.
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
                yield path, 'a link to a file that does not exist'
            elif not name.endswith(suffix):
                yield path, f'not read, as its name does not end in {suffix}'
            else:
                yield path, 'not read'


def _stem(path: str) -> str:
    """Return a path without its last suffix, in one spelling."""
    return os.path.splitext(os.path.normpath(path))[0].lower()
