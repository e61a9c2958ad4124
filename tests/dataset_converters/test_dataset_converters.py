"""The converters of face-parsing sets and of colour-coded masks, on tiny releases in the published layout."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmseg.models import MobileNetV2
from PIL import Image

from common.face_alignment import fit_similarity
from common.segmentation import cut_images
from mmattn.segmentation.face_parsing import HELENDataset

from ..engine.test_tools import ROOT, SMALL
from ..support import releases
from ..support.releases import pack, photo, save
from .conftest import content, pixels, scripts
from .test_face_alignment import apply

camvid, color_labels, fasseg, helen, lfw_pl = scripts('camvid', 'color_labels', 'fasseg', 'helen', 'lfw_pl')
SIZE = (20, 26)  # height, width
HELEN_LISTS = {'exemplars.txt': ['11_1', '12_1', '13_2'], 'tuning.txt': ['21_1', '22_1'], 'testing.txt': ['31_1']}
LFW_LISTS = {
    'parts_train.txt': [('Ann_Lee', 1), ('Ann_Lee', 12), ('Jo-Jo_K', 3)],
    'parts_validation.txt': [('Bo', 1)],
    'parts_test.txt': [('Cy_D', 2)],
}
HELEN_NAMES, LFW_NAMES = ([*chain(*lists.values())] for lists in (HELEN_LISTS, LFW_LISTS))
PALETTE = ['none:0,0,0', 'skin:255,255,0', 'hair:127,0,0', 'skin:250,200,0']


@pytest.fixture
def helen_release(tmp_path):
    """The folder of a release whose probabilities are random."""
    root = tmp_path / 'SmithCVPR2013_dataset_resized'
    releases.helen(root, HELEN_LISTS)
    return root


@pytest.fixture
def lfw_release(tmp_path):
    """The arguments for a release with random labels, and a photograph that no list has."""
    save(tmp_path / 'lfw_funneled/Un_Listed/Un_Listed_0001.jpg', photo(9))
    return releases.lfw_pl(tmp_path, LFW_LISTS)


@pytest.fixture
def masks(tmp_path):
    """The arguments for images and exact masks in two subfolders."""
    for seed, name in enumerate(('train/a', 'train/b.c', 'val/a')):
        save(tmp_path / 'images' / f'{name}.jpg', photo(seed))
        colours = np.uint8([[0, 0, 0], [255, 255, 0], [127, 0, 0], [250, 200, 0]])
        save(tmp_path / 'masks' / f'{name}.bmp', colours[np.random.default_rng(seed).integers(0, 4, SIZE)])
    return ['--images', tmp_path / 'images', '--masks', tmp_path / 'masks', '--palette', *PALETTE]


def written_labels(path, palette):
    with Image.open(path) as image:
        assert image.mode == 'P'
        assert image.getpalette()[: 3 * len(palette)] == [*chain(*palette)]
        assert image.getpalette()[3 * 254 :] == [0, 0, 0, 255, 255, 255]  # 255 is white
    return pixels(path)


def packed(archive, folder, prefix):
    """A folder in an archive, below ``prefix``."""
    return pack(archive, {f'{prefix}/{name}': data for name, data in content(folder).items()})


# What is written.


def test_helen(command, helen_release, out, tmp_path):
    source = packed(tmp_path / 'release.zip', helen_release, 'above/SmithCVPR2013_dataset_resized')
    code, _, said = command(helen, source, '--allow-other-counts')
    assert (code, len(said)) == (0, 3)
    for part, names in zip(('train', 'val', 'test'), HELEN_LISTS.values()):
        assert sorted(path.stem for path in (out / 'img_dir' / part).iterdir()) == names
        for name in names:
            soft = np.stack([pixels(helen_release / f'labels/{name}/{name}_lbl{i:02}.png') for i in range(11)])
            labels = written_labels(out / f'ann_dir/{part}/{name}.png', HELENDataset.METAINFO['palette'])
            np.testing.assert_array_equal(labels, soft.argmax(0))
            assert labels[0, :2].tolist() == [0, 0]
            image = out / f'img_dir/{part}/{name}.jpg'
            assert image.read_bytes() == (helen_release / f'images/{name}.jpg').read_bytes()
    assert sorted(path.name for path in out.iterdir()) == ['ann_dir', 'converted.txt', 'img_dir']


def test_camvid(command, out, tmp_path):
    """Label 11 becomes 255; the images are compressed."""
    releases.camvid(tmp_path / 'release', train=3, val=2, test=1)
    code, _, said = command(camvid, tmp_path / 'release', '--allow-other-counts')
    assert (code, len(said)) == (0, 3)
    for split, count in (('train', 3), ('val', 2), ('test', 1)):
        assert len([*(out / 'img_dir' / split).iterdir()]) == count
        for i in range(count):
            labels = pixels(tmp_path / f'release/CamVid/{split}annot/0016E5_{i:05}.png')
            with Image.open(out / f'ann_dir/{split}/0016E5_{i:05}.png') as written:
                assert written.getpalette()[33 - 6 : 33] == [64, 64, 0, 0, 128, 192]
                np.testing.assert_array_equal(np.array(written), [[255 if x == 11 else x for x in y] for y in labels])
            image = Image.open(out / f'img_dir/{split}/0016E5_{i:05}.jpg')
            assert np.abs(np.array(image) - photo(i).astype(float)).mean() < 10


def test_fasseg(command, out, tmp_path):
    """Persons are in one split, photographs without labels in none; between two colours, the nearer one counts."""
    releases.fasseg(tmp_path / 'release', (1, 7, 8), height=20)
    source, labels = tmp_path / 'release', tmp_path / 'release/V3/Train_labels'
    smoothed = pixels(labels / '-30/personne01144+0-30.bmp')
    smoothed[1, :2] = (240, 20, 10), (200, 230, 30)
    save(labels / '-30/personne01144+0-30.bmp', smoothed)
    save(labels / '0/personne01146+0+0.bmp', smoothed[:, 1:])
    (source / 'V3/README.md').touch()
    code, _, said = command(fasseg, source)
    assert code == 0
    assert 'personne01146+0+0.bmp: 47×20, left out' in said[0]
    assert [line.split()[1] for line in said[1:]] == ['train:', 'val:', 'test:']
    assert set(content(out / 'ann_dir')) == {
        *('train/m30_personne01144p0m30.png', 'train/p30_personne01148p0p30.png'),
        *(f'val/{name}.png' for name in ('m30_personne07144p0m30', '0_personne07146p0p0', 'p30_personne07148p0p30')),
        *('test/m30_personne08144p0m30.png', 'test/p30_personne08148p0p30.png'),
    }
    assert {name.replace('.jpg', '.png') for name in content(out / 'img_dir')} == set(content(out / 'ann_dir'))
    expected = np.kron(np.random.default_rng(1).integers(0, 6, (5, 6)), np.ones((4, 8), int))
    expected[0, :6] = range(6)
    expected[1, :2] = 0, 1
    written = pixels(out / 'ann_dir/train/m30_personne01144p0m30.png')
    assert written.shape == (256, 614)
    nearest = [((np.arange(n) + 0.5) * m / n).astype(int) for n, m in zip(written.shape, (20, 48))]
    np.testing.assert_array_equal(written, expected[np.ix_(*nearest)])


def test_lfw_pl(command, lfw_release, out):
    assert command(lfw_pl, *lfw_release)[0] == 0
    names = 'train/Ann_Lee_0001', 'train/Ann_Lee_0012', 'train/Jo-Jo_K_0003', 'val/Bo_0001', 'test/Cy_D_0002'
    assert set(content(out / 'img_dir')) == {f'{name}.jpg' for name in names}
    for seed, name in ((0, 'train/Ann_Lee_0001'), (1, 'train/Ann_Lee_0012'), (0, 'test/Cy_D_0002')):
        labels = written_labels(out / 'ann_dir' / f'{name}.png', [[0, 0, 255], [0, 255, 0], [255, 0, 0]])
        np.testing.assert_array_equal(labels, np.random.default_rng(seed).integers(0, 3, SIZE))


def test_colors(command, masks, out):
    code, said, _ = command(color_labels, *masks)
    assert code == 0
    colours = [[0, 0, 0], [255, 255, 0], [127, 0, 0]]
    assert f"metainfo = dict(classes=('none', 'skin', 'hair'), palette={colours})" in said
    assert set(content(out)) == {
        f'{kind}/{name}{suffix}'
        for name in ('train/a', 'train/b.c', 'val/a')
        for kind, suffix in (('img_dir', '.jpg'), ('ann_dir', '.png'))
    }
    for seed, name in enumerate(('train/a', 'train/b.c', 'val/a')):
        labels = written_labels(out / 'ann_dir' / f'{name}.png', colours)
        np.testing.assert_array_equal(labels, np.array([0, 1, 2, 1])[np.random.default_rng(seed).integers(0, 4, SIZE)])


def test_nearest_colours(command, fails, masks, out):
    """Of a mask that was compressed with loss; the colours are compared one by one."""
    palette = np.array([[0, 0, 0], [255, 255, 0], [127, 0, 0], [250, 200, 0]])
    mask = photo(5)
    mask[:4] = palette[1] - [3, 4, 0]
    masks[3].joinpath('train/a.bmp').unlink()
    save(masks[3] / 'train/a.png', mask)
    distance = np.linalg.norm(mask[:, :, None] - palette[None, None], axis=-1)
    assert (distance[:4].min(-1) == 5).all()
    expected = np.array([0, 1, 2, 1])[distance.argmin(-1)]

    assert command(color_labels, *masks, '--max-distance', 500)[0] == 0
    np.testing.assert_array_equal(pixels(out / 'ann_dir/train/a.png'), expected)
    assert command(color_labels, *masks, '--max-distance', 5, '--ignore-unknown', '--overwrite')[0] == 0
    known = distance.min(-1) <= 5
    np.testing.assert_array_equal(pixels(out / 'ann_dir/train/a.png'), np.where(known, expected, 255))
    assert (~known).any()

    [line] = fails(color_labels, *masks, '--max-distance', 5, '--overwrite')
    unknown = {','.join(map(str, colour)) for colour in mask[~known].tolist()}
    figures = (~known).sum(), f'{distance.min(-1).max():.1f}', len(unknown) - 5
    assert all(f' {figure} ' in line for figure in figures)
    assert len(set(line.rpartition('nearest: ')[2].split('; ')) & unknown) == 5


@pytest.mark.parametrize('mode', ['1', 'L', 'LA', 'P', 'RGB', 'RGBA', 'I;16'])
def test_binary_masks_of_every_kind(command, tmp_path, out, mode):
    """White is 255 in 8 bits, and in 16."""
    truth = np.random.default_rng(0).integers(0, 2, SIZE).astype(np.uint8)
    save(tmp_path / 'images/a.jpg', photo(0))
    (tmp_path / 'masks').mkdir()
    if mode == 'P':
        mask = Image.fromarray(truth)
        mask.putpalette([0, 0, 0, 255, 255, 255])
    elif mode == 'I;16':
        mask = Image.fromarray(truth * np.uint16(65535))
    else:
        mask = Image.fromarray(truth * 255).convert(mode)
    mask.save(tmp_path / 'masks/a.png')
    with Image.open(tmp_path / 'masks/a.png') as image:
        assert image.mode == mode
    palette = ['--palette', 'background:0,0,0', 'building:255,255,255']
    assert command(color_labels, '--images', tmp_path / 'images', '--masks', tmp_path / 'masks', *palette)[0] == 0
    np.testing.assert_array_equal(pixels(out / 'ann_dir/a.png'), truth)


def test_what_is_left_out_or_never_seen_is_a_warning(command, masks):
    (masks[1] / 'train/a.heic').write_bytes(b'')
    said = command(color_labels, *masks, 'sky:0,0,255')[2]
    assert 'a.heic' in said[0]
    assert 'sky' in said[1]


# Training and validation.


@pytest.fixture
def photos(tmp_path):
    """The arguments for photographs of unequal sizes, with binary masks."""
    for seed in range(6):
        height, width = 40 + 3 * seed, 60 - 4 * seed
        truth = np.kron(np.random.default_rng(seed).integers(0, 2, (2, 2)), np.ones((height, width)))[::2, ::2]
        truth.flat[:2] = 0, 1
        save(tmp_path / f'images/day {seed % 2}/IMG_{seed}.JPG', photo(seed, truth.shape), format='JPEG')
        save(tmp_path / f'masks/day {seed % 2}/IMG_{seed}.png', np.uint8(truth * 255))
    palette = ['--palette', tmp_path / 'palette.txt']
    (tmp_path / 'palette.txt').write_text('\ufeffbackground:0,0,0\nstraße:255,255,255\n', encoding='utf-8')
    return ['--images', tmp_path / 'images', '--masks', tmp_path / 'masks', *palette, '--val-fraction', 0.3]


def test_images_are_divided_by_name(command, photos, out):
    """The same names and seed are the same choice."""
    code, said, _ = command(color_labels, *photos)
    assert code == 0
    assert any('4 images are for training, 2 for validation' in line for line in said)
    files = set(content(out))
    images = {Path(name) for name in files if name.startswith('img_dir/')}
    assert {path.relative_to(*path.parents[-3:-2]) for path in images} == {
        Path(f'day {i % 2}/IMG_{i}.JPG') for i in range(6)
    }
    masks = {f'ann_dir/{path.relative_to("img_dir").with_suffix(".png").as_posix()}' for path in images}
    assert files == {path.as_posix() for path in images} | masks | {'config.py'}
    before = content(out)
    command(color_labels, *photos, '--overwrite')
    assert content(out) == before
    command(color_labels, *photos, '--overwrite', '--seed', 1)
    assert set(content(out)) != files


def test_one_format_may_have_several_suffixes(command, photos, out, tmp_path):
    """Which mmseg, that reads one, would leave out."""
    assert command(color_labels, *photos)[0] == 0
    expected = {name.replace('.JPG', '.jpg') for name in content(out)}
    for seed, suffix in enumerate(('.jpg', '.jpeg', '.JPEG')):
        picture = tmp_path / f'images/day {seed % 2}/IMG_{seed}.JPG'
        picture.rename(picture.with_suffix(suffix))
    assert command(color_labels, *photos, '--overwrite')[0] == 0
    assert {*content(out)} == expected
    assert Config.fromfile(out / 'config.py').train_dataloader.dataset.img_suffix == '.jpg'


def test_pixels_without_data_are_ignored(command, out, tmp_path):
    image = photo(0, (8, 9))
    image[2, 3:5] = 200
    image[6, 0, 1] = 200  # one channel
    save(tmp_path / 'images/a.tif', image, tiffinfo={42113: '200'})
    save(tmp_path / 'masks/a.png', np.zeros((8, 9), np.uint8))
    folders = '--images', tmp_path / 'images', '--masks', tmp_path / 'masks'
    assert command(color_labels, *folders, '--palette', 'a:0,0,0')[0] == 0
    assert np.argwhere(np.array(Image.open(out / 'ann_dir/a.png')) == 255).tolist() == [[2, 3], [2, 4]]


def test_an_image_may_be_called_as_a_piece_of_another_one(tmp_path):
    for value, name in enumerate(('a', 'a_0_0', 'a_0_0_0_0')):
        for folder, shape in ('img_dir', (6, 5, 3)), ('ann_dir', (6, 5)):
            path = tmp_path / folder / 'train' / f'{name}.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            image = Image.fromarray(np.full(shape, value, np.uint8))
            if folder == 'ann_dir':
                image.putpalette([0] * 768)
            image.save(path)
    cut_images(tmp_path, 2)
    for folder in ('img_dir', 'ann_dir'):
        assert [path.name for path in (tmp_path / folder).iterdir()] == ['train']
        values = {path.stem: pixels(path) for path in (tmp_path / folder / 'train').iterdir()}
        assert len(values) == 3 * 4
        for value, name in enumerate(('a', 'a_0_0', 'a_0_0_0_0')):
            assert all((values[f'{name}_{y}_{x}'] == value).all() for y in (0, 2) for x in (0, 1))


def test_the_printed_command_is_that_of_the_tools_that_were_copied(monkeypatch, tmp_path):
    copy = shutil.copytree(ROOT / 'tools/dataset_converters/common', tmp_path / 'mine/dataset_converters/common')
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, '-c', 'from common.conversion import *; print(train_command(Path("a b/config.py")))']
    environment = {**os.environ, 'PYTHONPATH': f'{copy.parent}{os.pathsep}{ROOT}'}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "python mine/train.py 'a b/config.py'\n"


@pytest.mark.e2e
def test_photographs_train_with_the_command_that_is_printed(run, command, photos, out, tmp_path):
    """And the data may move, with their config and the weights that it starts from, which do not change."""
    weights = MobileNetV2().state_dict()
    torch.save(weights, tmp_path / 'weights.pth')
    *_, printed = command(color_labels, *photos, '--pretrained', tmp_path / 'weights.pth')[1]
    python, tool, config = shlex.split(printed)
    assert (python, tool, config) == ('python', 'tools/train.py', str(out / 'config.py'))
    config = out.rename(tmp_path / 'moved') / 'config.py'
    small = [option for option in SMALL if 'model' not in option and 'crop_size' not in option]
    options = ['--work-dir', tmp_path / 'work', '--cfg-options', *small, 'val_dataloader.num_workers=0']
    options += ['val_dataloader.persistent_workers=False']
    log = run(sys.executable, ROOT / tool, config, *options)
    assert re.search(r'straße\W+[\d.]+', log)
    trained = torch.load(tmp_path / 'work/iter_2.pth', weights_only=False)['state_dict']
    assert all(torch.equal(trained[f'backbone.{name}'], value) for name, value in weights.items())
    log = run(sys.executable, ROOT / 'tools/test.py', config, tmp_path / 'work/iter_2.pth', *options)
    assert re.search(r'mIoU: [\d.]+', log)


def test_folders_may_be_links(command, fails, masks, out, tmp_path):
    command(color_labels, *masks, out=tmp_path / 'expected')
    for kind in ('images', 'masks'):
        (tmp_path / kind / 'val').rename(tmp_path / f'{kind} elsewhere')
        (tmp_path / kind / 'val').symlink_to(tmp_path / f'{kind} elsewhere')
    assert command(color_labels, *masks)[0] == 0
    assert content(out) == content(tmp_path / 'expected')


# Alignment. Points are complex numbers.


POINTS = (np.array([-10, 10, 0, -7, 7, 0, -12, 12]) + 1j * np.array([-8, -8, 0, 9, 9, 16, 2, 2])) / 10


def picture(z):
    """A smooth face in colours at the points z."""
    waves = [0.5 + 0.5 * np.cos(2 * z.real + k) * np.cos(1.7 * z.imag - k) for k in range(3)]
    return (20 + 210 * np.stack(waves, -1)).round().astype(np.uint8)


def probabilities(z):
    """Eleven soft labels around centres in the face; the background has what is left."""
    centres = np.concatenate([POINTS, [0.4 + 1.2j, -0.5 - 0.3j]])
    soft = 0.95 * np.exp(-(np.abs(z[..., None] - centres) ** 2) / 0.1)
    soft = np.concatenate([1 - soft.max(-1, keepdims=True), soft], -1)
    return (255 * soft).round().astype(np.uint8)


def grid(width, height):
    return np.arange(width) + 1j * np.arange(height)[:, None]


@pytest.fixture
def turned_faces(helen_release):
    """The same face at several places, turned and scaled; by name, a and b that put it there."""
    rng, placed = np.random.default_rng(4), {}
    for number, name in enumerate(HELEN_NAMES, 1):
        width, height = 130 + 7 * number, 150 - 3 * number
        a = 22 * np.exp(1j * rng.uniform(-0.5, 0.5)) * rng.uniform(0.8, 1.2)
        b = (width + 1j * height) / 2 + complex(*rng.uniform(-6, 6, 2))
        face = (grid(width, height) - b) / a
        save(helen_release / 'images' / f'{name}.jpg', picture(face), quality=100, subsampling=0)
        soft = probabilities(face)
        for i in range(11):
            save(helen_release / 'labels' / name / f'{name}_lbl{i:02}.png', soft[..., i])
        (helen_release / 'points').mkdir(exist_ok=True)
        lines = [name, *(f'{z.real:.9f} , {z.imag:.9f}' for z in (a * POINTS + b).tolist())]
        (helen_release / 'points' / f'{number}.txt').write_text('\n'.join(lines) + '\n\n')
        placed[name] = a, b
    return placed


def check_aligned(out, placed, size):
    """All images are the same face, where the record says that the landmarks' mean is."""
    record = json.loads((out / 'alignment.json').read_text())
    assert record['size'] == size
    mean = np.array(record['mean_shape']) @ [1, 1j]
    back = fit_similarity(mean, POINTS)  # exact: all shapes are the same
    face = apply(back, grid(size, size).ravel()).reshape(size, size)
    expected, labels = picture(face).astype(int), probabilities(face).argmax(-1)
    assert len(record['images']) == len(placed)
    for key, entry in record['images'].items():
        a, b = placed[key.partition('/')[2]]
        np.testing.assert_allclose(apply(np.array(entry['matrix']), a * POINTS + b), mean, atol=1e-6)
        width, height = entry['size']
        source = apply(cv2.invertAffineTransform(np.array(entry['matrix'])), grid(size, size).ravel())
        source = source.reshape(size, size)
        inside = (source.real > 0) & (source.real < width - 1) & (source.imag > 0) & (source.imag < height - 1)
        image = pixels(out / 'img_dir' / f'{key}.jpg').astype(int)
        assert image.shape == (size, size, 3)
        assert np.abs(image - expected)[inside].mean() < (1 if inside.mean() > 0.95 else 2)  # JPEG has edges ring
        found = pixels(out / 'ann_dir' / f'{key}.png')
        assert (found == labels)[inside].mean() > 0.999
        assert set(np.unique(found[inside])) == set(np.unique(labels[inside]))
        outside = (source.real < -1) | (source.real > width) | (source.imag < -1) | (source.imag > height)
        assert (found[outside] == 0).all()
        assert not outside.any() or image[outside].mean() < 10
        assert inside.mean() > 0.95 or outside.mean() > 0.2

        # And the way back, as the record's docstring has it.
        returned = cv2.warpAffine(
            found, np.array(entry['matrix']), (width, height), flags=cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP
        )
        original = probabilities((grid(width, height) - b) / a).argmax(-1)
        covered = apply(np.array(entry['matrix']), grid(width, height).ravel()).reshape(height, width)
        covered = (abs(covered.real - size / 2) < size / 2 - 1) & (abs(covered.imag - size / 2) < size / 2 - 1)
        assert (returned == original)[covered].mean() > 0.97
    assert len({tuple(entry['size']) for entry in record['images'].values()}) > 1


