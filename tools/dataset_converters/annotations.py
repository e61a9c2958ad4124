"""Convert labels of COCO, YOLO, Pascal VOC or labelme to label maps for mmseg or COCO files for mmdet, with a config.

    python tools/dataset_converters/annotations.py export.zip --task segmentation --out-dir data/streets
    python tools/train.py data/streets/config.py

EXPORT is a folder, a zip, or one file; the content says which format it has. Images are looked for in it, or below
``--images``. The output is::

    OUT/{img_dir,ann_dir}/{train,val,test}/…      segmentation: images, and label maps of the same names
    OUT/images/{train,val,test}/…, OUT/val.json   detection: images, and boxes with outlines in COCO's format
    OUT/config.py                                 for ``tools/train.py`` and ``tools/test.py``

Splits of the export are kept, also those of lists, ``train.txt`` and ``val.txt``. Without them, ``--val-fraction`` of
the images are for validation: whole groups of images whose names differ in their last number alone, such as frames of a
clip, so that no clip is on both sides.

In segmentation, pixels without a shape are ``background``, the label 0. Later shapes cover earlier ones. Every entry of
the export is counted as used, changed or left out, with the reason, such as a point, which has no area. The config
starts from weights of ImageNet. Images with other channels, and detectors, start from scratch.

Args:
    export: folder, archive or file that the tool has written
    images: folder of the images (default: the export)
    classes (NAME): order of the labels (default: as exported)
    crop (SIDE): for large images, in segmentation: train on crops of SIDE×SIDE at the size of the files
    val_fraction: share of images for validation
    seed: seed of the choice of ``--val-fraction``
"""

import colorsys
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from annotation_readers import MANY, Export, read
from annotation_readers.shapes import Picture, masks
from annotation_readers.splits import groups, split_named
from common.archives import unpack
from common.conversion import (
    OutDir,
    Overwrite,
    check_config_folder,
    check_config_names,
    convert_all,
    converter,
    output_folder,
    train_command,
)
from common.segmentation import (
    IGNORED,
    PARTS,
    WEIGHTS,
    Start,
    check_crop,
    choose_validation,
    copy_image,
    formats,
    open_upright,
    save_labels,
    write_config,
)
from mmattn.utils.channels import is_plain_picture, without_data
from mmattn.utils.command import run
from mmattn.utils.faults import FaultsError, shorten

WRITTEN = {'img_dir', 'ann_dir', 'images', 'train.json', 'val.json', 'test.json', 'config.py', WEIGHTS}
BACKGROUND = ('background', '_background_')  # the second is labelme's
NOT_IN_PNG = ('CMYK', 'YCbCr', 'LAB', 'HSV')  # modes of pictures
DETECTOR = """\
# Written by tools/dataset_converters/annotations.py; train with tools/train.py. The detector is small and starts from
# scratch, for a first try on a CPU. For a full training, use another config as _base_, such as
# 'mmattn::attended_residual/faster-rcnn_r50-attn0010_fpn_8xb2-1x_coco.py'.
_base_ = ['mmattn::attended_residual/faster-rcnn_r50-w16-attn0010_fpn_1xb8-150_bccd-320x240.py']
metainfo = dict(classes={classes!r}, palette={palette!r})
dataset = dict(
    type='CocoDataset', data_root='{{{{ fileDirname }}}}', metainfo=metainfo,
    data_prefix=dict(_delete_=True, img='images/'),
)
train_dataloader = dict(dataset=dict(dataset, ann_file='train.json'))
val_dataloader = dict(dataset=dict(dataset, ann_file='val.json'))
val_evaluator = dict(_delete_=True, type='CocoMetric', metric='bbox', ann_file='{{{{ fileDirname }}}}/val.json')
test_dataloader = dict(dataset=dict(dataset, ann_file='{test}.json'))
test_evaluator = dict(val_evaluator, ann_file='{{{{ fileDirname }}}}/{test}.json')
default_hooks = dict(checkpoint=dict(save_best='coco/bbox_mAP_50'))
model = dict(roi_head=dict(bbox_head=dict(num_classes={count})))
"""


def warn(text: str) -> None:
    print(f'warning: {text}', file=sys.stderr)


def report(export: Export, task: str) -> None:
    """Print how many entries are used, changed and left out, and why."""
    kinds = Counter({'used': 0, 'changed': 0, 'left out': 0})
    for (fate, _), number in export.fates.items():
        kinds[fate.partition(':')[0]] += number
    pictures = export.pictures.values()
    entries = sum(len(picture.entries) for picture in pictures)
    total = ', '.join(f'{number} {kind}' for kind, number in kinds.items())
    print(f'{export.format}: {len(pictures)} images, {entries} entries: {total}')
    for (fate, label), number in sorted(export.fates.items()):
        if fate != 'used':
            print(f'  {fate}: {number} of {label}')
    crowds = sum(shape.crowd for picture in pictures for shape in picture.shapes)
    if crowds and task == 'detection':
        print(f'{crowds} objects are marked as crowds, as CVAT marks masks, or as difficult: they do not train')
    if kinds['left out'] > MANY * entries:
        warn(f'{kinds["left out"]} of {entries} entries are left out')
    if lacking := export.unlabelled:
        warn(f'{len(lacking)} images have no annotations, and are left out: {lacking[0]} …')


