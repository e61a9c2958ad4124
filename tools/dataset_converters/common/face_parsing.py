"""Functions that the converters of HELEN and LFW-PL share: split lists, argmax of soft labels, optional alignment."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from PIL import Image

from mmattn.utils.faults import Faults, FaultsError

from .conversion import convert_all
from .face_alignment import Alignment, mostly_inside, read_all_landmarks
from .segmentation import copy_image, read_together, save_labels, size_text

MARGIN = 'with --align: margin around the mean face on each side, as a share of its longer side; default: 0.5'
Margin = Annotated[float | None, MARGIN]


class Face(NamedTuple):
    """An image of a split, its line in the list, and the files of its labels."""

    split: str
    name: str
    listed: str
    image: Path
    labels: tuple[Path, ...]


def alignment_options(align: object, size: int | None, margin: float | None, default_size: int) -> tuple[int, float]:
    """Return the size and margin of aligned faces. Giving them without ``--align`` is a fault."""
    if align is None and (size, margin) != (None, None):
        raise FaultsError('--size and --margin are options of --align')
    return default_size if size is None else size, 0.5 if margin is None else margin


def read_lists(
    folder: Path,
    lists: Mapping[str, tuple[str, int]],
    parse: Callable[[str], str | None],
    allow_other_counts: bool,
    faults: Faults,
) -> list[tuple[str, str, str]]:
    """Read split, name and ``file:line`` of every image, and add to ``faults`` what is wrong.

    ``lists`` maps a split to its file and the number of images in the release.
    """
    images: dict[str, tuple[str, str, str]] = {}
    for split, (file, expected) in lists.items():
        try:
            lines = (folder / file).read_text(encoding='utf-8-sig').splitlines()
        except (OSError, UnicodeError) as error:
            faults.add(folder / file, f'cannot be read: {error}')
            continue
        before = len(images)
        for number, line in enumerate(lines, 1):
            name, location = parse(line.strip()), f'{folder / file}:{number}'
            if name is None:
                faults.add(location, *([f'invalid line: {line!r}'] if line.strip() else []))
            elif name in images:
                faults.add(location, f'{name} is also in {images[name][2]}')
            else:
                images[name] = split, name, location
        if (count := len(images) - before) != expected:
            text = f'lists {count} images, the release has {expected}'
            if allow_other_counts and count:
                print(f'warning: {folder / file}: {text}', file=sys.stderr)
            else:
                faults.add(folder / file, f'{text} (--allow-other-counts)' if count else text)
    return list(images.values())


def convert_faces(
    faces: Sequence[Face],
    faults: Faults,
    read_label: Callable[[Path], np.ndarray],
    palette: Sequence[Sequence[int]],
    out: Path,
    landmarks: Path | None,
    size: int,
    margin: float,
) -> None:
    """Write mmseg's layout to the new folder ``out``. All files of all faces are checked, even after a fault.

    Args:
        faces (sequence of Face): the images of the lists.
        faults (Faults): faults of the lists. Nothing is written if there are any.
        read_label (Callable): reads the soft labels of a file, uint8 of shape (H, W) or (H, W, C), or raises a
            FaultsError. The files of a face together have one channel per colour of the palette.
        palette (sequence): colours of the labels.
        out (Path): folder to create.
        landmarks (Path, optional): folder of landmarks, to align the faces.
        size (int): side of aligned faces, in pixels.
        margin (float): margin around the mean face on each side, as a share of its longer side.
    """
    align = None
    points: dict[str, np.ndarray] = {}
    if landmarks:
        points = read_all_landmarks(landmarks, [face.name for face in faces], faults)
        training = [face.name for face in faces if face.split == 'train']
        if not faults:
            align = Alignment(points, training, size, margin)

    def convert(face: Face) -> None:
        image, labels, wrong = read_together(face.image, face.labels, read_label)
        if image is None:
            by_path = wrong.by_path
            by_path[str(face.image)][0] += f', listed in {face.listed}'
            raise FaultsError(by_path)
        if face.name in points and not mostly_inside(points[face.name], image):
            wrong.add(
                face.image,
                f'most of its landmarks are outside its {size_text(image)} pixels; do they belong to another size?',
            )
        wrong.check()
        if faults:
            return
        key, soft = f'{face.split}/{face.name}', np.dstack(labels)
        target = out / 'img_dir' / f'{key}.jpg'
        if align:
            image, soft = align(face.name, key, image, soft)
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(target, quality=95, subsampling=0)
        else:
            copy_image(face.image, target)
        # In a tie, the first label wins; where all probabilities are 0, the background.
        save_labels(out / 'ann_dir' / f'{key}.png', soft.argmax(-1).astype(np.uint8), palette)

    faults.include(convert_all(faces, convert))
    faults.check()
    if align:
        (out / 'alignment.json').write_text(json.dumps(align.record()), encoding='utf-8')
