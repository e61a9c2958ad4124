"""Samples of real data, on tiny releases with the layout of the real ones and without a network."""

import dataclasses
import hashlib
import io
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import init_default_scope
from PIL import Image

from mmattn.utils import config_path

from ..full_disk import full_disk
from ..support.releases import pack
from .conftest import pixels, scripts

(sample_data,) = scripts('sample_data')
ROOT = 'pytorch_segmentation_models_trainer-1.4.0'
DATA = f'{ROOT}/tests/testing_data/data/frame_field_data'
ARCHIVE = f'{ROOT}.tar.gz'
SHEET = 'Ortoimagem_MI_2970-1-SO'
VAL = {f'{SHEET}_{number}' for number in (967, 970, 997, 1045)}
TRAIN = {f'{SHEET}_{number}' for number in (966, 973, 995, 996, 998, 1033, 1036, 1039)}
LICENCE = 'deepforest-2.1.0.dist-info/licenses/LICENSE'
BACKEND = b"""
from pathlib import Path

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = Path(folder, 'pytorch_segmentation_models_trainer-1.4.0.dist-info')
    info.mkdir()
    (info / 'METADATA').write_bytes(Path('PKG-INFO').read_bytes())
    return info.name
"""
IMAGE, MASK = f'{DATA}/images/{SHEET}/{SHEET}_998.tif', f'{DATA}/polygon_masks/{SHEET}_998.tif'


def encoded(array, kind='TIFF'):
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope='module')
def release(tmp_path_factory):
    """The members, the tiles and the path of a small release."""
    rng = np.random.default_rng(0)
    images = {name: rng.integers(256, size=(23, 20, 3), dtype=np.uint8) for name in sorted(TRAIN | VAL)}
    masks = {name: rng.choice(np.uint8([0, 127, 128, 255]), (23, 20)) for name in images}
    files = {
        f'{ROOT}/pyproject.toml': b'[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        f'{ROOT}/backend.py': BACKEND,  # that of the release, hatchling, is on the index
        f'{ROOT}/PKG-INFO': b'Metadata-Version: 2.1\nName: pytorch_segmentation_models_trainer\nVersion: 1.4.0\n',
        f'{DATA}/boundary_masks/{SHEET}_998.tif': encoded(masks[f'{SHEET}_998']),
        **{f'{DATA}/images/{SHEET}/{name}.tif': encoded(image) for name, image in images.items()},
        **{f'{DATA}/polygon_masks/{name}.tif': encoded(mask) for name, mask in masks.items()},
    }
    path = pack(tmp_path_factory.mktemp('index') / ARCHIVE, files)
    return SimpleNamespace(files=files, images=images, masks=masks, path=path)


@pytest.fixture
def env(monkeypatch, tmp_path):
    """An environment in which pip sees only the folder tmp_path/links, still empty."""
    for name in [name for name in os.environ if name.startswith('PIP_')]:
        monkeypatch.delenv(name)
    (tmp_path / 'links').mkdir()
    monkeypatch.setenv('PIP_CONFIG_FILE', os.devnull)
    monkeypatch.setenv('PIP_NO_INDEX', '1')
    monkeypatch.setenv('PIP_FIND_LINKS', (tmp_path / 'links').as_uri())
    monkeypatch.setenv('MMATTN_CACHE', str(tmp_path / 'cache'))


@pytest.fixture
def command(env, monkeypatch, tmp_path, release, capfd):
    """Run the command; return its exit code, stdout and stderr. The hash of ``right`` is right, by default that of the
    archive; that of None is the published one.
    """

    def run(*args, archive=None, right=..., name='buildings'):
        right = archive if right is ... else right
        if right:
            sample = dataclasses.replace(sample_data.SAMPLES[name], sha256=sha256(right))
            monkeypatch.setitem(sample_data.SAMPLES, name, sample)
        args = [*args, *(['--archive', archive] if archive else [])]
        code = sample_data.main([name, '--out-dir', str(tmp_path / 'data' / 'out'), *map(str, args)])
        return code, *capfd.readouterr()

    return run


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def failure(result):
    """The message of a run that failed as it should: one line on stderr."""
    code, _, stderr = result
    (line,) = stderr.splitlines()
    assert (code, line[:7]) == (1, 'error: ')
    return line


