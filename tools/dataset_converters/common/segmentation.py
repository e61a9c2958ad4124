"""Functions that the converters of images and masks share: reading, mmseg's layout, training and validation split."""

import hashlib
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from mmattn.utils.channels import is_plain_picture, read_channels
from mmattn.utils.faults import Faults, FaultsError, shorten
from mmattn.utils.files import find_copies
from mmattn.utils.images import decoding, tile_positions, unreadable
from mmattn.utils.progress import track

from .channel_statistics import measure_channels
from .conversion import check_folder, convert_all, files_below, output_folder

WEIGHTS = 'backbone.pth'
WRITTEN = {'img_dir', 'ann_dir', 'alignment.json', 'config.py', WEIGHTS}
PARTS = ('train', 'val')
IGNORED = 255
FEW = 100  # training images, fewer of which do not train a backbone
CONFIG = """\
# Written by a tool in tools/dataset_converters; train with tools/train.py. The model is small and starts from
# {start}, for a first try on a CPU. For a full training, use another config as _base_, such as
# 'mmattn::bi_cc/bi-cc_r50-d8_1xb8-4k_camvid-360x360.py'.
_base_ = ['mmattn::bi_cc/bi-cc_r18-d8-half_1xb8-160_camvid-180x180.py']
metainfo = dict(classes={classes!r}, palette={palette!r})
dataset = dict(data_root='{{{{ fileDirname }}}}', metainfo=metainfo, img_suffix={suffix!r})
train_dataloader = dict(dataset={train})
val_dataloader = dict(dataset=dataset)
test_dataloader = {test}
model = dict(decode_head=dict(num_classes={count}), auxiliary_head=dict(num_classes={count}))
"""
DOWNLOADED = """\
# The first training downloads the weights. Without internet, let the tool write the config again, with
# --pretrained FILE, a copy of the weights, or with --from-scratch, without weights.
"""
PRETRAINED = """\
model['backbone'] = dict(
    _delete_=True,
    type='mmseg.MobileNetV2',
    init_cfg=dict(
        type='Pretrained',
        checkpoint={checkpoint!r},
        prefix='backbone.',
    ),
)
# The head gets maps of strides 8, 16 and 32.
model['decode_head'].update(in_channels=[32, 96, 320], in_index=[1, 2, 3], input_transform='resize_concat')
model['auxiliary_head'] = None
"""
PUBLIC = (
    'https://download.openmmlab.com/mmclassification/v0/mobilenet_v2/'
    'mobilenet_v2_batch256_imagenet_20200708-3b2dc3af.pth'
)
SAVED = f'{{{{ fileDirname }}}}/{WEIGHTS}'
FROZEN = """\
# So few images do not train the backbone. To train it all the same, remove these lines.
model['backbone'].update(frozen_stages=6, norm_eval=True)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'backbone.layer7': dict(lr_mult=0)}))  # mmseg freezes six stages
"""
PIPELINES = """\
train_pipeline, test_pipeline, tta_pipeline = _base_.train_pipeline, _base_.test_pipeline, _base_.tta_pipeline
train_dataloader['dataset'].update(pipeline=train_pipeline)
dataset.update(pipeline=test_pipeline)
test_dataloader['dataset'].update(pipeline=test_pipeline)
"""
TEST = "dict(dataset=dict(dataset, data_prefix=dict(img_path='img_dir/test', seg_map_path='ann_dir/test')))"
CHANNELS = """\
# Images with all their channels and values; mean and deviation are of the training images.
load = dict(type='mmattn.LoadChannels', channels={channels})
train_pipeline[1] = test_pipeline[0] = tta_pipeline[0] = load
model.update(
    data_preprocessor=dict(type='mmattn.ChannelsPreprocessor', mean={mean}, std={std}, bgr_to_rgb=False),
    backbone=dict(in_channels={channels}),
)
default_hooks = dict(first_layer=dict(type='mmattn.FirstLayerHook'))  # for pretrained weights of RGB
"""
CROPS = """\
# Crops at the size of the files. Validation, test and image_demo.py slide a window of the same size.
del train_pipeline[3], test_pipeline[1]  # they resize images
train_pipeline[3].crop_size = ({crop}, {crop})
model.setdefault('data_preprocessor', dict()).update(size=({crop}, {crop}))
windows = dict(mode='slide', crop_size=({crop}, {crop}), stride=({stride}, {stride}))
model.update(type='mmattn.TiledEncoderDecoder', test_cfg=windows)
"""


