"""Convert colour-coded masks to the label maps of mmseg.

    python tools/dataset_converters/color_labels.py --images FOLDER --masks FOLDER --out-dir data/faces \\
        --palette background:0,0,0 skin:255,255,0 hair:127,0,0 [--max-distance 40] [--val-fraction 0.2]
    python tools/train.py data/faces/config.py                       # with --val-fraction

Image and mask have the same name, with any suffix, in the same subfolder. Subfolders are kept::

    IMAGES/train/NAME.jpg       OUT/img_dir/train/NAME.jpg      unchanged; .JPG beside .jpg becomes .jpg
    MASKS/train/NAME.bmp        OUT/ann_dir/train/NAME.png      with the palette, 0 is its first class

Images may have any number of channels, of 8 or 16 bits or floats, also as TIFF (which requires tifffile) or
``.npy``. If one is not 8-bit grey or RGB, the config loads all channels, with their measured mean and deviation.
Pixels that a GeoTIFF says to have no data become label 255, which training ignores.

For binary masks of 0 and 255, in grey or RGB, use the palette ``background:0,0,0 building:255,255,255``.

With ``--val-fraction``, the output is::

    OUT/{img_dir,ann_dir}/{train,val}/...                            in place of OUT/{img_dir,ann_dir}/...
    OUT/config.py                                                    for ``tools/train.py`` and ``tools/test.py``

The config starts from weights of ImageNet. Images with other channels start from scratch.

With ``--crop 512``, for images of many megapixels, the config trains on crops at the size of the files, and tests with
a sliding window of this size. The training images are cut into pieces of up to 1024×1024, which load faster.

Args:
    palette: ``name:r,g,b`` in the order of the labels, or a file with one entry per line. Repeat the name of a class
        that has several colours. Each pixel gets the label of the nearest colour
    max_distance: Euclidean distance in RGB that is permitted, for masks that were resized or compressed with loss
    ignore_unknown: more distant colours become label 255, which training ignores, and are no faults
    val_fraction: share of the images for validation, which their names and ``--seed`` select; training keeps at least
        one image of every class. Also writes a config
    crop (SIDE): for large images: train on crops of SIDE×SIDE at the size of the files
"""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from common.conversion import (
    OutDir,
    Overwrite,
    check_config_folder,
    check_config_names,
    convert_all,
    converter,
    train_command,
)
from common.segmentation import (
    IGNORED,
    PARTS,
    Palette,
    Start,
    check_crop,
    choose_validation,
    copy_image,
    divide,
    find_pairs,
    formats,
    label_colours,
    label_folder,
    read_image,
    read_together,
    save_labels,
    write_config,
)
from mmattn.utils.channels import without_data
from mmattn.utils.command import run
from mmattn.utils.faults import Faults, FaultsError, shorten

WHITE = 2**16 - 1  # in 16 bits
SUFFIXES = {*Image.registered_extensions(), '.npy'}


def read_palette(entries: Sequence[str]) -> Palette:
    """Parse ``name:r,g,b`` entries, or the file with such entries."""
    file = 'palette'
    if len(entries) == 1 and Path(entries[0]).is_file():
        try:
            text = Path(entries[0]).read_text(encoding='utf-8-sig')
        except UnicodeError as error:
            raise FaultsError(entries[0], f'not a palette in UTF-8: {error}') from error
        file, entries = entries[0], [line.strip() for line in text.splitlines() if line.strip()]
        if not entries:
            raise FaultsError(file, 'no name:r,g,b in it')
    parsed, faults = {}, Faults()
    for entry in entries:
        match = re.fullmatch(r'(.+?)\s*:\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)', entry)
        colour = match and tuple(map(int, match.groups()[1:]))
        if not colour or max(colour) > 255:
            faults.add('palette', f'{entry!r} is neither name:r,g,b with values up to 255 nor a file of such lines')
        elif colour in parsed:
            faults.add('palette', f'{entry!r} has the same colour as {parsed[colour]}')
        else:
            parsed[colour] = match[1]
    classes = tuple(dict.fromkeys(parsed.values()))
    if len(classes) > IGNORED:
        faults.add('palette', f'{len(classes)} classes, but labels have 8 bits, and {IGNORED} is the void label')
    faults.check()
    check_config_names(dict.fromkeys(classes, file))
    return Palette(classes, np.array(list(parsed)), np.uint8([classes.index(name) for name in parsed.values()]))


