"""The split of each image: as lists of images, or else the names of folders and files, say; and groups of images."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath, PurePosixPath

from mmattn.utils.faults import FaultsError, reading
from mmattn.utils.image_files import SUFFIXES

from .images import Images
from .shapes import Picture

SPLITS = {
    **dict.fromkeys(('train', 'training', 'trainset', 'trainval'), 'train'),
    **dict.fromkeys(('val', 'valid', 'validation', 'valset', 'dev'), 'val'),
    **dict.fromkeys(('test', 'testing', 'testset'), 'test'),
}


def split_named(text: str) -> str:
    """Return the split that a folder or a file is named after, such as ``valid`` or ``instances_val2017.json``."""
    named = {SPLITS[word] for word in re.split(r'[^a-z]+', text.lower()) if word in SPLITS}
    return named.pop() if len(named) == 1 else ''


def set_splits(pictures: Mapping[Path, Picture], files: Iterable[Path], folder: Path, images: Images) -> None:
    """Set the splits of pictures. A single split is none. Names of images say nothing: ``train_1`` may show a train."""
    listed = _listed(files, images)
    for image, picture in pictures.items():
        by_list = [listed[end] for end in _ends(image) if listed.get(end)]
        names = [picture.source.stem] * (picture.source.stem != image.stem)
        for path, above in ((image, images.folder), (picture.source, folder)):
            names = [*(path.parent.relative_to(above).parts if above in path.parents else ()), *names]
        picture.split = next(filter(None, [*by_list, *map(split_named, names)]), '')
    counts = Counter(picture.split for picture in pictures.values())
    if {*counts} == {''} and listed and not any(end in listed for image in pictures for end in _ends(image)):
        raise FaultsError(
            folder, f'train.txt, val.txt, … list none of the images, but {next(iter(listed))!r}; remove them?'
        )
    if '' in counts and len(counts) > 1:
        first = next(image for image, picture in pictures.items() if not picture.split)
        raise FaultsError(folder, f'{counts[""]} of {len(pictures)} images are in no split, such as {first}')
    for picture in pictures.values():
        picture.split *= len(counts) > 1


def _listed(files: Iterable[Path], images: Images) -> dict[str, str]:
    """Read lists of images, one per line: each end of a path → its split, or '' if several lists have it."""
    splits: dict[str, str] = {}
    lists = [path for path in files if path.suffix == '.txt' and path.stem.lower() in SPLITS]
    for path in sorted(lists, key=lambda path: path.stem.lower() == 'trainval'):
        split = SPLITS[path.stem.lower()]
        with reading(path, 'not a list of images', lambda _: 'no text in UTF-8'):
            lines = [] if images.of_labels(path) else path.read_text(encoding='utf-8-sig').splitlines()
        for end in [end for line in lines for end in _ends(PurePosixPath(line.strip().replace('\\', '/')))]:
            if splits.setdefault(end, split) != split and path.stem.lower() != 'trainval':  # has what no other list has
                splits[end] = ''
    return splits


def _ends(path: PurePath) -> list[str]:
    """List the ends of a path without suffix, the longest first."""
    parts = (path.with_suffix('') if path.suffix.lower() in {*SUFFIXES, '.xml', '.json', '.txt'} else path).parts
    return ['/'.join(parts[first:]) for first in range(len(parts))]


def groups(names: Iterable[Path]) -> dict[Path, str]:
    """Give each image the name of its group: its folder and its name without Roboflow's suffix and the last number.

    Frames of a clip share it, and copies that Roboflow has altered. Where this gives fewer than four groups, or one
    with more than half of the images, the numbers only count images: each is a group of its own, with its copies.
    """
    roboflow = re.compile(r'(_[a-z]+)?\.rf\.[\w-]+$', re.IGNORECASE)  # what it adds to the name of each copy
    sources = {name: str(name.parent / roboflow.sub('', name.stem)) for name in names}
    stems = {name: re.sub(r'[ _.\-(]*\d+\)?$', '', source) for name, source in sources.items()}
    counts = Counter(stems.values())
    return stems if len(counts) >= 4 and max(counts.values()) <= len(sources) / 2 else sources
