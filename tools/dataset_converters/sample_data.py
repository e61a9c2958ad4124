"""Download a small sample of real data from the package index, and convert it to the layout of mmseg or Pascal VOC.

    python tools/dataset_converters/sample_data.py buildings [--out-dir data/buildings] [--archive FILE] [--overwrite]
    python tools/dataset_converters/sample_data.py trees [--out-dir data/trees] [--archive FILE] [--overwrite]

``buildings`` is 12 neighbouring aerial tiles (about 571x571 pixels of 0.35 m) with masks of their buildings, from the
test data of the source release pytorch-segmentation-models-trainer 1.4.0 (78 MB)::

    data/buildings/img_dir/{train,val}/NAME.png    RGB
    data/buildings/ann_dir/{train,val}/NAME.png    8 bit, 0 = background, 1 = building

The licence of the release is GPL-2.0-or-later; it states no separate licence for the tiles. This project does not
redistribute them: they are downloaded from their publisher's release, for research use.

``trees`` is four aerial images with 951 boxes of trees, from the wheel deepforest 2.1.0 (21 MB)::

    data/trees/JPEGImages/NAME.jpg                 RGB, quality 95
    data/trees/Annotations/NAME.xml                boxes of the class Tree
    data/trees/ImageSets/Main/{train,val}.txt      the NAMEs
    data/trees/LICENSE                             of the wheel: MIT, without a separate one for its images

The two large images are cut into tiles of about 400x400 that cover them without overlap. One of them is val (278
boxes); the other and the two small images, all of other places, are train (672). A box belongs to each tile that
contains at least half of its area. It is clipped to the tile, and then marked ``truncated``; smaller pieces are
dropped. One image distinguishes Dead and Alive; both become Tree, as in the other three. Boxes are as in Pascal VOC:
first and last pixel, counted from 1. No box required repair: each has an area and lies in its image.

pip downloads the release, as its settings say, and checks its sha256. For ``buildings``, it also asks the build tool
hatchling for the metadata of the release; no code of the release is run. The release is cached in
``$MMATTN_CACHE/downloads`` (default: ``~/.cache/mmattn/downloads``), so a second run requires no network.

OUT is written atomically; a complete OUT is not changed. A failure is one line on stderr, with exit code 1 (130
after Ctrl-C).

Args:
    out_dir: folder to create; default: data/SAMPLE
    archive: a copy of the release downloaded by hand
"""

import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from common.conversion import Overwrite, converter, replace_folder
from mmattn.utils.command import run
from mmattn.utils.faults import FaultsError


@dataclass(frozen=True)
class Sample:
    """The source of a sample, and its conversion to the files ``layout`` for each part and name of ``split``."""

    requirement: str
    sha256: str
    archive: str
    megabytes: int
    licence: str
    split: dict[str, tuple[str, ...]]
    layout: tuple[str, ...]
    convert: Callable[[Path, Path], None]


# The tiles are a grid of 4 rows and 3 columns without overlap. val is two pairs of neighbours in opposite corners. Both
# parts have dense housing, large halls and woods, and the same share of buildings (val 22.33 %, train 22.29 %).
NUMBERS = {'train': (966, 973, 995, 996, 998, 1033, 1036, 1039), 'val': (967, 970, 997, 1045)}
BUILDINGS = {part: tuple(f'Ortoimagem_MI_2970-1-SO_{i}' for i in numbers) for part, numbers in NUMBERS.items()}


def convert_buildings(archive: Path, out: Path) -> None:
    """Write the tiles of ``archive`` and their masks under the new folder ``out``."""
    root = 'pytorch_segmentation_models_trainer-1.4.0/tests/testing_data/data/frame_field_data/'
    images, masks = 'images/Ortoimagem_MI_2970-1-SO/', 'polygon_masks/'
    try:
        with tarfile.open(archive, 'r:gz') as tar:
            tiles = {
                member.name.removeprefix(root): tar.extractfile(member).read()
                for member in tar
                if member.isfile() and member.name.startswith((root + images, root + masks))
            }
    except (tarfile.TarError, EOFError) as error:
        raise FaultsError(f'{archive} is damaged: {error}') from error
    for part, names in BUILDINGS.items():
        (out / 'img_dir' / part).mkdir(parents=True)
        (out / 'ann_dir' / part).mkdir(parents=True)
        for name in names:
            pair = f'{images}{name}.tif', f'{masks}{name}.tif'
            for tile in pair:
                if tile not in tiles:
                    raise FaultsError(f'{archive} has no {tile}')
            image, mask = (Image.open(io.BytesIO(tiles[tile])) for tile in pair)
            if image.size != mask.size:
                raise FaultsError(f'{pair[0]} is {image.size} pixels but its mask {mask.size}')
            image.convert('RGB').save(out / 'img_dir' / part / f'{name}.png')
            mask.convert('L').point(lambda value: value > 127).save(out / 'ann_dir' / part / f'{name}.png')