def distinct_colours(number: int) -> list[list[int]]:
    """Return colours whose hues are far apart, a golden angle each, for any number of classes."""
    hues = [((0.11 + 0.618034 * i) % 1, 0.75, 0.9 - 0.3 * (i % 2)) for i in range(number)]
    return [[round(255 * x) for x in colorsys.hsv_to_rgb(*hue)] for hue in hues]


def divide(pictures: Mapping[Path, Picture], root: Path, fraction: float, seed: int) -> None:
    """Set the splits of pictures that lack one, by their names below ``root``, which are the same wherever it is."""
    splits = {picture.split for picture in pictures.values()}
    if {*PARTS} <= splits:
        return
    names = {
        path.relative_to(root): picture
        for path, picture in pictures.items()
        if picture.split != 'test' or 'train' not in splits
    }
    group_of = groups(names)
    classes: dict[Path, set[str]] = {}
    for name, picture in names.items():
        classes.setdefault(Path(group_of[name]), set()).update(shape.label for shape in picture.shapes)
    validation = choose_validation(classes, fraction, seed)
    for name, picture in names.items():
        picture.split = PARTS[Path(group_of[name]) in validation]
    if len(classes) < len(names):
        print(f'{len(names)} images are {len(classes)} groups by their names, which are not parted')


def set_targets(pictures: Mapping[Path, Picture], root: Path) -> None:
    """Name the output of each image: its split, and its path below ``root`` without folders of splits.

    All have one suffix, as mmseg reads one: images of several formats become PNG.
    """
    suffixes = formats(pictures)
    for path, picture in pictures.items():
        folders = path.relative_to(root).parts[:-1]
        folders = [part for part in folders if part != 'images' and not split_named(part)]
        suffix = min(suffixes) if len(suffixes) == 1 else '.png'
        picture.target = Path(picture.split, *folders, path.name).with_suffix(suffix)
    counts = Counter(picture.target for picture in pictures.values())
    if twice := [target for target, number in counts.items() if number > 1]:
        raise FaultsError(root, f'several images would be written as {", ".join(shorten(twice, 5))}')


def write_image(source: Path, target: Path) -> None:
    """Copy an image, or convert it if ``target`` is a PNG and the image is none."""
    if target.suffix != '.png' or source.suffix.lower() == '.png':
        copy_image(source, target)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        image = open_upright(source)
        (image.convert('RGB') if image.mode in NOT_IN_PNG else image).save(target)


def coco_content(pictures: Sequence[Picture], classes: Sequence[str]) -> dict:
    """Return pictures in COCO's format."""
    images, annotations = [], []
    for number, picture in enumerate(pictures, 1):
        width, height = picture.size
        images.append(dict(id=number, file_name=picture.target.as_posix(), width=width, height=height))
        for shape in picture.shapes:
            left, top, right, bottom = shape.bounds
            ids = dict(id=len(annotations) + 1, image_id=number, category_id=classes.index(shape.label) + 1)
            area, bbox = (right - left) * (bottom - top), [left, top, right - left, bottom - top]
            annotations.append(dict(ids, bbox=bbox, area=area, iscrowd=int(shape.crowd)))
            if not shape.is_box:
                runs = shape.encoded(picture.size)
                outline: Any = dict(runs, counts=runs['counts'].decode())
                if isinstance(shape.outline, list) and not shape.crowd:
                    outline = [np.round(polygon, 2).tolist() for polygon in shape.outline]
                annotations[-1].update(area=int(masks.area(runs)), segmentation=outline)
    categories = [dict(id=label, name=name) for label, name in enumerate(classes, 1)]
    return dict(images=images, annotations=annotations, categories=categories)


def paint(picture: Picture, classes: Sequence[str]) -> np.ndarray:
    """Paint the shapes of a picture one over the other on 0, as labels, uint8 of shape (height, width)."""
    labels = np.zeros(picture.size[::-1], np.uint8)
    for shape in picture.shapes:
        labels[masks.decode(shape.encoded(picture.size)).astype(bool)] = classes.index(shape.label)
    return labels