def leftovers(tmp_path):
    """Whatever was left in the folder of OUT or in the cache."""
    return [*tmp_path.glob('data/*'), *tmp_path.glob('cache/downloads/*')]


def content(folder):
    return {path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob('*.png')}


def test_pixels_indices_and_split(command, release, tmp_path):
    assert command(archive=release.path)[::2] == (0, '')
    out = tmp_path / 'data' / 'out'
    for part, names in ('train', TRAIN), ('val', VAL):
        for name in names:
            np.testing.assert_array_equal(pixels(out / 'img_dir' / part / f'{name}.png'), release.images[name])
            mask = pixels(out / 'ann_dir' / part / f'{name}.png')
            assert mask.dtype == np.uint8
            np.testing.assert_array_equal(mask, release.masks[name] > 127)
    assert (len(TRAIN), len(VAL), len(content(out))) == (8, 4, 24)
    assert leftovers(tmp_path) == [out]


SAMPLES = ['buildings', 'trees']


@pytest.fixture
def sample(name, release, wheel):
    """The small release of the sample that the test names."""
    return release if name == 'buildings' else wheel


@pytest.mark.parametrize(
    ('name', 'fault', 'words'),
    [
        *((name, share, ['{archive}']) for name in SAMPLES for share in (0, 0.5, 0.99)),
        ('buildings', {IMAGE: None}, [IMAGE.removeprefix(f'{DATA}/')]),
        ('buildings', {MASK: None}, [MASK.removeprefix(f'{DATA}/')]),
        ('buildings', {MASK: encoded(np.zeros((23, 21), np.uint8))}, [Path(IMAGE).name, '(20, 23)', '(21, 23)']),
        *(('trees', {f'deepforest/data/{name}': None}, [name]) for name in ('OSBS_029.png', 'SOAP_061.xml')),
        ('trees', {LICENCE: None}, [LICENCE]),
        *((name, 'another hash', ['{archive}', '{got}', '{expected}']) for name in SAMPLES),
    ],
)
def test_faults_of_archives(command, sample, tmp_path, name, fault, words):
    archive, whole = tmp_path / sample.path.name, sample.path.read_bytes()
    if isinstance(fault, dict):
        files = sample.files | fault
        pack(archive, {path: data for path, data in files.items() if data is not None})
    else:
        archive.write_bytes(whole + b' ' if isinstance(fault, str) else whole[: int(fault * len(whole))])
    message = failure(command(archive=archive, right=sample.path if isinstance(fault, str) else ..., name=name))
    hashes = dict(archive=archive, got=sha256(archive), expected=sha256(sample.path))
    assert all(word.format(**hashes) in message for word in words)
    assert not leftovers(tmp_path)


@pytest.mark.parametrize('by_pip', [False, True])
def test_full_disk(command, release, tmp_path, by_pip):
    (tmp_path / 'links' / ARCHIVE).write_bytes(release.path.read_bytes())
    with full_disk(1000):  # an image takes about 1400 bytes, the release more
        message = failure(command(archive=None if by_pip else release.path, right=release.path))
    assert 'File too large' in message
    assert ('pip cannot' in message) == by_pip
    assert not leftovers(tmp_path)


@pytest.mark.parametrize(('name', 'size', 'licence'), [('buildings', '78 MB', 'GPL-2'), ('trees', '21 MB', 'MIT')])
def test_pip_fetches_into_the_cache(command, sample, tmp_path, name, size, licence):
    """What is there with a wrong hash is fetched again; the third run needs no index."""
    cached = tmp_path / 'cache' / 'downloads' / sample.path.name
    cached.parent.mkdir(parents=True)
    cached.write_text('something else')
    link = tmp_path / 'links' / sample.path.name
    link.write_bytes(sample.path.read_bytes())
    code, stdout, stderr = command(right=sample.path, name=name)
    assert (code, stderr) == (0, '')
    assert all(text in stdout for text in ('wrong hash', sample.path.name, size, licence))
    assert cached.read_bytes() == sample.path.read_bytes()
    out = tmp_path / 'data' / 'out'
    assert sorted(leftovers(tmp_path)) == [cached, out]

    link.unlink()
    before = content(out)
    assert command(right=sample.path, name=name)[::2] == (0, '')  # what is complete is left alone
    assert content(out) == before
    out.rename(tmp_path / 'first')
    assert command(right=sample.path, name=name)[::2] == (0, '')
    assert content(out).keys() == content(tmp_path / 'first').keys()


