"""Convert what annotation tools export to label maps for mmseg, or to COCO files for mmdet, with a config.

    python tools/dataset_converters/annotations.py export.zip --task segmentation --out-dir data/streets
    python tools/train.py data/streets/config.py

EXPORT is a folder, a zip, or one file, as labelme, CVAT (COCO, "for images" or YOLO), Label Studio (JSON, COCO, YOLO),
Roboflow (COCO, Pascal VOC, YOLO) or another tool has written it in these formats; the content says which. Images are
looked for in it, or below ``--images``. The output is::

    OUT/{img_dir,ann_dir}/{train,val,test}/…      segmentation: images, and label maps of the same names
    OUT/images/{train,val,test}/…, OUT/val.json   detection: images, and boxes with outlines in COCO's format
    OUT/config.py                                 for ``tools/train.py`` and ``tools/test.py``

Splits of the export are kept. Without them, ``--val-fraction`` of the images are for validation: whole groups of images
whose names differ in their last number alone, such as frames of a clip, so that no clip is on both sides.

In segmentation, pixels without a shape are ``background``, the label 0. Later shapes cover earlier ones; CVAT's
``z_order`` counts. Shapes without an area, such as points, lines and boxes of no size, are left out, and counted.
"""

import argparse
import colorsys
import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path

import numpy as np

import mmattn.utils.command
from common.segmentation import (
    IGNORED,
    PARTS,
    check_crop,
    choose_validation,
    config_text,
    copy_image,
    cut_images,
    open_upright,
    save_labels,
)
from mmattn.annotations import Picture, read
from mmattn.annotations.layout import groups, parted_groups, split_named
from mmattn.utils.channels import is_plain_picture
from mmattn.utils.conversion import (
    check_config_folder,
    check_config_names,
    convert_all,
    output_folder,
    run_converter,
    unpack,
)
from mmattn.utils.faults import Faults, FaultsError, shorten

