"""What the converters share that extract region features of images with a model."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from mmengine.config import Config

from mmattn.engine import CfgOptions, Device, check_checkpoint, load_config
from mmattn.language.regions.image_regions import Regions
from mmattn.language.text.words import normalize_unicode
from mmattn.utils.devices import check_device
from mmattn.utils.faults import Faults, FaultsError
from mmattn.utils.images import open_whole, unreadable
from mmattn.utils.progress import track

from .conversion import convert_all, files_below
from .regions import StoreOptions, digest_files, write_store

SUFFIXES = {'.bmp', '.jpeg', '.jpg', '.png', '.tif', '.tiff', '.webp'}
IMAGE_IDS = {'name': '(.+)', 'first-number': r'0*(\d+)', 'last-number': r'0*(\d+)$'}  # in the name without suffix


@dataclass
class ExtractionOptions(StoreOptions):
    """What converters that run a model on images are given.

    Args:
        config: path of the config
        checkpoint: path or URL of its checkpoint
        images: image, or folder with images
        image_id: id of an image: the name of its file without suffix, or the first or last number in it, without
            leading zeros
    """

    config: str
    checkpoint: str
    images: list[Path]
    _: KW_ONLY
    image_id: Literal['name', 'first-number', 'last-number'] = 'name'
    device: Device = None
    cfg_options: CfgOptions = None


def find_images(places: Sequence[Path], image_id: str = 'name') -> dict[str, Path]:
    """Find images in files and folders: id → path, sorted by path within a folder. A FaultsError lists all faults."""
    faults = Faults()
    images: dict[str, Path] = {}
    for place in places:
        paths = [place] if place.is_file() else [p for p in files_below(place) if p.suffix.lower() in SUFFIXES]
        if not paths:
            faults.add(place, 'no image in it' if place.is_dir() else 'no such file or folder')
        for path in paths:
            match = re.search(IMAGE_IDS[image_id], normalize_unicode(path.stem))
            if match is None:
                faults.add(path, f'no number in its name, but --image-id is {image_id}')
            elif images.setdefault(match[1], path) != path:
                faults.add(path, f'its id would be {match[1]}, as that of {images[match[1]]}')
    faults.check()
    return images


def check_image(path: Path) -> None:
    """Raise a fault if an image is truncated, or not an image."""
    try:
        with open(path, 'rb') as stream:
            open_whole(stream)
    except Exception as error:  # decoders raise many types
        raise FaultsError(path, unreadable(error)) from error


def checked_images(places: Sequence[Path], image_id: str = 'name') -> dict[str, Path]:
    """Find images as :func:`find_images` does, and check that all can be read. A FaultsError lists all bad files."""
    images = find_images(places, image_id)
    convert_all([*images.values()], check_image).check()
    return images


def read_images(images: Mapping[str, Path], extract: Callable[[Path], Regions]) -> Iterator:
    """Yield path, id and reader of every image."""
    for image_id, path in track(images.items(), 'Extracting', len(images)):
        yield str(path), image_id, partial(extract, path)


def extract_images(
    command: str,
    options: ExtractionOptions,
    settings: dict[str, Any],
    load: Callable[[Config, torch.device], Callable[[Path], Regions]],
) -> None:
    """Write the regions that a model extracts from images.

    ``load`` returns the extractor of a config. ``settings`` are its options, which the store records with the
    name of the ``command``, the model, and digests of weights and images.
    """
    check_checkpoint(options.checkpoint)
    device = check_device(options.device)
    cfg = load_config(options.config, options.cfg_options)
    images = checked_images(options.images, options.image_id)
    extractor = load(cfg, device)
    weights, checkpoint = Path(options.checkpoint), Path(options.checkpoint).name
    if weights.is_file():  # not a URL
        checkpoint += f' {hashlib.sha256(weights.read_bytes()).hexdigest()[:8]}'
    changed = f', {dict(options.cfg_options)}' if options.cfg_options else ''
    model = f'{Path(options.config).name}{changed}, {checkpoint}'
    settings = dict(settings, image_id=options.image_id)
    digest = f'{len(images):,} images {digest_files([*images.values()])}'
    write_store(options, f'{command}, {model}, {settings}, {digest}', read_images(images, extractor))