@pytest.mark.parametrize(('landmarks', 'margin'), [('own', 0.3), ('helen', 1.3), ('ibug', 0.3)])
def test_alignment(command, helen_release, turned_faces, out, tmp_path, landmarks, margin):
    points, folder = helen_release / 'points', tmp_path / 'landmarks'
    if landmarks == 'helen':
        points.rename(folder)
        (folder / 'readme.txt').write_text('Not landmarks.\n')
    elif landmarks == 'ibug':
        for name, (a, b) in turned_faces.items():
            lines = [f'{z.real} {z.imag}' for z in (a * POINTS + b).tolist()]
            path = folder / 'trainset' / f'{name}.pts'
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('\n'.join(['version: 1', f'n_points:  {len(lines)}', '{', *lines, '}', '']))
    source = helen_release
    if landmarks == 'own':
        source = pack(tmp_path / 'release.zip', content(helen_release))
    align = ['--align'] if landmarks == 'own' else ['--align', folder]
    code, _, stderr = command(helen, source, *align, '--size', 100, '--margin', margin, '--allow-other-counts')
    assert code == 0, stderr
    check_aligned(out, turned_faces, 100)
    assert {path.name for path in out.iterdir()} == {'img_dir', 'ann_dir', 'alignment.json', 'converted.txt'}
    mean = np.array(json.loads((out / 'alignment.json').read_text())['mean_shape'])
    low, high = mean.min(0), mean.max(0)
    np.testing.assert_allclose((low + high) / 2, 49.5, atol=1e-9)
    np.testing.assert_allclose((high - low).max(), 100 / (1 + 2 * margin), atol=1e-9)