WRITTEN = {'img_dir', 'ann_dir', 'images', 'train.json', 'val.json', 'test.json', 'config.py'}
BACKGROUND = ('background', '_background_')  # the second is labelme's
NOT_IN_PNG = ('CMYK', 'YCbCr', 'LAB', 'HSV')  # modes of pictures
SAME_SUFFIX = {'.jpeg': '.jpg', '.tiff': '.tif'}
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
{test}default_hooks = dict(checkpoint=dict(save_best='coco/bbox_mAP_50'))
model = dict(roi_head=dict(bbox_head=dict(num_classes={count})))
"""
TEST = """\
test_dataloader = dict(dataset=dict(dataset, ann_file='test.json'))
test_evaluator = dict(val_evaluator, ann_file='{{ fileDirname }}/test.json')
"""
NO_TEST = """\
test_dataloader = val_dataloader
test_evaluator = val_evaluator
"""


def choose_classes(found: Sequence[str], chosen: Sequence[str], ignored: Collection[str]) -> list[str]:
    """Return the classes in the order of their labels, or raise a fault with the labels that are in no list."""
    if missing := [name for name in [*chosen, *ignored] if name not in found]:
        raise FaultsError(
            '--classes, --ignore', f'no shape is labelled {", ".join(missing)}; labels are {", ".join(found)}'
        )
    if chosen and (others := [name for name in found if name not in chosen and name not in ignored]):
        raise FaultsError(f'--classes: {", ".join(shorten(others))} are labels, too; add them here, or to --ignore')
    if {*found} <= {*ignored}:
        raise FaultsError('--ignore: no label is left to train on')
    return [name for name in chosen or found if name not in ignored]


def distinct_colours(number: int) -> list[list[int]]:
    """Return colours whose hues are far apart, for any number of classes."""
    turns = ((0.11 + 0.618034 * i) % 1 for i in count())  # the golden angle
    return [
        [round(255 * x) for x in colorsys.hsv_to_rgb(next(turns), 0.75, 0.9 - 0.3 * (i % 2))] for i in range(number)
    ]


def output_names(pictures: Iterable[Path], folder: Path) -> dict[Path, Path]:
    """Name the output of each image: its path below ``folder``, without folders of splits and suffix."""
    names = {}
    for path in pictures:
        relative = path.resolve().relative_to(folder.resolve()) if folder.resolve() in path.resolve().parents else path
        parts = [part for part in relative.parts[:-1] if part not in ('images', '/') and not split_named(part)]
        names[path] = Path(*parts, relative.name)
    return names


def one_suffix(paths: Collection[Path]) -> str:
    """Return the suffix that all images get: mmseg reads one. Images of several formats are converted to PNG."""
    found = Counter(SAME_SUFFIX.get(path.suffix.lower(), path.suffix.lower()) for path in paths)
    if len(found) == 1:
        return next(iter(found))
    print(f'images are written as .png, because they have several formats: {dict(found)}')
    return '.png'


def write_image(source: Path, target: Path) -> None:
    """Copy an image, or convert it if ``target`` has another suffix."""
    if SAME_SUFFIX.get(source.suffix.lower(), source.suffix.lower()) == target.suffix:
        copy_image(source, target)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        image = open_upright(source)
        (image.convert('RGB') if image.mode in NOT_IN_PNG else image).save(target)


def paint(
    picture: Picture, classes: Sequence[str], ignored: Collection[str], empty: int, fill_boxes: bool
) -> np.ndarray:
    """Paint the shapes of a picture one over the other, as labels, uint8 of shape (height, width)."""
    labels = np.full(picture.size[::-1], empty, np.uint8)
    for shape in picture.shapes:
        if shape.has_area or fill_boxes:
            labels[shape.mask(picture.size)] = IGNORED if shape.label in ignored else classes.index(shape.label)
    return labels


def coco_content(pictures: Mapping[str, Picture], classes: Sequence[str], ignored: Collection[str]) -> dict:
    """Return pictures by file name in COCO's format. Shapes of ignored labels count as crowds of every class."""
    images, annotations = [], []
    for number, (name, picture) in enumerate(pictures.items(), 1):
        width, height = picture.size
        images.append(dict(id=number, file_name=name, width=width, height=height))
        for shape in picture.shapes:
            left, top, right, bottom = shape.bounds(picture.size)
            common = dict(image_id=number, bbox=[left, top, right - left, bottom - top])
            outline = {}
            if shape.has_area:
                runs = shape.encoded(picture.size)
                text = runs['counts'].decode() if isinstance(runs['counts'], bytes) else runs['counts']
                common['area'] = int(shape.mask(picture.size).sum())
                outline = dict(size=list(runs['size']), counts=text)
                if shape.polygons and not shape.crowd:
                    outline = [polygon.reshape(-1).round(2).tolist() for polygon in shape.polygons]
            else:
                common['area'] = (right - left) * (bottom - top)
            crowd = shape.crowd or shape.label in ignored
            if outline and not (crowd and isinstance(outline, list)):
                common['segmentation'] = outline
            for label in range(len(classes)) if shape.label in ignored else [classes.index(shape.label)]:
                annotations.append(dict(common, id=len(annotations) + 1, category_id=label + 1, iscrowd=int(crowd)))
    categories = [dict(id=label, name=name) for label, name in enumerate(classes, 1)]
    return dict(images=images, annotations=annotations, categories=categories)


def divide(pictures: Mapping[Path, Picture], root: Path, args: argparse.Namespace) -> None:
    """Set the splits of pictures that lack one, so that some are for training and some for validation.

    The choice is by names below the folder ``root``, so that it is the same wherever the export is, or is unpacked.
    """
    splits = {picture.split for picture in pictures.values()}
    if {*PARTS} <= splits:
        if not args.ungrouped and (parted := parted_groups(pictures)):
            print(
                f'warning: the export has copies of an image, or frames of a clip, in several splits, so that results '
                f'are too good: {", ".join(shorten([Path(group).name for group in parted], 5))}',
                file=sys.stderr,
            )
        return
    undecided = [path for path, picture in pictures.items() if picture.split != 'test' or 'train' not in splits]
    names = [Path(os.path.relpath(path, root)) for path in undecided]
    group_of = {name: str(name) for name in names} if args.ungrouped else groups(names)
    classes = {}
    for path, name in zip(undecided, names):
        labels = {shape.label for shape in pictures[path].shapes}
        classes.setdefault(Path(group_of[name]), set()).update(labels)
    validation = choose_validation(classes, args.val_fraction, args.seed)
    for path, name in zip(undecided, names):
        pictures[path].split = PARTS[Path(group_of[name]) in validation]
    if len(classes) < len(undecided):
        print(f'{len(undecided)} images are {len(classes)} groups by their names, which are not parted (--ungrouped)')