@pytest.mark.parametrize('name', SAMPLES)
@pytest.mark.parametrize('index', ['another file', 'no file', 'no build tool'])
def test_faults_of_the_index(command, sample, tmp_path, name, index):
    link, right, words = tmp_path / 'links' / sample.path.name, None, ['--archive']
    if index == 'another file':
        link.write_bytes(sample.path.read_bytes())
        words = [sample_data.SAMPLES[name].sha256, sha256(sample.path)]
    elif index == 'no file':
        words.append(sample_data.SAMPLES[name].requirement)
    elif name == 'buildings':
        project = sample.files[f'{ROOT}/pyproject.toml'].replace(b'[]', b'["hatchling"]')
        right = pack(link, sample.files | {f'{ROOT}/pyproject.toml': project})
        words.append('hatchling')
    message = failure(command(right=right, name=name))
    assert all(word in message for word in words)
    assert not leftovers(tmp_path)


@pytest.mark.parametrize(
    ('name', 'path', 'fault'),
    [
        ('buildings', f'ann_dir/val/{SHEET}_970.png', 'missing'),
        ('buildings', f'ann_dir/val/{SHEET}_970.png', 'broken'),
        ('trees', 'ImageSets/Main/val.txt', 'missing'),
        ('trees', 'LICENSE', 'missing'),
        ('trees', 'JPEGImages/2019_YELL_2_541000_4977000_image_crop_11.jpg', 'broken'),
        ('trees', 'Annotations/2019_YELL_2_541000_4977000_image_crop_11.xml', 'broken'),
    ],
)
def test_overwrite_repairs(command, sample, tmp_path, name, path, fault):
    command(archive=sample.path, name=name)
    out = tmp_path / 'data' / 'out'
    if fault == 'missing':
        (out / path).unlink()
    else:
        (out / path).write_bytes((out / path).read_bytes()[:-20])
    before = content(out)
    message = failure(command(archive=sample.path, name=name))
    assert f'{path} is {fault}' in message
    assert '--overwrite' in message
    wrong = pack(tmp_path / 'wrong.tar.gz', {})
    assert str(wrong) in failure(command('--overwrite', archive=wrong, right=sample.path, name=name))
    assert content(out) == before
    assert command('--overwrite', archive=sample.path, name=name)[::2] == (0, '')
    assert sample_data.missing_or_broken(sample_data.SAMPLES[name], out) == []
    assert leftovers(tmp_path) == [out]


@pytest.mark.parametrize('name', ['notes.txt', 'img_dir/train/mine.png', 'img_dir/.hidden'])
def test_overwrite_spares_other_files(command, release, tmp_path, name):
    """Also those in the folders of a sample, which are the layout of every data set of mmseg."""
    command(archive=release.path)
    mine = tmp_path / 'data' / 'out' / name
    mine.write_text('mine')
    next((tmp_path / 'data' / 'out' / 'ann_dir/val').iterdir()).unlink()  # the sample has a fault
    assert name in failure(command('--overwrite', archive=release.path))
    assert mine.read_text() == 'mine'


TREES = 'deepforest-2.1.0-py3-none-any.whl'
TRAIN_TREES, VAL_TREES = '2019_YELL_2_528000_4978000_image_crop2', '2019_YELL_2_541000_4977000_image_crop'


def gradient(width, height):
    y, x = np.mgrid[:height, :width] / 63
    return np.uint8(255 * np.stack([x, y, (x + y) / 2], 2))