def test_training_faces_alone_make_the_mean_whose_margin_is_half_of_its_side(command, helen_release, turned_faces, out):
    args = [helen, helen_release, '--align', '--size', 64, '--allow-other-counts', '--overwrite']
    command(*args)
    before = json.loads((out / 'alignment.json').read_text())
    assert np.ptp(before['mean_shape'], axis=0).max() == pytest.approx(64 / (1 + 2 * 0.5))
    path = helen_release / 'points/6.txt'  # a test face
    lines = path.read_text().split('\n')
    lines[1], lines[2] = lines[2], lines[1]
    path.write_text('\n'.join(lines))
    command(*args)
    after = json.loads((out / 'alignment.json').read_text())
    assert after['mean_shape'] == before['mean_shape']
    moved = {name for name in after['images'] if after['images'][name] != before['images'][name]}
    assert moved == {'test/31_1'}


def test_alignment_of_lfw_pl(command, lfw_release, out, tmp_path):
    """The labels are warped before they are compared: a straight edge stays straight, whatever the angle."""
    images, labels = lfw_release[1], lfw_release[3]
    for seed, (name, number) in enumerate(LFW_NAMES):
        stem = f'{name}_{number:04}'
        a, b = 20 * np.exp(0.3j * (seed - 2)), 62 + 60j
        face = (grid(125, 125) - b) / a
        truth = np.where(face.imag > 0, 1, np.where(face.imag > -1.3, 2, 0))
        save(labels / f'{stem}.ppm', np.uint8([[0, 0, 255], [0, 255, 0], [255, 0, 0]])[truth])
        save(images / name / f'{stem}.jpg', picture(face))
        (tmp_path / 'points').mkdir(exist_ok=True)
        (tmp_path / 'points' / f'{stem}.txt').write_text(
            ''.join(f'{z.real} {z.imag}\n' for z in (a * POINTS + b).tolist())
        )
    code, _, stderr = command(lfw_pl, *lfw_release, '--align', tmp_path / 'points', '--size', 90, '--margin', 0)
    assert code == 0, stderr
    paths = sorted((out / 'ann_dir').rglob('*.png'))
    assert len(paths) == 5
    found = np.stack([pixels(path) for path in paths])
    mean = np.array(json.loads((out / 'alignment.json').read_text())['mean_shape']) @ [1, 1j]
    face = apply(fit_similarity(mean, POINTS), grid(90, 90).ravel()).reshape(90, 90)
    expected = np.where(face.imag > 0, 1, np.where(face.imag > -1.3, 2, 0))
    assert (found == expected).mean() > 0.99
