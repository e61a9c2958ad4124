"""The images of an export, found by the paths that tools write."""

import os
from collections import defaultdict
from pathlib import Path, PurePosixPath

from PIL import Image
from PIL.TiffImagePlugin import IMAGELENGTH, IMAGEWIDTH

from common.conversion import check_folder, files_below
from mmattn.utils.faults import FaultsError, reading
from mmattn.utils.image_files import SUFFIXES
from mmattn.utils.images import ORIENTATION, tiff_tags, unreadable

from .shapes import UNKNOWN, Picture, Size


class Images:
    """The images below a folder."""

    def __init__(self, folder: Path) -> None:
        check_folder(folder)
        self.folder = folder
        self.paths = [path for path in files_below(folder) if path.suffix.lower() in SUFFIXES]
        self.by_name = defaultdict[str, list[Path]](list)
        for path in self.paths:
            self.by_name[path.name].append(path)
            self.by_name[path.stem].append(path)

    def find(self, picture: Picture) -> Path:
        """Return the image whose path ends most like a name of the picture, which tools begin in other folders."""
        for text in picture.names:
            name = PurePosixPath(os.path.normpath(text.replace('\\', '/')))
            paths, named = self.by_name[name.name] or self.by_name[name.stem], picture.source.parent / name
            if named.is_file():
                paths = [path for path in paths if path.samefile(named)][:1]  # else it is outside of the folder
            ends = {path: _common_end(path.parent.parts, name.parent.parts) for path in paths}
            best = [path for path in paths if ends[path] == max(ends.values())]
            if len(best) == 1:
                return best[0]
        reason = f'may be {best[0]} or {best[1]}; give' if best else f'is not below {self.folder}; missing, or another'
        raise FaultsError(f'{text} {reason} --images')

    def of_labels(self, path: Path) -> Path | None:
        """Return the image of a YOLO file: beside it, or in ``images`` where the file is in ``labels``."""
        same, parts = self.by_name[path.stem], path.parent.parts
        if self.folder not in path.parents and len(same) == 1:
            return same[0]
        folders = [path.parent]
        folders += [Path(*parts[:i], 'images', *parts[i + 1 :]) for i, part in enumerate(parts) if part == 'labels']
        return next((image for image in same if image.parent in folders), None)


def upright_size(image: Path, expected: Size) -> Size:
    """Return the size of an image after EXIF has turned it, which must be the size that the tool saw."""
    with reading(image, describe=unreadable), open(image, 'rb') as stream:
        tags = tiff_tags(stream)  # PIL opens few kinds of bands
        if tags is not None:
            stored, orientation = (tags[IMAGEWIDTH], tags[IMAGELENGTH]), tags.get(ORIENTATION, 1)
        else:
            stream.seek(0)
            with Image.open(stream) as opened:
                stored, orientation = opened.size, opened.getexif().get(ORIENTATION, 1)
    size = stored[::-1] if orientation >= 5 else stored
    if expected not in (UNKNOWN, size):
        hint = '; the tool has not turned it as EXIF says' if size != stored == expected else ''
        raise FaultsError('{}×{}, but {} has {}×{}{}'.format(*expected, image, *size, hint))
    return size


def _common_end(path: tuple[str, ...], name: tuple[str, ...]) -> int:
    different = [i for i, (a, b) in enumerate(zip(path[::-1], name[::-1])) if a != b]
    return different[0] if different else min(len(path), len(name))