def write_segmentation(
    new: Path, pictures: dict[Path, Picture], classes: list[str], start: Start, crop: int | None
) -> dict[str, Counter]:
    """Write images, label maps and a config. Return the pixels of each class by split."""
    named = [name for name in classes if name.lower() in BACKGROUND][:1]
    classes = [*(named or ['background']), *(name for name in classes if name not in named)]
    palette = [[0, 0, 0], *distinct_colours(len(classes) - 1)]
    if len(classes) > IGNORED:
        raise FaultsError(f'{len(classes)} classes, but labels have 8 bits, and {IGNORED} is the void label')
    counts = {split: Counter() for split in sorted({picture.split for picture in pictures.values()})}

    def convert_picture(path: Path) -> None:
        picture = pictures[path]
        labels = paint(picture, classes)
        if (without := without_data(path)) is not None:
            labels[without] = IGNORED
        write_image(path, new / 'img_dir' / picture.target)
        save_labels(new / 'ann_dir' / picture.target.with_suffix('.png'), labels, palette)
        present, pixels = np.unique(labels[labels != IGNORED], return_counts=True)
        counts[picture.split].update(dict(zip([classes[label] for label in present], pixels.tolist())))

    convert_all([*pictures], convert_picture).check()
    training = [new / 'img_dir' / picture.target for picture in pictures.values() if picture.split == 'train']
    write_config(new, training[0].suffix, classes, palette, training, start, crop, 'test' in counts)
    return counts


def write_detection(new: Path, pictures: dict[Path, Picture], classes: list[str]) -> dict[str, Counter]:
    """Write images, a COCO file for each split, and a config. Return the boxes of each class by split."""
    if others := [path for path in pictures if not is_plain_picture(path)]:
        raise FaultsError({str(path): ['other channels than RGB are for --task segmentation'] for path in others})
    convert_all([*pictures], lambda path: write_image(path, new / 'images' / pictures[path].target)).check()
    counts = {}
    for split in sorted({picture.split for picture in pictures.values()}):
        content = coco_content([each for each in pictures.values() if each.split == split], classes)
        (new / f'{split}.json').write_text(json.dumps(content), encoding='utf-8')
        labels = [each['category_id'] - 1 for each in content['annotations'] if not each['iscrowd']]
        counts[split] = Counter(classes[label] for label in labels)
    palette = [tuple(colour) for colour in distinct_colours(len(classes))]
    test = 'test' if 'test' in counts else 'val'
    text = DETECTOR.format(classes=tuple(classes), palette=palette, test=test, count=len(classes))
    (new / 'config.py').write_text(text, encoding='utf-8')
    return counts


@converter
def main(
    export: Path,
    *,
    task: Literal['segmentation', 'detection'],
    out_dir: OutDir,
    images: Path | None = None,
    classes: list[str] = [],
    crop: int | None = None,
    start: Start,
    val_fraction: float = 0.2,
    seed: int = 0,
    overwrite: Overwrite = False,
) -> None:
    if not 0 < val_fraction < 1:
        raise FaultsError(f'--val-fraction must be above 0 and below 1; got {val_fraction}')
    check_config_folder(out_dir)
    check_crop(crop)
    if crop is not None and task != 'segmentation':
        raise FaultsError('--crop: only with --task segmentation')
    if start != Start() and task != 'segmentation':
        raise FaultsError('--pretrained and --from-scratch: only with --task segmentation')
    start.check()
    is_file = export.is_file() and export.suffix.lower() in ('.json', '.xml')
    with output_folder(out_dir, overwrite, [export, images or export], WRITTEN) as scratch:
        folder = export if is_file else unpack(export, scratch)
        labels = read(folder, images)
        report(labels, task)
        pictures, root = labels.pictures, images or (folder.parent if is_file else folder)
        if wrong := sorted({*(classes or labels.classes)} ^ {*labels.classes}):
            raise FaultsError(f'--classes: {", ".join(shorten(wrong))}; the labels are {", ".join(labels.classes)}')
        classes = classes or labels.classes
        sources = {shape.label: picture.source for picture in pictures.values() for shape in picture.shapes}
        check_config_names({name: sources.get(name, folder) for name in classes})
        boxes = Counter(shape.label for picture in pictures.values() for shape in picture.shapes if shape.is_box)
        if boxes and task == 'segmentation':
            text = f'{boxes.total()} shapes are boxes ({", ".join(shorten(boxes, 5))})'
            raise FaultsError(f'{text}, which are no outlines: use --task detection')
        divide(pictures, root, val_fraction, seed)
        set_targets(pictures, root)
        new = scratch / 'new'
        new.mkdir()
        if task == 'segmentation':
            counts = write_segmentation(new, pictures, classes, start, crop)
        else:
            counts = write_detection(new, pictures, classes)
    parts = Counter(picture.split for picture in pictures.values())
    for name in dict.fromkeys([*chain(*counts.values()), *classes]):
        print(f'{name:24}' + ', '.join(f'{split}: {counts[split][name]:,}' for split in counts))
        if not any(numbers[name] for numbers in counts.values()):
            warn(f'nothing is labelled {name}')
    print(f'{"images":24}' + ', '.join(f'{split}: {parts[split]:,}' for split in counts))
    print(train_command(out_dir / 'config.py'))


if __name__ == '__main__':
    run(main)