def read_mask(path: Path, palette: Palette, max_distance: float, ignore_unknown: bool) -> np.ndarray:
    """Return the labels of a mask file, uint8 of shape (H, W)."""
    stored = read_image(path)
    deep = np.setdiff1d(stored, WHITE) if stored.itemsize > 1 else stored
    if deep.size and deep.max() > 255:
        raise FaultsError(path, f'values up to {deep.max()}, but colours have 8 bits; save the mask with 8 bits')
    if stored.ndim == 3 and stored.shape[2] in (2, 4) and (alpha := stored[..., -1]).min() < 255:
        raise FaultsError(
            path,
            f'{(alpha < 255).sum()} pixels are transparent, and their colours are not those one sees; '
            'save the mask without an alpha channel',
        )
    labels, far = label_colours(read_image(path, 'RGB'), palette, max_distance)
    if far and not ignore_unknown:
        raise FaultsError(
            path,
            f'{(labels == IGNORED).sum()} pixels have colours outside the palette (see --max-distance), '
            f'up to {max(far.values()):.1f} from the nearest: {"; ".join(shorten(far, 5))}',
        )
    return labels


@converter
def main(
    *,
    images: Path,
    masks: Path,
    out_dir: OutDir,
    palette: list[str],
    max_distance: float = 0,
    ignore_unknown: bool = False,
    val_fraction: float | None = None,
    crop: int | None = None,
    start: Start,
    seed: int = 0,
    overwrite: Overwrite = False,
) -> None:
    classes = read_palette(palette)
    if val_fraction is not None and not 0 < val_fraction < 1:
        raise FaultsError(f'--val-fraction must be above 0 and below 1; got {val_fraction}')
    check_crop(crop)
    if crop is not None and val_fraction is None:
        raise FaultsError('--crop requires --val-fraction: it cuts the training images, and writes a config')
    if start != Start() and val_fraction is None:
        raise FaultsError('--pretrained and --from-scratch require --val-fraction, which writes a config')
    start.check()
    if not max_distance >= 0:
        raise FaultsError(f'--max-distance must be at least 0; got {max_distance}')
    if val_fraction is not None:
        check_config_folder(out_dir)
    if images.resolve() == masks.resolve():
        raise FaultsError(images, '--images and --masks must be different folders')
    with label_folder(out_dir, overwrite, [images, masks]) as scratch:
        faults = Faults()
        image_paths, mask_paths = find_pairs(images, masks, SUFFIXES, faults)
        suffixes = Counter(path.suffix for path in image_paths.values())
        named = [*(suffixes if len(suffixes) == 1 else formats(image_paths.values()))]
        if len(named) != 1:
            kinds = ', '.join(f'{count} {suffix}' for suffix, count in suffixes.items()) or 'none'
            faults.add(images, f'all images must have the same suffix; found {kinds}')
        folders = {name.parts[0] for name in image_paths if name.parent.name}
        if val_fraction is not None and (parts := folders & {*PARTS}):
            faults.add(images, f'already has {" and ".join(sorted(parts))}; omit --val-fraction')
        read = partial(read_mask, palette=classes, max_distance=max_distance, ignore_unknown=ignore_unknown)
        converted, seen = scratch / 'converted', {}

        def convert_pair(name: Path) -> None:
            _, labels, wrong = read_together(image_paths[name], [mask_paths[name]], read)
            wrong.check()
            if (without := without_data(image_paths[name])) is not None:
                labels[0][without] = IGNORED
            seen[name] = set(np.unique(labels[0]).tolist()) - {IGNORED}
            if not faults:
                copied = image_paths[name].relative_to(images).with_suffix(named[0])
                copy_image(image_paths[name], converted / 'img_dir' / copied)
                target = converted / 'ann_dir' / name.parent / f'{name.name}.png'
                save_labels(target, labels[0], classes.of_classes())

        names = [name for name in image_paths if name in mask_paths]
        faults.include(convert_all(names, convert_pair))
        faults.check()
        if val_fraction is None:
            converted.rename(scratch / 'new')
        else:
            validation = choose_validation(seen, val_fraction, seed)
            divide(converted, scratch / 'new', validation)
            training = [image_paths[name] for name in names if name not in validation]
            write_config(scratch / 'new', *named, classes.classes, classes.of_classes(), training, start, crop)
    for label, name in enumerate(classes.classes):
        if not any(label in labels for labels in seen.values()):
            print(f'warning: no mask has a pixel of {name}', file=sys.stderr)
    print(f'metainfo = dict(classes={classes.classes}, palette={classes.of_classes()})')
    if val_fraction is not None:
        print(f'{len(seen) - len(validation)} images are for training, {len(validation)} for validation; train with')
        print(train_command(out_dir / 'config.py'))


if __name__ == '__main__':
    run(main)