@dataclass(kw_only=True)
class Start:
    """Where the network of a written config starts: the options of a converter."""

    pretrained: Annotated[
        Path | None, dict(metavar='FILE', help='weights of MobileNetV2 for the config, in place of a download')
    ] = None
    from_scratch: Annotated[bool, 'write a config without pretrained weights, of a smaller network'] = False

    def check(self) -> None:
        """Raise a fault if both options are given, or if the file has no weights of MobileNetV2."""
        if self.pretrained is not None:
            if self.from_scratch:
                raise FaultsError('--pretrained and --from-scratch: only one of them')
            read_weights(self.pretrained)

    def write(self, folder: Path) -> str | None:
        """Write the weights of the file into ``folder``, and return the checkpoint that the config names, or None."""
        if self.pretrained is None:
            return None if self.from_scratch else PUBLIC
        import torch

        weights = {f'backbone.{name}': value for name, value in read_weights(self.pretrained).items()}
        torch.save(dict(state_dict=weights), folder / WEIGHTS)
        return SAVED


@contextmanager
def label_folder(out: Path, overwrite: bool, sources: Iterable[Path]) -> Iterator[Path]:
    """Open an :func:`~common.conversion.output_folder` for images and masks, and print how many it contains."""
    with output_folder(out, overwrite, sources, WRITTEN) as scratch:
        yield scratch
    images = (out / 'img_dir').rglob('*')
    print(f'{out.resolve()}: {sum(path.is_file() for path in images)} images')


def find_pairs(
    images: Path, masks: Path, suffixes: Collection[str], faults: Faults
) -> tuple[dict[Path, Path], dict[Path, Path]]:
    """Find the images and the masks, and add to ``faults`` those without a partner of the same name.

    The keys are paths relative to the folder, without suffix.
    """
    by_name = [_images_below(path, suffixes, faults) for path in (images, masks)]
    if copies := [f'{copy} of {first.name}' for first, *others in find_copies(by_name[0].values()) for copy in others]:
        print(f'warning: {len(copies)} images are copies: {", ".join(shorten(copies, 10))}', file=sys.stderr)
    for ours, other, kind in ((by_name[0], by_name[1], 'mask'), (by_name[1], by_name[0], 'image')):
        for name in [name for name in ours if name not in other]:
            faults.add(ours[name], f'no {kind} of this name')
    return by_name[0], by_name[1]


def formats(paths: Iterable[Path]) -> set[str]:
    """The suffixes of images, .JPG and .jpeg as .jpg."""
    return {path.suffix.lower().replace('jpeg', 'jpg').replace('tiff', 'tif') for path in paths}


def _images_below(folder: Path, suffixes: Collection[str], faults: Faults) -> dict[Path, Path]:
    check_folder(folder)
    images: dict[Path, Path] = {}
    paths = files_below(folder)
    skipped = [path for path in paths if path.suffix.lower() not in suffixes]
    if skipped:
        print(f'warning: {folder}: {len(skipped)} files are skipped, not images: {skipped[0]} …', file=sys.stderr)
    for path in (path for path in paths if path.suffix.lower() in suffixes):
        name = path.relative_to(folder).with_suffix('')
        if name in images:
            faults.add(path, f'{images[name].name} has the same name')
        images.setdefault(name, path)
    return images


def open_upright(path: Path) -> Image.Image:
    """Decode an image, rotated by its EXIF orientation. A file that is missing or unreadable is a fault."""
    try:
        with Image.open(path) as image:
            return ImageOps.exif_transpose(image)
    except FileNotFoundError as error:
        raise FaultsError(path, 'no such file') from error
    except Exception as error:  # decoders raise many types
        raise FaultsError(path, unreadable(error)) from error


def read_image(path: Path, mode: str | None = None) -> np.ndarray:
    """Decode an image in PIL's ``mode`` to shape (H, W) or (H, W, C), see :func:`open_upright`."""
    image = open_upright(path)
    return np.array(image.convert(mode) if mode else image)