def convert(args: argparse.Namespace) -> None:
    if not 0 < args.val_fraction < 1:
        raise FaultsError(f'--val-fraction must be above 0 and below 1; got {args.val_fraction}')
    check_config_folder(args.out_dir)
    check_crop(args.crop)
    if args.crop is not None and args.task != 'segmentation':
        raise FaultsError('--crop: only with --task segmentation')
    sources = [args.export, *([args.images] if args.images else [])]
    with output_folder(args.out_dir, args.overwrite, sources, WRITTEN) as scratch:
        is_file = args.export.suffix.lower() in ('.json', '.xml')
        folder = args.export if is_file else unpack(args.export, scratch)
        if is_file and not folder.is_file():
            raise FaultsError(folder, 'no such file')
        export = read(folder, args.images)
        if export.unlabelled:
            first = export.unlabelled[0]
            print(
                f'warning: {len(export.unlabelled)} images have no annotations, and are left out: {first} …',
                file=sys.stderr,
            )
        pictures = export.pictures
        print(f'{export.format}: {len(pictures)} images with {sum(len(p.shapes) for p in pictures.values())} shapes')
        crowds = sum(shape.crowd for picture in pictures.values() for shape in picture.shapes)
        if crowds and args.task == 'detection':
            of_cvat = '; CVAT marks masks so: export "CVAT for images" instead' if export.format == 'COCO' else ''
            print(f'{crowds} shapes are marked as crowds, or as difficult, which do not train{of_cvat}')
        classes = choose_classes(export.classes, args.classes, args.ignore)
        sources = {shape.label: picture.source for picture in pictures.values() for shape in picture.shapes}
        check_config_names({name: sources.get(name, folder) for name in classes})
        root = args.images or (folder if folder.is_dir() else folder.parent)
        divide(pictures, root, args)
        names, suffix = output_names(pictures, root), one_suffix(pictures)
        targets = {path: Path(pictures[path].split, names[path].with_suffix(suffix)) for path in pictures}
        if twice := [str(target) for target, number in Counter(targets.values()).items() if number > 1]:
            raise FaultsError(args.export, f'several images would be written as {", ".join(shorten(twice, 5))}')
        write = write_segmentation if args.task == 'segmentation' else write_detection
        new = scratch / 'new'
        new.mkdir()
        classes, counts, text = write(new, targets, pictures, classes, args)
        (new / 'config.py').write_text(text, encoding='utf-8')
    report(args.out_dir, pictures, classes, counts)


def write_segmentation(
    new: Path,
    targets: Mapping[Path, Path],
    pictures: Mapping[Path, Picture],
    classes: list[str],
    args: argparse.Namespace,
) -> tuple[list[str], dict[str, Counter], str]:
    """Write images and label maps. Return the classes, the pixels of each by split, and the config."""
    boxes = Counter(shape.label for each in pictures.values() for shape in each.shapes if not shape.has_area)
    if boxes and not args.fill_boxes:
        raise FaultsError(
            f'{sum(boxes.values())} shapes are boxes, not outlines ({", ".join(shorten(boxes, 5))}): use --task '
            'detection, or, if objects fill their boxes, --fill-boxes'
        )
    named = [name for name in classes if name.lower() in BACKGROUND]
    if args.no_background and named:
        raise FaultsError(f'--no-background: {named[0]} is a label')
    if not args.no_background:
        classes = [*(named[:1] or ['background']), *(name for name in classes if name not in named[:1])]
    if len(classes) > IGNORED:
        raise FaultsError(f'{len(classes)} classes, but labels have 8 bits, and {IGNORED} is the void label')
    palette = (
        [[0, 0, 0], *distinct_colours(len(classes) - 1)] if not args.no_background else distinct_colours(len(classes))
    )
    counts = {split: Counter() for split in sorted({target.parts[0] for target in targets.values()})}

    def convert_picture(path: Path) -> None:
        picture, target = pictures[path], targets[path]
        labels = paint(picture, classes, args.ignore, IGNORED if args.no_background else 0, args.fill_boxes)
        write_image(path, new / 'img_dir' / target)
        save_labels(new / 'ann_dir' / target.with_suffix('.png'), labels, palette)
        present, pixels = np.unique(labels, return_counts=True)
        counts[target.parts[0]].update(
            {classes[label]: number for label, number in zip(present.tolist(), pixels.tolist()) if label != IGNORED}
        )

    convert_all([*targets], convert_picture).check()
    suffix = next(iter(targets.values())).suffix
    training = [new / 'img_dir' / target for target in targets.values() if target.parts[0] == 'train']
    text = config_text(suffix, classes, palette, training, args.crop, 'test' in counts)
    if args.crop is not None:
        cut_images(new, args.crop)
    return classes, counts, text


