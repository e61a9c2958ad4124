"""Where an export keeps its images, which split they belong to, and which of them belong together."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath

from PIL import Image
from PIL.TiffImagePlugin import IMAGELENGTH, IMAGEWIDTH

from mmattn.utils.conversion import check_folder, files_below
from mmattn.utils.faults import Faults, FaultsError, reading
from mmattn.utils.image_files import SUFFIXES
from mmattn.utils.images import ORIENTATION, tiff_tags, unreadable

from .shapes import Picture, Size

SPLITS = {
    **dict.fromkeys(('train', 'training', 'trainset', 'trainval'), 'train'),
    **dict.fromkeys(('val', 'valid', 'validation', 'valset', 'dev'), 'val'),
    **dict.fromkeys(('test', 'testing', 'testset'), 'test'),
}
WITH_SUFFIX = {*SUFFIXES, '.xml', '.json', '.txt'}  # files of a list; other names may have dots
TURNED = (5, 6, 7, 8)  # EXIF orientations that swap width and height


class Images:
    """The images below a folder, found by the paths that tools write."""

    def __init__(self, folder: Path) -> None:
        check_folder(folder)
        self.folder = folder
        self.paths = [path for path in files_below(folder) if path.suffix.lower() in SUFFIXES]
        self.by_name, self.by_stem = defaultdict(list), defaultdict(list)
        for path in self.paths:
            self.by_name[path.name].append(path)
            self.by_stem[path.stem].append(path)

    def find(self, picture: Picture) -> Path:
        """Return the image of a picture: beside its annotations, or the one whose path ends most like its name."""
        try:
            return self._find(picture, picture.name)
        except FaultsError:
            if not picture.other_name:
                raise
        return self._find(picture, picture.other_name)

    def _find(self, picture: Picture, text: str) -> Path:
        name = PurePosixPath(os.path.normpath(text))
        beside = Path(picture.source).parent / name
        paths = self.by_name[name.name] or self.by_stem[name.name] or self.by_stem[name.stem]
        if beside.is_file():
            if not name.is_absolute() and '..' not in name.parts:
                return beside
            if same := [path for path in paths if path.samefile(beside)]:
                return same[0]
            raise FaultsError(picture.source, f'the image {text} is outside of {self.folder} (--images)')
        if not paths:
            raise FaultsError(picture.source, f'no image {text} below {self.folder} (--images)')
        shared = [_common_end(path.parent.parts, name.parent.parts) for path in paths]
        best = [path for path, count in zip(paths, shared) if count == max(shared)]
        if len(best) > 1:
            raise FaultsError(picture.source, f'{text} may be {best[0]} or {best[1]}; give --images')
        return best[0]

    def beside(self, labels: Path) -> Path | None:
        """Return the image of a YOLO file: in the same folder, or in ``images`` where the file is in ``labels``."""
        folders = [labels.parent]
        for number, part in enumerate(labels.parts):
            if part == 'labels':
                folders.append(Path(*labels.parts[:number], 'images', *labels.parts[number + 1 : -1]))
        paths = self.by_stem[labels.stem]
        for folder in folders:
            if same := [path for path in paths if path.parent == folder]:
                return same[0]
        return paths[0] if len(paths) == 1 and self.folder not in labels.parents else None

    def size(self, image: Path) -> Size:
        """Return width and height of the upright image, as EXIF orients it."""
        stored, orientation = _header(image)
        return stored[::-1] if orientation in TURNED else stored

    def assign(self, pictures: Iterable[Picture], faults: Faults) -> dict[Path, Picture]:
        """Find the image of each picture, and set its size. Add to ``faults`` what is missing or does not fit.

        Shapes without an area in the image, such as a box of a mere click, are moved to ``skipped``.
        """
        found: dict[Path, Picture] = {}
        for picture in pictures:
            try:
                image = self.find(picture)
                size = self.size(image)
            except FaultsError as error:
                faults.include(error)
                continue
            if image in found:
                faults.add(picture.source, f'{image} also has annotations in {found[image].source}')
            elif picture.size not in (None, size):
                faults.add(picture.source, _size_fault(picture, image, size))
            picture.size = size
            try:
                for shape in picture.shapes:
                    shape.check(size)
                picture.skipped += [shape.label for shape in picture.shapes if shape.is_empty(size)]
                picture.shapes = [shape for shape in picture.shapes if not shape.is_empty(size)]
            except (TypeError, ValueError) as error:
                faults.add(picture.source, f'{picture.name}: {error}')
            found.setdefault(image, picture)
        return found

    def others(self, found: Iterable[Path]) -> list[Path]:
        """Return the images that are not in ``found``."""
        known = {path.resolve() for path in found}
        return [path for path in self.paths if path.resolve() not in known]


def _header(image: Path) -> tuple[Size, int]:
    with reading(image, describe=unreadable), open(image, 'rb') as stream:
        tags = tiff_tags(stream)  # PIL opens few kinds of bands
        if tags is not None:
            return (tags[IMAGEWIDTH], tags[IMAGELENGTH]), tags.get(ORIENTATION, 1)
        stream.seek(0)
        with Image.open(stream) as opened:
            return opened.size, opened.getexif().get(ORIENTATION, 1)


def _size_fault(picture: Picture, image: Path, size: Size) -> str:
    seen = picture.size or size
    reason = ''
    if size == seen[::-1] and _header(image)[1] in TURNED:
        reason = '; the tool has not turned it as EXIF says, and shapes would be at other places'
    return f'{seen[0]}×{seen[1]} in the annotations, but {image} has {size[0]}×{size[1]}{reason}'


def _common_end(path: Sequence[str], name: Sequence[str]) -> int:
    count = 0
    while count < min(len(path), len(name)) and path[-1 - count] == name[-1 - count]:
        count += 1
    return count


def split_named(text: str) -> str:
    """Return the split that a folder or a file is named after, such as ``valid`` or ``instances_val2017.json``.

    Example:
        >>> split_named('valid'), split_named('instances_val2017.json'), split_named('trains'), split_named('default')
        ('val', 'val', '', '')
    """
    words = re.split(r'[^a-z]+', text.lower())
    named = {SPLITS[word] for word in words if word in SPLITS}
    return named.pop() if len(named) == 1 else ''


def splits_of_lists(files: Iterable[Path], images: Images, faults: Faults) -> dict[str, str]:
    """Read lists of images, one per line: Pascal VOC's ``ImageSets/Main/val.txt``, and ``val.txt`` of CVAT's YOLO.

    Their paths begin in other folders than the images, so that the keys are all ends of the paths, without suffix. An
    end that two splits have says nothing, but ``trainval`` is for what no other list has. A file that is no text is
    added to ``faults``. YOLO's labels of an image ``val.jpg`` are no list.
    """
    splits: dict[str, str] = {}
    names = {path: path.stem.lower() for path in files if path.suffix == '.txt' and path.stem.lower() in SPLITS}
    for path in sorted(names, key=lambda path: names[path] == 'trainval'):
        if images.beside(path) is not None:
            continue
        lines: list[str] = []
        with faults.catch(path), reading(path, 'not a list of images'):
            lines = path.read_text(encoding='utf-8-sig').splitlines()
        split = SPLITS[names[path]]
        for line in lines:
            for end in ends(PurePosixPath(line.strip().replace('\\', '/'))):
                if names[path] == 'trainval':
                    splits.setdefault(end, split)
                else:
                    splits[end] = split if splits.get(end, split) == split else ''
    return splits


def ends(path: PurePath) -> Iterator[str]:
    """Yield the ends of the path of an image, or of its annotations, without suffix, the longest first.

    Example:
        >>> [*ends(PurePosixPath('a/b/c.png'))], [*ends(PurePosixPath('site.0001'))]
        (['a/b/c', 'b/c', 'c'], ['site.0001'])
    """
    parts = (path.with_suffix('') if path.suffix.lower() in WITH_SUFFIX else path).parts
    yield from ('/'.join(parts[first:]) for first in range(len(parts)))


def source_name(image: Path) -> str:
    """Return the name of an image without suffix, and without what Roboflow adds to each copy.

    Example:
        >>> source_name(Path('IMG_7_JPG.rf.Ab-3x_9.jpg')), source_name(Path('a.jpg'))
        ('IMG_7', 'a')
    """
    return re.sub(r'(_[a-z]+)?\.rf\.[\w-]+$', '', image.stem, flags=re.IGNORECASE)


def parted_groups(pictures: Mapping[Path, Picture]) -> list[str]:
    """Return the sources whose copies, or the clips whose frames, are in several splits.

    Folders that are named after splits do not count. Nor do images of one name, unless Roboflow made it: each split may
    be numbered from 1.
    """
    names = {}
    for path in pictures:
        parents = [part for part in path.parts[:-1] if not split_named(part)]
        names[path] = Path(*parents, path.name)
    group_of, splits = groups([*names.values()]), defaultdict[str, dict](dict)
    for path, name in names.items():
        of_tool = source_name(path) != path.stem
        splits[group_of[name]].setdefault(path if of_tool else path.name, pictures[path].split)
    return sorted(group for group, present in splits.items() if len({*present.values()}) > 1)


def groups(names: Iterable[Path]) -> dict[Path, str]:
    """Give each image the name of its group: its folder and its name without Roboflow's suffix and the last number.

    Frames of a clip share it, and copies that Roboflow has altered. Where this gives fewer than four groups, or one
    with more than half of the images, the numbers only count images: each is a group of its own, with its copies.

    Example:
        >>> groups([Path(f'{clip}_{i}.png') for clip in 'abcd' for i in range(2)])[Path('c_1.png')]
        'c'
        >>> groups([Path('IMG_0001.jpg'), Path('IMG_0002.jpg')])[Path('IMG_0002.jpg')]
        'IMG_0002'
    """
    sources = {name: str(name.parent / source_name(name)) for name in names}
    stems = {name: re.sub(r'[ _.\-(]*\d+\)?$', '', source) for name, source in sources.items()}
    counts = Counter(stems.values())
    together = len(counts) >= 4 and max(counts.values()) <= len(sources) / 2
    return stems if together else sources