def read_picture(path: Path) -> np.ndarray:
    """Decode an image in RGB, or, if it has other channels or values, as it is: shape (H, W, C)."""
    with decoding(path):
        return read_image(path, 'RGB') if is_plain_picture(path) else read_channels(path)


def size_text(image: np.ndarray) -> str:
    """Format an image's size as width×height."""
    return f'{image.shape[1]}×{image.shape[0]}'


def read_together(
    image: Path, labels: Iterable[Path], read_label: Callable[[Path], np.ndarray]
) -> tuple[np.ndarray | None, list[np.ndarray], Faults]:
    """Read an image and all files of its labels, even after a fault.

    ``read_label`` returns shape (H, W) or (H, W, C), or raises a FaultsError. The result is the image, uint8 of
    shape (H, W, 3), see :func:`read_picture`, or None, then the labels, then the faults.
    """
    pixels, decoded = None, []
    faults = Faults()
    with faults.catch(image):
        pixels = read_picture(image)
    for path in labels:
        with faults.catch(path):
            decoded.append(read_label(path))
            if pixels is not None and decoded[-1].shape[:2] != pixels.shape[:2]:
                raise FaultsError(path, f'{size_text(decoded[-1])}, but its image {image} {size_text(pixels)}')
    return pixels, decoded, faults


class Palette(NamedTuple):
    """The classes in order; the K colours, int64 of shape (K, 3); and their labels, uint8 of shape (K,)."""

    classes: tuple[str, ...]
    colours: np.ndarray
    labels: np.ndarray

    def of_classes(self) -> list[list[int]]:
        """Return the first colour of every class."""
        return [self.colours[self.labels == label][0].tolist() for label in range(len(self.classes))]


def label_colours(mask: np.ndarray, palette: Palette, max_distance: float) -> tuple[np.ndarray, dict[str, float]]:
    """Give each pixel the label of the nearest colour. In a tie, the first colour of the palette wins.

    Args:
        mask (np.ndarray): RGB, uint8 of shape (H, W, 3).
        palette (Palette): the colours.
        max_distance (float): maximum distance to a colour. More distant pixels get label 255.

    Returns:
        tuple: labels, uint8 of shape (H, W); and ``r,g,b`` of the more distant colours → distance.
    """
    codes = mask[..., 0].astype(np.uint32)
    for channel in (1, 2):
        codes <<= 8
        codes |= mask[..., channel]
    is_large = codes.size > 1 << 20  # sorting its pixels takes a hundred times as long as a table of all colours
    if is_large:
        present = np.zeros(1 << 24, bool)
        present[codes] = True
        values = np.flatnonzero(present)
    else:
        values, indices = np.unique(codes, return_inverse=True)
        values = values.astype(np.int64)
    colours = np.stack([values >> 16, values >> 8 & 255, values & 255], -1)
    squares = (colours**2).sum(-1)[:, None] - 2 * colours @ palette.colours.T + (palette.colours**2).sum(-1)
    distance = np.sqrt(squares.min(-1))
    labels = np.where(distance <= max_distance, palette.labels[squares.argmin(-1)], np.uint8(IGNORED))
    far = {','.join(map(str, colours[i])): distance[i] for i in np.flatnonzero(distance > max_distance).tolist()}
    if not is_large:
        return labels[indices.reshape(codes.shape)], far
    table = np.zeros(1 << 24, np.uint8)
    table[values] = labels
    return table[codes], far


def check_counts(splits: Iterable[str], expected: Mapping[str, int], allow_others: bool, faults: Faults) -> None:
    """Compare the number of images of each split with a release. Another number is a fault, or only printed."""
    counts = Counter(splits)
    for split, count in expected.items():
        if counts[split] != count:
            text = f'{counts[split]} images, the release has {count}'
            if allow_others:
                print(f'warning: {split}: {text}', file=sys.stderr)
            else:
                faults.add(split, f'{text} (--allow-other-counts)')


