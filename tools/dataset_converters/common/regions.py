"""What the converters of region features share: options, and the store that is written image by image."""

import hashlib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from mmattn.language.regions.image_regions import Regions
from mmattn.language.regions.region_store import RegionStore
from mmattn.language.regions.region_writer import RegionWriter
from mmattn.utils.faults import Faults, FaultsError

from .conversion import OutDir

Float16 = Annotated[bool, 'store the features with half precision']


@dataclass(kw_only=True)
class StoreOptions:
    """What all converters that write a region store are given."""

    out_dir: OutDir
    float16: Float16 = False


@dataclass(kw_only=True)
class RepairOptions(StoreOptions):
    """What converters of published features are given, which repair boxes, and leave out damaged images.

    Args:
        clip_boxes: clip boxes to the image, and extend their sides to 1 pixel or more
        skip_damaged: leave out images with a fault, such as truncated rows of a release, and list them on stderr
    """

    clip_boxes: bool = False
    skip_damaged: bool = False


def clip_boxes(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Clip boxes to an image of ``size`` (width, height), and extend sides shorter than a pixel.

    Boxes are left, top, right, bottom ``(..., 4)``. Width and height must be at least 1.
    """
    limit = boxes.new_tensor(size)
    start = torch.minimum(boxes[..., :2].clamp(min=0), limit - 1)
    end = torch.maximum(torch.minimum(boxes[..., 2:], limit), start + 1)
    return torch.cat([start, end], -1)


def digest_files(paths: Sequence[Path]) -> str:
    """Digest the paths, sizes and times of files."""
    digest = hashlib.sha256()
    for path in paths:
        facts = path.stat()
        digest.update(f'{path.resolve()} {facts.st_size} {facts.st_mtime_ns}\n'.encode(errors='surrogateescape'))
    return digest.hexdigest()[:8]


def describe_source(paths: Sequence[Path], *options: str) -> str:
    """Describe the command, its files, and options as the source of a store. A missing file is a fault."""
    faults = Faults()
    for path in paths:
        if not path.is_file():
            faults.add(path, 'no such file')
    faults.check()
    return ', '.join([Path(sys.argv[0]).name, *(path.name for path in paths), *options])


def write_images(
    writer: RegionWriter, images: Iterable[tuple[str, str, Callable[[], Regions]]], clip: bool = False
) -> None:
    """Write the regions of the images that the writer does not have, with the boxes clipped to the image if ``clip``.

    ``images`` yields where an image is, for messages, its id, and a function that returns its regions. A FaultsError
    lists all faults, such as an id that occurs twice. Images without a fault are written.
    """
    faults = Faults()
    places: dict[str, str] = {}
    for source, image_id, read in images:
        try:  # not Faults.catch: a full disk ends the run
            if image_id in places:
                raise FaultsError(f'image {image_id} is also in {places[image_id]}')
            if image_id not in writer:
                regions = read()
                if clip:
                    regions = regions._replace(boxes=clip_boxes(regions.boxes, regions.size))
                writer.write(image_id, regions)
            places[image_id] = source  # an intact row may follow a damaged one of the same image
        except FaultsError as error:
            faults.include(error, source)
        except ValueError as error:
            faults.add(source, str(error))
    faults.check()


def write_store(
    options: StoreOptions,
    source: str,
    images: Iterable[tuple[str, str, Callable[[], Regions]]],
    inputs: Sequence[Path] = (),
) -> None:
    """Write the regions of images, and continue where an interrupted run has stopped.

    With another ``source`` or a changed file of ``inputs``, the store is begun again. After faults, as in
    :func:`write_images`, the images without a fault are kept. With ``skip_damaged``, they become the store.
    """
    clip = isinstance(options, RepairOptions) and options.clip_boxes
    if clip:
        source += ', --clip-boxes'
    try:
        with RegionWriter(options.out_dir, source, options.float16, digest_files(inputs)) as writer:
            if len(writer):
                print(f'images converted before: {len(writer):,}', flush=True)
            try:
                write_images(writer, images, clip)
            except BaseException as error:
                skip = getattr(options, 'skip_damaged', None) if isinstance(error, FaultsError) else None
                if skip and len(writer) and isinstance(error, FaultsError):
                    lines = error.lines()
                    print('\n  '.join([f'warning: left out {len(lines)} images', *lines]), file=sys.stderr)
                else:
                    advice = '' if skip is None else ', with --skip-damaged to leave out what has a fault'
                    print(
                        f'{len(writer):,} images are kept in {writer.part}. Run the same command again to '
                        f'resume{advice}.',
                        file=sys.stderr,
                    )
                    raise
    except FaultsError:
        raise
    except ValueError as error:  # other arguments, or no image
        raise FaultsError(str(error)) from error
    store = RegionStore(options.out_dir)
    print(f'{options.out_dir}: {len(store):,} images, {store.num_features:,} features per region')