def write_detection(
    new: Path,
    targets: Mapping[Path, Path],
    pictures: Mapping[Path, Picture],
    classes: list[str],
    args: argparse.Namespace,
) -> tuple[list[str], dict[str, Counter], str]:
    """Write images and a COCO file for each split. Return the classes, the boxes of each by split, and the config."""
    faults = Faults()
    for path in targets:
        if not is_plain_picture(path):
            faults.add(path, 'other channels than RGB are for --task segmentation')
    faults.check()
    convert_all([*targets], lambda path: write_image(path, new / 'images' / targets[path])).check()
    counts = {}
    for split in sorted({target.parts[0] for target in targets.values()}):
        of_split = {target.as_posix(): pictures[path] for path, target in targets.items() if target.parts[0] == split}
        content = coco_content(of_split, classes, args.ignore)
        (new / f'{split}.json').write_text(json.dumps(content), encoding='utf-8')
        counts[split] = Counter(
            classes[each['category_id'] - 1] for each in content['annotations'] if not each['iscrowd']
        )
    text = DETECTOR.format(
        classes=tuple(classes),
        palette=[tuple(colour) for colour in distinct_colours(len(classes))],
        test=TEST if 'test' in counts else NO_TEST,
        count=len(classes),
    )
    return classes, counts, text


def report(out: Path, pictures: Mapping[Path, Picture], classes: Sequence[str], counts: Mapping[str, Counter]) -> None:
    """Print what went in and out, by class, and the next command."""
    shapes = Counter(shape.label for picture in pictures.values() for shape in picture.shapes)
    skipped = Counter(label for picture in pictures.values() for label in picture.skipped)
    images = Counter(picture.split for picture in pictures.values())
    print(f'{"class":24}{"shapes":>10}' + ''.join(f'{split:>14}' for split in counts))
    for name in [*classes, *(label for label in shapes if label not in classes)]:
        print(f'{name:24}{shapes[name]:>10}' + ''.join(f'{of_split[name]:>14,}' for of_split in counts.values()))
    print(f'{"images":24}{"":10}' + ''.join(f'{images[split]:>14,}' for split in counts))
    if skipped:
        print(f'left out, without an area: {", ".join(f"{number} of {name}" for name, number in skipped.items())}')
    for name in classes:
        if not any(of_split[name] for of_split in counts.values()):
            print(f'warning: nothing is labelled {name}', file=sys.stderr)
    print(shlex.join(['python', 'tools/train.py', str(out / 'config.py')]))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description='Convert an export of an annotation tool for mmseg or mmdet.')
    parser.add_argument('export', type=Path, help='folder, archive or file that the tool has written')
    parser.add_argument('--task', choices=['segmentation', 'detection'], required=True)
    parser.add_argument('--out-dir', type=Path, required=True)
    parser.add_argument('--images', type=Path, help='folder of the images (default: the export)')
    parser.add_argument(
        '--classes', nargs='+', default=[], metavar='NAME', help='order of the labels (default: as exported)'
    )
    parser.add_argument('--ignore', nargs='+', default=[], metavar='NAME', help='labels that training ignores')
    parser.add_argument('--no-background', action='store_true', help='ignore pixels without a shape, in segmentation')
    parser.add_argument(
        '--crop',
        type=int,
        metavar='SIDE',
        help='for large images, in segmentation: train on crops of SIDE×SIDE at the size of the files',
    )
    parser.add_argument('--fill-boxes', action='store_true', help='paint boxes as rectangles, in segmentation')
    parser.add_argument('--val-fraction', type=float, default=0.2, help='share of images for validation (%(default)s)')
    parser.add_argument('--ungrouped', action='store_true', help='do not keep images of similar names together')
    parser.add_argument('--seed', type=int, default=0, help='seed of the choice of --val-fraction (%(default)s)')
    return run_converter(convert, parser, argv)


if __name__ == '__main__':
    mmattn.utils.command.run(main)