def copy_image(source: Path, target: Path) -> None:
    """Copy an image without changes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def save_labels(path: Path, labels: np.ndarray, palette: Iterable[Sequence[int]]) -> None:
    """Save labels, uint8 of shape (H, W), as a PNG with the colours of ``palette``, and white for 255."""
    colours = bytes(value for colour in palette for value in colour)
    image = Image.fromarray(labels)
    # all 256 colours: with fewer, PIL would use fewer bits per pixel, and change the label 255
    image.putpalette(colours.ljust(3 * 255, b'\0') + b'\xff' * 3)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def save_pair(out: Path, name: Path, image: np.ndarray, labels: np.ndarray, palette: Iterable[Sequence[int]]) -> None:
    """Save an image as a JPEG and its labels in mmseg's layout, below ``out``; ``name`` is the split and the name."""
    path = out / 'img_dir' / name.with_name(f'{name.name}.jpg')
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, quality=95, subsampling=0)
    save_labels(out / 'ann_dir' / name.with_name(f'{name.name}.png'), labels, palette)


def choose_validation(classes: Mapping[Path, Collection[int]], fraction: float, seed: int) -> set[Path]:
    """Choose images for validation by a hash of their names. Training keeps at least one image of every class.

    Args:
        classes (mapping): name of an image → its classes.
        fraction (float): share of the images for validation, in (0, 1). At least one image is chosen, and one is not.
        seed (int): seed of the choice.
    """
    if len(classes) < 2:
        raise FaultsError(f'--val-fraction: training and validation require one image each; got {len(classes)}')
    count = min(max(1, round(fraction * len(classes))), len(classes) - 1)
    left = Counter(label for labels in classes.values() for label in labels)
    chosen: set[Path] = set()
    for name in sorted(classes, key=lambda name: hashlib.sha256(f'{seed} {name.as_posix()}'.encode()).digest()):
        if len(chosen) < count and all(left[label] > 1 for label in classes[name]):
            chosen.add(name)
            left.subtract(classes[name])
    if not chosen:
        raise FaultsError('--val-fraction', 'every image has a class that no other image has, so training requires all')
    if len(chosen) < count:
        print(f'{len(chosen)} instead of {count} images are for validation: training requires an image of every class')
    return chosen


def divide(source: Path, target: Path, validation: Collection[Path]) -> None:
    """Move ``source/{img_dir,ann_dir}/NAME.*`` to ``target/{img_dir,ann_dir}/{train,val}/NAME.*``."""
    for kind in ('img_dir', 'ann_dir'):
        for path in [path for path in (source / kind).rglob('*') if path.is_file()]:
            relative = path.relative_to(source / kind)
            moved = target / kind / PARTS[relative.with_suffix('') in validation] / relative
            moved.parent.mkdir(parents=True, exist_ok=True)
            path.rename(moved)


def read_weights(path: Path) -> dict:
    """Read weights of MobileNetV2, and give them the names of mmseg.

    The file may be of mmpretrain, mmsegmentation or mmdetection. Their names differ, their order does not.
    What follows the backbone, such as a classifier, is left out.
    """
    from mmseg.models import MobileNetV2  # slow, and rarely needed

    from mmattn.engine import read_checkpoint

    try:
        content = read_checkpoint(path)
    except ValueError as error:
        raise FaultsError(error) from error
    network, stored = MobileNetV2().state_dict(), content.get('state_dict', content)
    kinds, expected = (
        [(name.rpartition('.')[2], getattr(value, 'shape', None)) for name, value in weights.items()]
        for weights in (stored, network)
    )
    if kinds[: len(expected)] != expected:
        raise FaultsError(path, 'no weights of MobileNetV2')
    return dict(zip(network, stored.values()))


def write_config(
    folder: Path,
    suffix: str,
    classes: Sequence[str],
    palette: Sequence[Sequence[int]],
    images: Collection[Path],
    start: Start,
    crop: int | None = None,
    test: bool = False,
) -> None:
    """Write the config of :func:`config_text` into ``folder``, and the weights that it needs. Cut the images."""
    text = config_text(suffix, classes, palette, images, crop, test, start.write(folder))
    (folder / 'config.py').write_text(text, encoding='utf-8')
    if crop is not None:
        cut_images(folder, crop)