def voc(*boxes):
    objects = ''.join(
        f'<object><name>{name}</name><bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox>'
        '</object>'
        for name, x1, y1, x2, y2 in boxes
    )
    return f'<annotation><filename>any.tif</filename>{objects}</annotation>'


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    """The members, the images and the path of a small wheel; the tiles of the val image are 10x8 pixels."""
    sizes = {TRAIN_TREES: (62, 50), VAL_TREES: (30, 24), 'OSBS_029': (13, 12), 'SOAP_061': (12, 13), 'SOAP_031': (9, 9)}
    images = {name: gradient(*size) for name, size in sizes.items()}
    boxes = {
        TRAIN_TREES: [('Tree', 1, 1, 62, 50), ('Tree', 22, 26, 24, 28)],
        VAL_TREES: [
            ('Tree', 1, 1, 10, 8),  # all of the first tile
            ('Tree', 9, 2, 12, 5),  # half in each of two tiles
            ('Tree', 8, 10, 11, 12),  # three quarters in one
            ('Tree', 19, 7, 22, 10),  # a quarter in each of four
            ('Tree', 29, 23, 30, 24),  # to the last pixel
            ('Tree', 28, 20, 33, 21),  # half in the image
            ('Tree', 5, 20, 4, 22),  # no area
        ],
        'OSBS_029': [('Tree', 1, 2, 13, 12)],
        'SOAP_061': [('Dead', 2, 2, 5, 6), ('Alive', 7, 3, 12, 13)],
    }
    files = {
        'deepforest-2.1.0.dist-info/METADATA': 'Metadata-Version: 2.1\nName: deepforest\nVersion: 2.1.0\n',
        'deepforest-2.1.0.dist-info/WHEEL': 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n',
        'deepforest-2.1.0.dist-info/RECORD': '',
        LICENCE: 'MIT License',
        **{f'deepforest/data/{name}.xml': voc(*trees) for name, trees in boxes.items()},
        **{f'deepforest/data/{name}.png': encoded(image, 'PNG') for name, image in images.items()},
    }
    path = pack(tmp_path_factory.mktemp('index') / TREES, files)
    return SimpleNamespace(files=files, images=images, path=path)


def read_trees(out, monkeypatch):
    """{part: {tile: boxes}}, as mmdet reads them by the shipped config."""
    from mmdet.registry import DATASETS

    init_default_scope('mmdet')
    monkeypatch.setenv('TREES_ROOT', str(out))
    cfg = Config.fromfile(config_path('_base_/datasets/trees.py'))
    cfg.train_dataloader.dataset.filter_cfg.min_size = 0
    parts = {}
    for part in 'train', 'val':
        dataset = DATASETS.build(cfg[f'{part}_dataloader'].dataset)
        infos = [dataset.get_data_info(i) for i in range(len(dataset))]
        for info in infos:
            with Image.open(info['img_path']) as image:
                assert image.size == (info['width'], info['height'])
            assert all(tree['bbox_label'] == tree['ignore_flag'] == 0 for tree in info['instances'])
        parts[part] = {info['img_id']: [tree['bbox'] for tree in info['instances']] for info in infos}
    return parts


def test_trees_in_tiles(command, wheel, tmp_path, monkeypatch):
    code, stdout, stderr = command(archive=wheel.path, name='trees')
    assert (code, stderr) == (0, '')
    assert stdout.endswith('38 train, 9 val\n')
    out = tmp_path / 'data' / 'out'
    assert (out / 'LICENSE').read_text() == 'MIT License'
    trees = read_trees(out, monkeypatch)
    assert trees['val'] == {
        f'{VAL_TREES}_{tile}': boxes
        for tile, boxes in {  # counted from 0
            **{key: [] for key in ('02', '11', '12', '20', '21')},
            '00': [[0, 0, 9, 7], [8, 1, 9, 4]],
            '01': [[0, 1, 1, 4]],
            '10': [[7, 1, 9, 3]],
            '22': [[8, 6, 9, 7], [7, 3, 9, 4]],
        }.items()
    }
    assert trees['train'] == {  # without the tiles that have none
        f'{TRAIN_TREES}_32': [[1, 0, 3, 2]],
        'OSBS_029_00': [[0, 1, 12, 11]],
        'SOAP_061_00': [[1, 1, 4, 5], [6, 2, 11, 12]],
    }
    truncated = [
        (out / 'Annotations' / f'{VAL_TREES}_{tile}.xml').read_text().count('<truncated>1')
        for tile in ('00', '01', '10', '22')
    ]
    assert truncated == [1, 1, 1, 1]
    assert leftovers(tmp_path) == [out]


def test_tiles_of_trees_make_up_the_images(command, wheel, tmp_path):
    command(archive=wheel.path, name='trees')
    folder = tmp_path / 'data' / 'out' / 'JPEGImages'
    for name, cells in (TRAIN_TREES, 6), (VAL_TREES, 3), ('OSBS_029', 1), ('SOAP_061', 1):
        tiles = [[pixels(folder / f'{name}_{y}{x}.jpg').astype(int) for x in range(cells)] for y in range(cells)]
        assert abs(np.vstack([*map(np.hstack, tiles)]) - wheel.images[name]).max() < 8
