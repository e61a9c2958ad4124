"""Fetch a small sample of real data through the package index and convert it to the layout of mmseg.

    python tools/dataset_converters/sample_data.py buildings [--out-dir data/buildings] [--archive FILE] [--overwrite]

``buildings`` is 12 neighbouring aerial tiles (about 571x571 pixels of 0.35 m) with masks of their buildings, from the
test data of the source release pytorch-segmentation-models-trainer 1.4.0::

    data/buildings/img_dir/{train,val}/NAME.png    RGB
    data/buildings/ann_dir/{train,val}/NAME.png    8 bit, 0 = background, 1 = building

pip downloads the release (78 MB) and checks its sha256; it is kept in ``$MMATTN_CACHE/downloads`` (default:
``~/.cache/mmattn/downloads``), so a second run needs no network. ``--archive`` takes a copy downloaded by hand.
The release is GPL-2.0-or-later and names no licence of its own for the tiles. This project does not redistribute
them: they come from their publisher's release, for research use.

OUT appears whole or not at all, and a complete one is left as it is. A failure is one line on stderr and exit code 1.
"""

import argparse
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image


class SampleError(Exception):
    """A failure that its one-line message explains to the user."""


@dataclass(frozen=True)
class Sample:
    """Where a sample comes from and how it becomes img_dir/{train,val} and ann_dir/{train,val}."""

    requirement: str
    sha256: str
    archive: str
    megabytes: int
    backend: str  # The module that the release's pyproject.toml names as its build backend.
    licence: str
    split: dict[str, tuple[str, ...]]
    convert: Callable[[Path, Path], None]


# The tiles are a grid of 4 rows and 3 columns without overlap. val is two pairs of neighbours in opposite corners: both
# parts hold dense housing, large halls and woods, and as much building (val 22.33 % of the pixels, train 22.29 %).
BUILDINGS = {
    'train': (
        'Ortoimagem_MI_2970-1-SO_966',
        'Ortoimagem_MI_2970-1-SO_973',
        'Ortoimagem_MI_2970-1-SO_995',
        'Ortoimagem_MI_2970-1-SO_996',
        'Ortoimagem_MI_2970-1-SO_998',
        'Ortoimagem_MI_2970-1-SO_1033',
        'Ortoimagem_MI_2970-1-SO_1036',
        'Ortoimagem_MI_2970-1-SO_1039',
    ),
    'val': (
        'Ortoimagem_MI_2970-1-SO_967',
        'Ortoimagem_MI_2970-1-SO_970',
        'Ortoimagem_MI_2970-1-SO_997',
        'Ortoimagem_MI_2970-1-SO_1045',
    ),
}


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
        raise SampleError(f'{archive} is damaged: {error}') from error
    for part, names in BUILDINGS.items():
        (out / 'img_dir' / part).mkdir(parents=True)
        (out / 'ann_dir' / part).mkdir(parents=True)
        for name in names:
            pair = f'{images}{name}.tif', f'{masks}{name}.tif'
            for tile in pair:
                if tile not in tiles:
                    raise SampleError(f'{archive} has no {tile}')
            image, mask = (Image.open(io.BytesIO(tiles[tile])) for tile in pair)
            if image.size != mask.size:
                raise SampleError(f'{pair[0]} is {image.size} pixels but its mask {mask.size}')
            image.convert('RGB').save(out / 'img_dir' / part / f'{name}.png')
            mask.convert('L').point(lambda value: value > 127).save(out / 'ann_dir' / part / f'{name}.png')


SAMPLES = {
    'buildings': Sample(
        requirement='pytorch-segmentation-models-trainer==1.4.0',
        sha256='0aaa2f4d97fc38ef345464460fc81ba5c51716cf5285a02eb2d062e76759ee36',
        archive='pytorch_segmentation_models_trainer-1.4.0.tar.gz',
        megabytes=78,
        backend='hatchling.build',
        licence='GPL-2.0-or-later, fetched from its publisher and not redistributed by this project; for research use',
        split=BUILDINGS,
        convert=convert_buildings,
    ),
}

# To download a source release pip also asks its build backend for metadata. This stand-in answers with the least that
# any pip accepts: nothing of the release is run, and its build tool need not be installed.
BACKEND = """
import os

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    name = '{0}-{1}.dist-info'.replace('-', '_', '{0}'.count('-'))
    os.mkdir(os.path.join(folder, name))
    with open(os.path.join(folder, name, 'METADATA'), 'w') as file:
        file.write('Metadata-Version: 2.1\\nName: {0}\\nVersion: {1}\\n')
    return name
"""


def check_hash(path: Path, expected: str) -> None:
    """Raise if the sha256 of the file ``path`` is not ``expected``."""
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise SampleError(f'{path} has the wrong hash: expected sha256 {expected}, got {digest.hexdigest()}')