def config_text(
    suffix: str,
    classes: Sequence[str],
    palette: Sequence[Sequence[int]],
    images: Collection[Path],
    crop: int | None = None,
    test: bool = False,
    checkpoint: str | None = None,
) -> str:
    """Write a config for data in the layout of :func:`divide`. The config file lies in the folder of the data.

    ``palette`` has the RGB colours of ``classes``, in the order of their labels. If one of ``images``, those for
    training, has other channels or values than a picture, the config loads all channels, and has their measured mean
    and deviation. With ``crop``, it trains on crops of the pieces of :func:`cut_images`. With ``test``, it tests on
    ``img_dir/test`` in place of the images for validation.

    The backbone is a MobileNetV2 with the weights of ``checkpoint``, which stay as they are with fewer than 100
    ``images``. With None, or for other channels, which mmseg's MobileNetV2 does not take, a small network starts from
    scratch.
    """
    plain = all(map(is_plain_picture, images))
    if not plain and checkpoint == SAVED:
        raise FaultsError('--pretrained: only for pictures; images with other channels or values start from scratch')
    from_scratch = checkpoint is None or not plain
    text = CONFIG.format(
        start='scratch' if from_scratch else 'weights of ImageNet',
        classes=tuple(classes),
        palette=palette,
        suffix=suffix,
        train='dict(dataset)' if crop is None else f'dict(dataset, img_suffix={piece_suffix(plain)!r})',
        test=TEST if test else 'val_dataloader',
        count=len(classes),
    )
    if not from_scratch:
        text += (DOWNLOADED if checkpoint == PUBLIC else '') + PRETRAINED.format(checkpoint=checkpoint)
        text += FROZEN if len(images) < FEW else ''
    if not plain or crop is not None:
        text += PIPELINES
    if not plain:
        try:
            measured = measure_channels(track(images, 'Measuring', len(images)))
        except ValueError as error:
            raise FaultsError(f'images must have the same channels; {error}') from error
        channels = len(measured.mean)
        print(f'{channels} channels: mean {measured.mean}, deviation {measured.std}')
        text += CHANNELS.format(channels=channels, mean=measured.mean, std=measured.std)
    if crop is not None:
        text += CROPS.format(crop=crop, stride=max(1, crop * 2 // 3))
    return text


def check_crop(crop: int | None) -> None:
    """Raise a fault if the side of crops is not possible."""
    if crop is not None and crop < 1:
        raise FaultsError(f'--crop must be at least 1; got {crop}')


def piece_suffix(plain: bool) -> str:
    """Return the suffix of the pieces of images, of pictures or of images with other channels or values."""
    return '.png' if plain else '.npy'


def cut_images(folder: Path, crop: int) -> None:
    """Replace the training images and masks of ``folder`` by pieces of at most twice the side of a crop.

    To read a crop, a data loader decodes the whole file: of pieces, it decodes four times what it needs, of an image
    of many megapixels a hundred times. Pieces do not overlap, except for the last ones of each axis. They are called
    ``<name>_<top>_<left>``.
    """
    whole, pieces = ({kind: folder / kind / part for kind in ('img_dir', 'ann_dir')} for part in ('train', 'pieces'))
    images = sorted(path for path in whole['img_dir'].rglob('*') if path.is_file())
    plain = all(map(is_plain_picture, images))

    def cut(path: Path) -> None:
        image = read_picture(path)
        place = path.relative_to(whole['img_dir'])
        mask = (whole['ann_dir'] / place).with_suffix('.png')
        with Image.open(mask) as opened:
            labels, palette = np.array(opened), np.array(opened.getpalette()).reshape(-1, 3)[:IGNORED].tolist()
        for y in tile_positions(image.shape[0], 2 * crop, 2 * crop):
            for x in tile_positions(image.shape[1], 2 * crop, 2 * crop):
                part = slice(y, y + 2 * crop), slice(x, x + 2 * crop)
                name = place.with_name(f'{path.stem}_{y}_{x}{piece_suffix(plain)}')
                target, of_mask = pieces['img_dir'] / name, (pieces['ann_dir'] / name).with_suffix('.png')
                for file in (target, of_mask):
                    file.parent.mkdir(parents=True, exist_ok=True)
                if plain:
                    Image.fromarray(image[part]).save(target, compress_level=1)
                else:
                    np.save(target, image[part])
                save_labels(of_mask, labels[part], palette)
        path.unlink()
        mask.unlink()

    convert_all(images, cut).check()
    for kind, made in pieces.items():
        shutil.rmtree(whole[kind])
        made.rename(whole[kind])
    count = sum(path.is_file() for path in whole['img_dir'].rglob('*'))
    print(f'{len(images)} training images are cut into {count} pieces of at most {2 * crop}×{2 * crop}')