# Image → number of rows and columns of tiles.
TREES = {
    'train': {'2019_YELL_2_528000_4978000_image_crop2': 6, 'OSBS_029': 1, 'SOAP_061': 1},
    'val': {'2019_YELL_2_541000_4977000_image_crop': 3},
}
TREE = """
  <object>
    <name>Tree</name>
    <truncated>{}</truncated>
    <difficult>0</difficult>
    <bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox>
  </object>"""


def clip_boxes(boxes: np.ndarray, left: int, top: int, right: int, bottom: int) -> np.ndarray:
    """Return (truncated, xmin, ymin, xmax, ymax) in a tile for each box of which the tile contains at least half."""
    edges = boxes.reshape(-1, 2, 2) - [[1, 1], [0, 0]]  # From pixel indices to pixel borders.
    inside = edges.clip((left, top), (right, bottom))
    area, area_inside = ((corners[:, 1] - corners[:, 0]).prod(1) for corners in (edges, inside))
    kept = (area_inside > 0) & (2 * area_inside >= area)
    clipped = (inside - [[left - 1, top - 1], [left, top]]).reshape(-1, 4)
    return np.column_stack([area_inside < area, clipped])[kept]


def convert_trees(archive: Path, out: Path) -> None:
    """Write the tiles of the images in ``archive`` and their boxes under the new folder ``out``."""
    licence = 'deepforest-2.1.0.dist-info/licenses/LICENSE'
    images = [f'deepforest/data/{name}' for part in TREES.values() for name in part]
    try:
        with zipfile.ZipFile(archive) as wheel:
            members = [licence, *(f'{image}.{suffix}' for image in images for suffix in ('png', 'xml'))]
            files = {member: wheel.read(member) for member in members}
    except zipfile.BadZipFile as error:
        raise FaultsError(f'{archive} is damaged: {error}') from error
    except KeyError as error:
        raise FaultsError(archive, f'{error.args[0]}') from error
    for folder in 'JPEGImages', 'Annotations', 'ImageSets/Main':
        (out / folder).mkdir(parents=True)
    (out / 'LICENSE').write_bytes(files[licence])
    for part, grids in TREES.items():
        (out / 'ImageSets' / 'Main' / f'{part}.txt').write_text(
            '\n'.join(SAMPLES['trees'].split[part]) + '\n', encoding='utf-8'
        )
        for name, cells in grids.items():
            image = Image.open(io.BytesIO(files[f'deepforest/data/{name}.png'])).convert('RGB')
            objects = ElementTree.fromstring(files[f'deepforest/data/{name}.xml']).iter('bndbox')
            boxes = np.array([[int(box.findtext(key)) for key in ('xmin', 'ymin', 'xmax', 'ymax')] for box in objects])
            for row, column in product(range(cells), repeat=2):
                (left, right), (top, bottom) = (
                    (side * index // cells, side * (index + 1) // cells)
                    for side, index in zip(image.size, (column, row))
                )
                tile = f'{name}_{row}{column}'
                image.crop((left, top, right, bottom)).save(out / 'JPEGImages' / f'{tile}.jpg', quality=95)
                size = f'<width>{right - left}</width><height>{bottom - top}</height><depth>3</depth>'
                trees = ''.join(TREE.format(*tree) for tree in clip_boxes(boxes, left, top, right, bottom))
                (out / 'Annotations' / f'{tile}.xml').write_text(
                    f'<annotation>\n  <filename>{tile}.jpg</filename>\n  <size>{size}</size>{trees}\n</annotation>\n',
                    encoding='utf-8',
                )


SAMPLES = {
    'buildings': Sample(
        requirement='pytorch-segmentation-models-trainer==1.4.0',
        sha256='0aaa2f4d97fc38ef345464460fc81ba5c51716cf5285a02eb2d062e76759ee36',
        archive='pytorch_segmentation_models_trainer-1.4.0.tar.gz',
        megabytes=78,
        licence='GPL-2.0-or-later, downloaded from its publisher, not redistributed by this project; for research use',
        split=BUILDINGS,
        layout=('img_dir/{part}/{name}.png', 'ann_dir/{part}/{name}.png'),
        convert=convert_buildings,
    ),
    'trees': Sample(
        requirement='deepforest==2.1.0',
        sha256='8c2798d8e9be7f0004b194fe207b76c1d9fff6e711b3db67b9508dcd5d00ae54',
        archive='deepforest-2.1.0-py3-none-any.whl',
        megabytes=21,
        licence='MIT, see the file LICENSE in the folder of the data',
        split={
            part: tuple(
                f'{name}_{row}{column}'
                for name, cells in grids.items()
                for row, column in product(range(cells), repeat=2)
            )
            for part, grids in TREES.items()
        },
        layout=('JPEGImages/{name}.jpg', 'Annotations/{name}.xml', 'ImageSets/Main/{part}.txt', 'LICENSE'),
        convert=convert_trees,
    ),
}


def check_hash(path: Path, expected: str) -> None:
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise FaultsError(f'{path} has the wrong hash: expected sha256 {expected}, got {digest.hexdigest()}')


def fetch(sample: Sample) -> Path:
    """Return the archive of ``sample`` from the cache. pip downloads it first if necessary."""
    cache = os.environ.get('MMATTN_CACHE') or Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache', 'mmattn')
    archive = Path(cache, 'downloads', sample.archive).absolute()
    if archive.exists():
        try:
            check_hash(archive, sample.sha256)
            return archive
        except FaultsError as error:
            print(f'{error}; downloading it again')
            archive.unlink()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f'{sample.archive}.part-', dir=archive.parent) as folder:
        requirements = Path(folder, 'requirements.txt')
        requirements.write_text(f'{sample.requirement} --hash=sha256:{sample.sha256}\n', encoding='utf-8')
        command = [sys.executable, '-m', 'pip', 'download', '--ignore-requires-python', '--no-deps', '--no-cache-dir']
        command += ['--dest', folder, '--requirement', requirements]
        print(f'downloading {sample.archive} ({sample.megabytes} MB) to {archive.parent}', flush=True)
        pip = subprocess.run(
            command,
            stdout=sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL,  # pip draws its progress bar on stdout.
            stderr=subprocess.PIPE,
            text=True,
        )
        if wrong := re.search(r'Expected sha256 (\w+)\s+Got\s+(\w+)', pip.stderr):
            expected, got = wrong.groups()
            raise FaultsError(
                f'the index has {sample.archive} with the wrong hash: expected sha256 {expected}, got {got}'
            )
        if pip.returncode:
            # 'ERROR: reason', or 'ERROR: Exception:' and a traceback with 'SomeError: reason' at its end; pip indents
            # what it says of the build tool.
            reason = r'^ *([\w.]*error: (?!Exception:|subprocess-).+)'
            reasons = re.findall(reason, pip.stderr, re.IGNORECASE | re.MULTILINE)
            reasons = reasons or pip.stderr.strip().splitlines() or ['no message']
            raise FaultsError(f'pip cannot download it (--archive uses a copy downloaded elsewhere): {reasons[-1]}')
        os.replace(Path(folder, sample.archive), archive)
    return archive


