"""Parts that the converters of region features share: options, and the store that is written image by image."""

import argparse
import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from mmattn.language.regions.region_store import Regions, RegionStore, clip_boxes
from mmattn.language.regions.region_writer import RegionWriter
from mmattn.utils.conversion import Fault, convert_all, files_below
from mmattn.utils.images import open_whole, unreadable
from mmattn.utils.progress import track

SUFFIXES = {'.bmp', '.jpeg', '.jpg', '.png', '.tif', '.tiff', '.webp'}
IMAGE_IDS = {'name': '(.+)', 'first-number': r'0*(\d+)', 'last-number': r'0*(\d+)$'}  # in the name without suffix


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of all converters of region features."""
    parser.add_argument('--out-dir', type=Path, required=True, help='folder to create')
    parser.add_argument('--float16', action='store_true', help='store the features with half precision')


def add_image_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the converters that run a model on images."""
    parser.add_argument('images', type=Path, nargs='+', help='image, or folder with images')
    add_arguments(parser)
    parser.add_argument(
        '--image-id',
        choices=IMAGE_IDS,
        default='name',
        help='id of an image: the name of its file without suffix, or the first or last number in it, without leading '
        'zeros; default: %(default)s',
    )
    parser.add_argument('--device', help='such as cpu or cuda:1; default: a GPU if one is available')


def find_images(places: Sequence[Path], image_id: str = 'name') -> dict[str, Path]:
    """Find images in files and folders: id → path, sorted by path within a folder. One ``Fault`` lists all faults."""
    faults: list[str] = []
    images: dict[str, Path] = {}
    for place in places:
        paths = [place] if place.is_file() else [p for p in files_below(place) if p.suffix.lower() in SUFFIXES]
        if not paths:
            faults.append(f'{place}: {"no image in it" if place.is_dir() else "no such file or folder"}')
        for path in paths:
            match = re.search(IMAGE_IDS[image_id], path.stem)
            if match is None:
                faults.append(f'{path}: no number in its name, but --image-id is {image_id}')
            elif images.setdefault(match[1], path) != path:
                faults.append(f'{path}: its id would be {match[1]}, as that of {images[match[1]]}')
    if faults:
        raise Fault(*faults)
    return images


def check_image(path: Path) -> None:
    """Raise a fault if an image is truncated, or not an image."""
    try:
        with open(path, 'rb') as stream:
            open_whole(stream)
    except Exception as error:  # decoders raise many types
        raise Fault(f'{path}: {unreadable(error)}') from error


def checked_images(places: Sequence[Path], image_id: str = 'name') -> dict[str, Path]:
    """Find images as :func:`find_images` does, and check that all can be read. One ``Fault`` lists all bad files."""
    images = find_images(places, image_id)
    if faults := convert_all([*images.values()], check_image):
        raise Fault(*faults)
    return images


def read_images(images: Mapping[str, Path], extract: Callable[[Path], Regions]) -> Iterator:
    """Yield path, id and reader of every image."""
    for image_id, path in track(images.items(), 'Extracting', len(images)):
        yield str(path), image_id, partial(extract, path)


def digest_files(paths: Sequence[Path]) -> str:
    """Digest the paths, sizes and times of files."""
    digest = hashlib.sha256()
    for path in paths:
        facts = path.stat()
        digest.update(f'{path.resolve()} {facts.st_size} {facts.st_mtime_ns}\n'.encode(errors='surrogateescape'))
    return digest.hexdigest()[:8]


def describe_model_source(converter: str, args: argparse.Namespace, paths: Sequence[Path], options: dict) -> str:
    """Describe converter, model and images for ``store.json``, by names and digests."""
    weights, checkpoint = Path(args.checkpoint), Path(args.checkpoint).name
    if weights.is_file():  # not a URL
        checkpoint += f' {hashlib.sha256(weights.read_bytes()).hexdigest()[:8]}'
    changed = f', {dict(args.cfg_options)}' if args.cfg_options else ''
    model = f'{Path(args.config).name}{changed}, {checkpoint}'
    return f'{converter}, {model}, {options}, {len(paths):,} images {digest_files(paths)}'


def add_repairs(parser: argparse.ArgumentParser) -> None:
    """Add the options that repair published boxes, and leave out damaged images."""
    parser.add_argument(
        '--clip-boxes', action='store_true', help='clip boxes to the image, and extend their sides to 1 pixel or more'
    )
    parser.add_argument(
        '--skip-damaged',
        action='store_true',
        help='leave out images with a fault, such as truncated rows of a release, and list them on stderr',
    )


def describe_source(paths: Sequence[Path], *options: str) -> str:
    """Describe the command, its files, and options for ``store.json``. A missing file is a fault."""
    if absent := [f'{path}: no such file' for path in paths if not path.is_file()]:
        raise Fault(*absent)
    return ', '.join([Path(sys.argv[0]).name, *(path.name for path in paths), *options])


def write_images(
    writer: RegionWriter, images: Iterable[tuple[str, str, Callable[[], Regions]]], clip: bool = False
) -> None:
    """Write the regions of the images that the writer does not have, with the boxes clipped to the image if ``clip``.

    ``images`` yields where an image is, for messages, its id, and a function that returns its regions. One ``Fault``
    lists all faults, such as an id that occurs twice. Images without a fault are written.
    """
    faults: list[str] = []
    places: dict[str, str] = {}
    for source, image_id, read in images:
        try:
            if image_id in places:
                raise Fault(f'image {image_id} is also in {places[image_id]}')
            if image_id not in writer:
                regions = read()
                if clip:
                    regions = regions._replace(boxes=clip_boxes(regions.boxes, regions.size))
                writer.write(image_id, regions)
            places[image_id] = source  # an intact row may follow a damaged one of the same image
        except (Fault, ValueError) as fault:
            faults += [f'{source}: {reason}' for reason in fault.args]
    if faults:
        raise Fault(*faults)


def write_store(
    args: argparse.Namespace,
    source: str,
    images: Iterable[tuple[str, str, Callable[[], Regions]]],
    inputs: Sequence[Path] = (),
) -> None:
    """Write the regions of images, and continue where an interrupted run has stopped.

    ``args`` has ``out_dir``, ``float16`` and, optionally, ``clip_boxes`` and ``skip_damaged``. A run continues only
    with the same ``source``, which goes to ``store.json``. If a file of ``inputs`` has changed, the store is begun
    again. After faults, as in :func:`write_images`, the images without a fault are kept in ``<out_dir>.part``. With
    ``skip_damaged``, they become the store.
    """
    clip = getattr(args, 'clip_boxes', False)
    if clip:
        source += ', --clip-boxes'
    try:
        with RegionWriter(args.out_dir, source, args.float16, digest_files(inputs)) as writer:
            if len(writer):
                print(f'images converted before: {len(writer):,}', flush=True)
            try:
                write_images(writer, images, clip)
            except BaseException as error:
                skip = getattr(args, 'skip_damaged', None) if isinstance(error, Fault) else None
                if skip and len(writer):
                    print('\n  '.join([f'warning: left out {len(error.args)} images', *error.args]), file=sys.stderr)
                else:
                    kept = (
                        f'{len(writer):,} images are kept in {args.out_dir}.part. Run the same command again to resume'
                    )
                    advice = '' if skip is None else ', with --skip-damaged to leave out what has a fault'
                    print(f'{kept}{advice}.', file=sys.stderr)
                    raise
    except ValueError as error:  # other arguments, or no image
        raise Fault(str(error)) from error
    store = RegionStore(args.out_dir)
    print(f'{args.out_dir}: {len(store):,} images, {store.num_features:,} features per region')