def fetch(sample: Sample) -> Path:
    """Return the archive of ``sample`` from the cache, where pip first puts it if need be."""
    cache = os.environ.get('MMATTN_CACHE') or Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache', 'mmattn')
    archive = Path(cache, 'downloads', sample.archive).absolute()
    if archive.exists():
        try:
            check_hash(archive, sample.sha256)
            return archive
        except SampleError as error:
            print(f'{error}; fetching it again')
            archive.unlink()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f'{sample.archive}.part-', dir=archive.parent) as folder:
        requirements = Path(folder, 'requirements.txt')
        requirements.write_text(f'{sample.requirement} --hash=sha256:{sample.sha256}\n')
        backend = Path(folder, 'backend', *sample.backend.split('.')).with_suffix('.py')
        backend.parent.mkdir(parents=True)
        (backend.parent / '__init__.py').touch()
        backend.write_text(BACKEND.format(*sample.requirement.split('==')))
        command = [sys.executable, '-m', 'pip', 'download', '--ignore-requires-python', '--no-deps', '--no-cache-dir']
        command += ['--no-binary', ':all:', '--no-build-isolation', '--dest', folder, '--requirement', requirements]
        print(f'downloading {sample.archive} ({sample.megabytes} MB) to {archive.parent}', flush=True)
        pip = subprocess.run(
            command,
            env=os.environ | {'PYTHONPATH': f'{folder}/backend'},
            stdout=sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL,  # pip draws its progress bar on stdout.
            stderr=subprocess.PIPE,
            text=True,
        )
        if wrong := re.search(r'Expected sha256 (\w+)\s+Got\s+(\w+)', pip.stderr):
            raise SampleError('the index has {} with the wrong hash: expected sha256 {}, got {}'.format(
                sample.archive, *wrong.groups()))
        if pip.returncode:
            # 'ERROR: reason', or 'ERROR: Exception:' and a traceback with 'SomeError: reason' at its end.
            reasons = re.findall(r'^[\w.]*error: (?!Exception:).+', pip.stderr, re.IGNORECASE | re.MULTILINE)
            reasons = reasons or pip.stderr.strip().splitlines() or ['no message']
            raise SampleError(f'pip cannot download it (--archive takes a copy made elsewhere): {reasons[-1]}')
        os.replace(Path(folder, sample.archive), archive)
    return archive


def find_faults(sample: Sample, out: Path) -> list[str]:
    """List what keeps ``out`` from being the complete sample: images that are missing, broken or too many."""
    wanted = {
        out / kind / part / f'{name}.png'
        for kind in ('img_dir', 'ann_dir')
        for part, names in sample.split.items()
        for name in names
    }
    found = set(out.glob('*_dir/*/*.png'))
    faults = [f'{path.relative_to(out)} is missing' for path in sorted(wanted - found)]
    faults += [f'{path.relative_to(out)} is not part of it' for path in sorted(found - wanted)]
    for path in sorted(wanted & found):
        try:
            with Image.open(path) as image:
                image.verify()
        except (OSError, SyntaxError):  # A wrong checksum in a PNG is a SyntaxError to PIL.
            faults.append(f'{path.relative_to(out)} is broken')
    return faults


def prepare(sample: Sample, out: Path, archive: Path | None = None, overwrite: bool = False) -> None:
    """Make ``out`` the complete sample, from ``archive`` or else from the package index."""
    if out.exists():
        faults = find_faults(sample, out)
        if not faults and not overwrite:
            print(f'{out} is complete already')
            return
        if not overwrite:
            raise SampleError(f'{out} is not complete (faults: {len(faults)}; --overwrite replaces it): {faults[0]}')
        if others := {path.name for path in out.iterdir()} - {'img_dir', 'ann_dir'}:
            raise SampleError(f'{out} also holds {min(others)}, which --overwrite would delete')
    print(f'data: source release {sample.requirement} of the package index\nlicence: {sample.licence}')
    if archive:
        check_hash(archive, sample.sha256)
    else:
        archive = fetch(sample)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f'{out.name}.part-', dir=out.parent) as folder:
        new = Path(folder, 'new')
        sample.convert(archive, new)
        if out.exists():
            out.rename(Path(folder, 'old'))
        new.rename(out)
    print(f'{out}: ' + ', '.join(f'{len(names)} {part}' for part, names in sample.split.items()))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description='Fetch a small sample of real data in the layout of mmseg.')
    parser.add_argument('sample', choices=SAMPLES)
    parser.add_argument('--out-dir', type=Path, help='default: data/SAMPLE')
    parser.add_argument('--archive', type=Path, help='use this copy of the release instead of downloading it')
    parser.add_argument('--overwrite', action='store_true', help='replace an existing output folder')
    args = parser.parse_args(argv)
    out = (args.out_dir or Path('data', args.sample)).resolve()
    try:
        prepare(SAMPLES[args.sample], out, args.archive, args.overwrite)
    except SampleError as error:
        message = str(error)
    except OSError as error:
        message = f'{error.filename or out}: {error.strerror or error}'
    except KeyboardInterrupt:
        message = 'interrupted'
    else:
        return 0
    print(f'error: {message}', file=sys.stderr)
    return 1


if __name__ == '__main__':
    sys.exit(main())