def wanted_files(sample: Sample, out: Path) -> set[Path]:
    return {
        out / path.format(part=part, name=name)
        for path in sample.layout
        for part, names in sample.split.items()
        for name in names
    }


def missing_or_broken(sample: Sample, out: Path) -> list[str]:
    """Return the faults of ``out``: files that are missing, broken, or not part of the sample."""
    expected = wanted_files(sample, out)
    present = {file for path in sample.layout for file in out.glob(path.format(part='*', name='*'))}
    faults = [f'{path.relative_to(out)} is missing' for path in sorted(expected - present)]
    faults += [f'{path.relative_to(out)} is not part of it' for path in sorted(present - expected)]
    for path in sorted(expected & present):
        try:
            if path.suffix == '.xml':
                ElementTree.parse(path)
            elif path.suffix in ('.png', '.jpg'):
                with Image.open(path) as image:
                    image.verify()
                with Image.open(path) as image:
                    image.load()  # For a JPEG, PIL's verify() checks only the header.
        except (OSError, SyntaxError):  # PIL raises SyntaxError for a wrong checksum in a PNG; so does invalid XML.
            faults.append(f'{path.relative_to(out)} is broken')
    return faults


def prepare(sample: Sample, out: Path, archive: Path | None = None, overwrite: bool = False) -> None:
    """Create the sample in ``out``, from ``archive`` or from the package index."""
    if out.exists():
        faults = missing_or_broken(sample, out)
        if not faults and not overwrite:
            print(f'{out} is already complete')
            return
        if not overwrite:
            raise FaultsError(f'{out} is not complete (faults: {len(faults)}; --overwrite replaces it): {faults[0]}')
        expected = wanted_files(sample, out)
        other_files = [path for path in out.rglob('*') if not path.is_dir() and path not in expected]
        if other_files:
            raise FaultsError(
                f'{out} also contains {min(other_files).relative_to(out)}, which --overwrite would delete'
            )
    print(f'data: {sample.archive} of the package index\nlicence: {sample.licence}')
    if archive:
        check_hash(archive, sample.sha256)
    else:
        archive = fetch(sample)
    with replace_folder(out) as scratch:
        sample.convert(archive, scratch / 'new')
    print(f'{out}: ' + ', '.join(f'{len(names)} {part}' for part, names in sample.split.items()))


@converter
def main(
    sample: Annotated[str, dict(choices=[*SAMPLES])],
    *,
    out_dir: Path | None = None,
    archive: Path | None = None,
    overwrite: Overwrite = False,
) -> None:
    prepare(SAMPLES[sample], (out_dir or Path('data', sample)).resolve(), archive, overwrite)


if __name__ == '__main__':
    run(main)
