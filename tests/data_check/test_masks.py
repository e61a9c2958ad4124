"""A folder with every fault at once, the cache, and the decoders' own idea of size and label."""

import logging
import os
import re
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmcv.transforms import LoadImageFromFile
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from mmengine.runner import Runner
from PIL import Image

from mmattn.data_check import data_sets
from mmattn.data_check import images as image_files
from mmattn.data_check.classes import classes_of_labels
from mmattn.data_check.hook import SHOWN
from mmattn.segmentation import SegDataCheckHook

from ..engine.test_tools import CONFIG, ROOT, SMALL
from ..forked_tools import run_command

CLASSES = 2
SIZE = (40, 48)  # height, width


def write(path, array, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)


def add(root, name, image_size=SIZE, suffix='.png', labels=None, part='train'):
    """Write an image and its mask."""
    rng = np.random.default_rng(len(name))
    write(root / 'img_dir' / part / f'{name}{suffix}', rng.integers(0, 255, (*image_size, 3)).astype(np.uint8))
    mask = rng.integers(0, CLASSES, SIZE).astype(np.uint8)
    mask[0, :2] = 255
    if labels is not None:
        mask = mask.astype(np.uint16 if max(labels) > 255 else np.uint8)
        mask[1, : len(labels)] = labels
    write(root / 'ann_dir' / part / f'{name}.png', mask)


def cut(path, share=0.5):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


@pytest.fixture
def root(tmp_path):
    """Sound data."""
    for i in range(3):
        add(tmp_path / 'data', f'sound_{i}')
    add(tmp_path / 'data', 'sound', part='val')
    return tmp_path / 'data'


def data_set(root, part='train', **options):
    return {
        'type': 'BaseSegDataset',
        'data_root': str(root),
        'img_suffix': '.png',
        'metainfo': dict(classes=[f'class {i}' for i in range(CLASSES)]),
        'data_prefix': dict(img_path=f'img_dir/{part}', seg_map_path=f'ann_dir/{part}'),
        'pipeline': [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')],
        **options,
    }


class FakeRunner:
    """What the hook wants of a Runner."""

    def __init__(self, work_dir, train, val=None, test=None, model=None, val_evaluator=None):
        self.work_dir = str(work_dir)
        parts = dict(train=train, val=val, test=test)
        loaders = {f'{part}_dataloader': dict(dataset=cfg) for part, cfg in parts.items() if cfg}
        self.cfg = Config(dict(model=model, val_evaluator=val_evaluator, **loaders))


@pytest.fixture
def check(tmp_path):
    """Run a fresh hook, at a stage; return ``{path: reasons}`` as in the report, {} if it is content."""
    init_default_scope('mmseg')
    work_dir = tmp_path / 'work'
    work_dir.mkdir()
    report = work_dir / 'data_check.txt'

    def check(*data_sets, stage='before_loops', model=None, val_evaluator=None, **options):
        said = ''
        try:
            runner = FakeRunner(work_dir, *data_sets, model=model, val_evaluator=val_evaluator)
            getattr(SegDataCheckHook(**options), stage)(runner)
        except ValueError as error:
            said = str(error)
        lines = report.read_text(encoding='utf-8').splitlines() if said else []
        assert report.exists() == bool(said)
        assert all(line in said for line in [f'found {len(lines)} fault', *lines][:SHOWN] if lines)
        return dict(line.split(': ', 1) for line in lines)

    check.work_dir = work_dir
    return check


@pytest.fixture
def looked(monkeypatch):
    """The names of the files that are looked into."""
    names = []

    def look(file, original=image_files.look):
        names.append(f'{"mask" if file.is_mask else "image"} {Path(file.path).name}')
        return original(file)

    monkeypatch.setattr(image_files, 'look', look)
    return names


@pytest.fixture
def warned(monkeypatch):
    """What the log says."""
    lines = []
    monkeypatch.setattr(data_sets, 'print_log', lambda text, logger, level: lines.append((level, text)))
    return lines


def spoil(root):
    """Add a file with each fault; return the reason to expect for each, by path in the root."""
    add(root, 'label', labels=[3, 7, 8, 9])
    add(root, 'sixteen', labels=[256])
    add(root, 'smaller', image_size=(SIZE[0], SIZE[1] - 1))
    for name in ('no_mask', 'cut_image', 'cut_mask', 'colours', 'empty_image', 'empty_mask', 'text', 'cut_header'):
        add(root, name)
    (root / 'ann_dir/train/no_mask.png').unlink()
    cut(root / 'img_dir/train/cut_image.png')
    cut(root / 'img_dir/train/cut_header.png', 0.004)
    cut(root / 'ann_dir/train/cut_mask.png')
    write(root / 'ann_dir/train/colours.png', np.zeros((*SIZE, 3), np.uint8))
    (root / 'img_dir/train/empty_image.png').write_bytes(b'')
    (root / 'ann_dir/train/empty_mask.png').write_bytes(b'')
    (root / 'ann_dir/train/text.png').write_text('not an image')
    return {
        'ann_dir/train/label.png': r'labels 3, 7…9 are not among 0…1, 255$',
        'ann_dir/train/sixteen.png': r'labels 256 are not among',
        'ann_dir/train/smaller.png': r'48×40, but its image .*/img_dir/train/smaller\.png 47×40$',
        'img_dir/train/no_mask.png': r'no mask .*/ann_dir/train/no_mask\.png$',
        'img_dir/train/cut_image.png': r'unreadable: .*truncated',
        'img_dir/train/cut_header.png': r'unreadable: ',
        'ann_dir/train/cut_mask.png': r'unreadable: .*truncated',
        'ann_dir/train/colours.png': r'a mask of shape \(40, 48, 3\)',
        'img_dir/train/empty_image.png': r'unreadable: the file is empty$',
        'ann_dir/train/empty_mask.png': r'unreadable: the file is empty$',
        'ann_dir/train/text.png': r'unreadable: ',
    }


def assert_faults(found, expected, root):
    assert {os.path.relpath(path, root) for path in found} == set(expected)
    for path, reason in expected.items():
        assert re.match(reason, found[str(root / path)]), (path, found[str(root / path)])


def test_sound_data_pass_and_leave_no_report(check, root):
    assert check(data_set(root), data_set(root, 'none')) != {}
    assert check(data_set(root), data_set(root, 'val')) == {}


def test_every_fault_is_named_and_nothing_else(check, root):
    expected = spoil(root)
    add(root, 'elsewhere', labels=[4], part='val')
    expected['ann_dir/val/elsewhere.png'] = 'labels 4 '
    assert_faults(check(data_set(root), data_set(root, 'val')), expected, root)


@pytest.mark.parametrize(
    'wrap',
    [
        lambda cfg: dict(type='RepeatDataset', times=2, dataset=cfg),
        lambda cfg: dict(type='ConcatDataset', datasets=[data_set(cfg['data_root'], 'val'), cfg]),
        lambda cfg: dict(type='MultiImageMixDataset', pipeline=[], dataset=dict(type='ConcatDataset', datasets=[cfg])),
        lambda cfg: {**cfg, 'ann_file': str(Path(cfg['data_root'], 'list.txt'))},
    ],
    ids=['repeat', 'concat', 'mix', 'list'],
)
def test_wrappers_and_lists(check, root, wrap):
    expected = spoil(root)
    (root / 'list.txt').write_text(''.join(f'{path.stem}\n' for path in (root / 'img_dir/train').iterdir()))
    assert_faults(check(wrap(data_set(root))), expected, root)


def test_only_some_of_many_are_shown(check, root):
    for i in range(SHOWN + 5):
        add(root, f'bad_{i}', labels=[5])
    with pytest.raises(ValueError, match=f'found {SHOWN + 5} faults') as caught:
        SegDataCheckHook().before_loops(FakeRunner(check.work_dir, data_set(root)))
    assert str(caught.value).count('labels 5 are not among') == SHOWN
    assert str(caught.value).endswith('… and 5 more')
    assert (check.work_dir / 'data_check.txt').read_text().count('labels 5 are not among') == SHOWN + 5


def test_empty_and_missing_are_named_together(check, root):
    (root / 'img_dir/none').mkdir()
    (root / 'list.txt').write_text('')
    add(root, 'label', labels=[5], part='val')
    found = check(
        dict(
            type='ConcatDataset',
            datasets=[
                data_set(root, 'none'),
                data_set(root, ann_file='list.txt'),
                data_set(root, 'nowhere'),
                data_set(root, data_prefix=dict(img_path='img_dir/train')),
                data_set(root, ann_file='no_list.txt'),
            ],
        ),
        data_set(root, 'val'),
    )
    where = 'train_dataloader.dataset.datasets'
    expected = {
        f'{where}.0': 'no image .*png in .*/img_dir/none$',
        f'{where}.1': '.*/list.txt lists no image',
        f'{where}.2': '.*/img_dir/nowhere',
        f'{where}.3': '.*no seg_map_path',
        f'{where}.4': '.*/no_list.txt',
        str(root / 'ann_dir/val/label.png'): 'labels 5 ',
    }
    assert set(found) == set(expected)
    for path, reason in expected.items():
        assert re.match(reason, found[path]), (path, found[path])


def test_a_listed_image_that_is_not_there(check, root):
    (root / 'list.txt').write_text('sound_0\ngone\n')
    found = check(data_set(root, ann_file='list.txt'))
    listed = f"{root}/list.txt lists 'gone' (a line is a name in data_prefix.img_path without .png)"
    expected = f'no such file, but {listed}; no mask {root / "ann_dir/train/gone.png"}'
    assert found == {str(root / 'img_dir/train/gone.png'): expected}


@pytest.mark.parametrize(
    ('line', 'shown'), [('\ufeffsound_0', r"'\ufeffsound_0'"), ('sound_0.png', "'sound_0.png'"), ('  ', "''")]
)
def test_what_a_list_has_is_shown_with_its_odd_characters(check, root, line, shown):
    (root / 'list.txt').write_text(f'{line}\nsound_1\n', encoding='utf-8')
    (reason,) = check(data_set(root, ann_file='list.txt'), allow_absent=['class 1']).values()
    assert f'list.txt lists {shown} (' in reason


def test_images_that_are_listed_twice_or_in_training_and_validation_are_warnings(check, root, warned):
    (root / 'list.txt').write_text('sound_0\nsound_1\nsound_0\n')
    assert check(data_set(root, ann_file='list.txt'), data_set(root)) == {}
    images = f'{root}/img_dir/train'
    assert [text for level, text in warned if level == logging.WARNING] == [
        f'Data check: train_dataloader.dataset lists 1 images more than once, such as {images}/sound_0.png',
        f'Data check: 2 of the 3 images of val_dataloader.dataset are training images, such as {images}/sound_0.png',
    ]


def test_a_mask_in_the_shape_of_an_image_that_is_turned(check, root):
    add(root, 'turned')
    exif = Image.Exif()
    exif[image_files.ORIENTATION] = 6
    path = root / 'img_dir/train/turned.png'
    Image.open(path).save(path, exif=exif)
    (reason,) = check(data_set(root)).values()
    assert reason.endswith('after rotation by its EXIF orientation, if any')


def test_images_of_12_bits_in_16(check, root):
    for name, brightest in (('dark', 4095), ('bright', 65535), ('black', 0)):
        add(root, name)
        write(root / f'img_dir/train/{name}.png', np.full(SIZE, brightest, np.uint16))
    add(root, 'colours')
    cv2.imwrite(str(root / 'img_dir/train/colours.png'), np.full((*SIZE, 3), 1000, np.uint16))
    found = check(data_set(root))
    assert {Path(path).stem: reason.partition(';')[0] for path, reason in found.items()} == {
        'dark': '16 bits per channel with values up to 4095, which loading reduces to at most 15 of 255',
        'colours': '16 bits per channel with values up to 1000, which loading reduces to at most 3 of 255',
    }


def test_a_mask_of_one_line(check, root):
    for kind, shape in (('img_dir', (1, 40, 3)), ('ann_dir', (1, 40))):
        write(root / kind / 'train/line.png', np.zeros(shape, np.uint8))
    (reason,) = check(data_set(root)).values()
    assert reason.startswith('one row or column of 40 pixels')


def test_what_has_not_changed_is_not_looked_at_again(check, root, looked):
    assert check(data_set(root), data_set(root, 'val')) == {}
    assert sorted(looked) == [
        f'{kind} {name}.png' for kind in ('image', 'mask') for name in ('sound', 'sound_0', 'sound_1', 'sound_2')
    ]
    looked.clear()
    assert check(data_set(root), data_set(root, 'val')) == {}
    assert looked == []

    mask = root / 'ann_dir/train/sound_1.png'
    status = mask.stat()
    os.utime(mask, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert check(data_set(root)) == {}
    assert looked == ['mask sound_1.png']
    add(root, 'sound_2', labels=[9])
    looked.clear()
    assert set(check(data_set(root))) == {str(root / 'ann_dir/train/sound_2.png')}
    assert sorted(looked) == ['image sound_2.png', 'mask sound_2.png']
    looked.clear()
    assert set(check(data_set(root))) == {str(root / 'ann_dir/train/sound_2.png')}, 'known, and still a fault'
    fewer = dict(classes=['a'])
    assert len(check(data_set(root, metainfo=fewer))) == 3
    assert looked == [], 'labels are known whatever the classes'
    for i, decoders in enumerate([({}, dict(imdecode_backend='cv2')), (dict(color_type='unchanged'), {})]):
        check(data_set(root))
        looked.clear()
        check(
            data_set(
                root,
                pipeline=[
                    dict(type=kind, **decoder)
                    for kind, decoder in zip(('LoadImageFromFile', 'LoadAnnotations'), decoders)
                ],
            )
        )
        assert {name for name in looked if name.startswith(('image', 'mask')[i])} == set()
        assert len(looked) >= 3, 'another decoder may see another size, or other labels'


def test_faults_of_reading_are_not_kept(check, root, looked):
    """A mended permission, say, changes neither size nor time."""
    cut(root / 'ann_dir/train/sound_1.png')
    check(data_set(root))
    looked.clear()
    assert set(check(data_set(root))) == {str(root / 'ann_dir/train/sound_1.png')}
    assert looked == ['mask sound_1.png']


def test_a_spoilt_cache_is_no_cache(check, root, looked):
    (check.work_dir / 'data_check.json').write_text('{"half": ')
    assert check(data_set(root)) == {}
    assert len(looked) == 6
    assert not list(check.work_dir.glob('*.part'))


def test_a_file_of_two_data_sets_is_named_once(check, root):
    add(root, 'smaller', image_size=(1, 1))
    found = check(data_set(root), data_set(root, metainfo=dict(classes=['a', 'b', 'c'])))
    assert [reasons.count('48×40') for reasons in found.values()] == [1]


def test_the_hook_checks_once(check, root, looked):
    hook, runner = SegDataCheckHook(), FakeRunner(check.work_dir, data_set(root))
    hook.before_loops(runner)
    (check.work_dir / 'data_check.json').unlink()
    hook.before_train(runner)
    assert len(looked) == 6


def test_turned_off(check, root, looked):
    add(root, 'label', labels=[5])
    hook = SegDataCheckHook(enabled=False)
    hook.before_loops(FakeRunner(check.work_dir, data_set(root)))
    hook.before_train(FakeRunner(check.work_dir, data_set(root)))
    assert looked == []


def test_other_readers_and_remote_files_are_left_out(check, root, looked):
    spoil(root)
    other = [dict(type='LoadBiomedicalImageFromFile'), dict(type='LoadBiomedicalAnnotation')]
    assert check(data_set(root, pipeline=other)) == {}
    assert check(data_set(root, data_prefix=dict(img_path='s3://bucket/i', seg_map_path='s3://bucket/m'))) == {}
    assert check(data_set(root, backend_args=dict(backend='petrel'))) == {}
    assert looked == []
    images_only = check(data_set(root, pipeline=[dict(type='LoadImageFromFile')]))
    assert {os.path.relpath(path, root) for path in images_only} == {
        'img_dir/train/cut_image.png',
        'img_dir/train/cut_header.png',
        'img_dir/train/empty_image.png',
    }


def seen_by_training(dataset, label):
    """Whether LoadAnnotations makes a class, or 255, of a label."""
    mask = np.full((4, 4), label, np.uint8)
    path = Path(dataset.data_root, 'one.png')
    write(path, mask)
    results = dict(
        seg_map_path=str(path), seg_fields=[], label_map=dataset.label_map, reduce_zero_label=dataset.reduce_zero_label
    )
    loaded = dataset.pipeline.transforms[1](results)['gt_seg_map'][0, 0]
    return loaded == 255 or loaded < len(dataset.metainfo['classes'])


@pytest.mark.parametrize(
    'options',
    [
        {},
        dict(reduce_zero_label=True),
        dict(type='PotsdamDataset', metainfo=dict(classes=['tree', 'building'])),
        dict(type='PotsdamDataset', metainfo=dict(classes=['car', 'tree']), reduce_zero_label=False),
    ],
    ids=['plain', 'zero', 'zero+map', 'map'],
)
def test_accepted_labels_are_those_that_training_knows(root, options):
    init_default_scope('mmseg')
    dataset = DATASETS.build(data_set(root, **options))
    assert set(classes_of_labels(dataset)) == {label for label in range(256) if seen_by_training(dataset, label)}


def test_a_metric_needs_the_names_of_the_classes(check, root):
    train = data_set(root)
    val = data_set(root, 'val', metainfo=None)
    assert check(train, val) == {}
    faults = check(train, val, val_evaluator=dict(type='IoUMetric'))
    assert faults == {'val_dataloader.dataset.metainfo': 'no classes, which IoUMetric requires'}


def test_classes_that_are_renamed_in_one_part_are_a_warning(check, root, warned):
    renamed = data_set(root, 'val', metainfo=dict(classes=['class 0', 'roof']))
    assert check(data_set(root), renamed) == {}
    said = 'val_dataloader.dataset names classes otherwise than train_dataloader.dataset: roof in place of class 1'
    assert (logging.WARNING, f'Data check: {said}') in warned


def test_labels_of_a_set_without_classes_are_free(root):
    init_default_scope('mmseg')
    dataset = DATASETS.build(data_set(root, metainfo=None))
    assert classes_of_labels(dataset) == {**{label: label for label in range(255)}, 255: None}


@pytest.mark.parametrize('flag', ['color', 'unchanged', 'color_ignore_orientation'])
@pytest.mark.parametrize('backend', ['cv2', 'pillow'])
@pytest.mark.parametrize('suffix', ['jpg', 'png', 'bmp', 'tif', 'webp'])
def test_the_size_is_that_of_the_loaded_image(tmp_path, suffix, backend, flag):
    """For photographs that were taken upright, too."""
    exif = Image.Exif()
    exif[image_files.ORIENTATION] = 6
    path = tmp_path / f'image.{suffix}'
    write(path, np.zeros((4, 7, 3), np.uint8), **({} if suffix == 'bmp' else dict(exif=exif)))
    image = LoadImageFromFile(color_type=flag, imdecode_backend=backend)(dict(img_path=str(path)))['img']
    facts = image_files.look(image_files.ImageFile(str(path), backend, flag))
    assert facts == ((image.shape[1], image.shape[0]), (), '')


@pytest.mark.parametrize('suffix', ['jpg', 'png', 'bmp', 'tif', 'webp', 'gif'])
@pytest.mark.parametrize('share', [0.2, 0.6, 0.98])
def test_files_that_are_cut_short(tmp_path, suffix, share):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8)
    path = tmp_path / f'image.{suffix}'
    write(path, noise)
    whole = path.stat().st_size
    files = [image_files.ImageFile(str(path), 'cv2', 'color'), image_files.ImageFile(str(path), 'pillow', 'color')]
    assert [image_files.look(file).fault for file in files] == ['', '']
    cut(path, share)
    assert path.stat().st_size < whole
    assert all(image_files.look(file).fault.startswith('unreadable: ') for file in files)
    path.write_bytes(path.read_bytes() + bytes(whole - path.stat().st_size))  # space was reserved, but never filled
    if suffix in ('jpg', 'png'):
        assert all(image_files.look(file).fault.startswith('unreadable: ') for file in files)


@pytest.mark.parametrize('backend', ['cv2', 'pillow'])
def test_masks_that_are_cut_short_whatever_decodes_them(tmp_path, backend):
    path = tmp_path / 'mask.png'
    write(path, np.random.default_rng(0).integers(0, 3, (64, 64)).astype(np.uint8))
    file = image_files.ImageFile(str(path), backend, 'unchanged', is_mask=True)
    assert image_files.look(file) == ((64, 64), (0, 1, 2), '')
    cut(path)
    assert image_files.look(file).fault.startswith('unreadable: ')


def test_bytes_behind_the_end_do_no_harm(tmp_path):
    """As some cameras leave them."""
    for suffix in ('jpg', 'png'):
        path = tmp_path / f'image.{suffix}'
        write(path, np.zeros((4, 7, 3), np.uint8))
        path.write_bytes(path.read_bytes() + b'\0' * 20)
        assert cv2.imread(str(path)) is not None
        assert image_files.look(image_files.ImageFile(str(path), 'cv2', 'color')) == ((7, 4), (), '')


def test_masks_of_one_bit_and_with_a_palette(tmp_path):
    labels = np.random.default_rng(0).integers(0, 2, (5, 9)).astype(bool)
    Image.fromarray(labels).save(tmp_path / 'bit.png')
    palette = Image.fromarray(labels.astype(np.uint8) * 5, 'P')
    palette.putpalette([7] * 768)
    palette.save(tmp_path / 'palette.png')
    for name, expected in (('bit', (0, 1)), ('palette', (0, 5))):
        file = image_files.ImageFile(str(tmp_path / f'{name}.png'), 'pillow', 'unchanged', is_mask=True)
        assert image_files.look(file) == ((9, 5), expected, '')


@pytest.mark.parametrize(
    ('mode', 'options', 'said'),
    [
        ('F', {}, 'a TIFF of 32-bit floating point'),
        ('LAB', {}, 'a TIFF of CIE L'),
        ('RGB', dict(save_all=True, append_images=[Image.new('RGB', (7, 4))]), 'a TIFF of 2 pages, of which only'),
        ('RGB', {}, ''),
    ],
)
def test_what_loading_would_change_in_a_tiff_is_a_fault(tmp_path, mode, options, said):
    Image.new(mode, (7, 4)).save(tmp_path / 'image.tif', **options)
    fault = image_files.look(image_files.ImageFile(str(tmp_path / 'image.tif'), 'cv2', 'color')).fault
    assert fault.startswith(said)
    assert bool(fault) == bool(said)


@pytest.mark.parametrize(
    ('tags', 'said'),
    [
        ({}, ''),  # transparency
        ({338: (2, 0)}, 'a TIFF of 4 bands, of which loading keeps 3'),  # another band, such as infrared
        ({262: (2, 1)}, 'a TIFF of 4 bands, of which loading keeps 1'),  # grey and three others, as GDAL writes bands
        ({262: (2, 5)}, ''),  # CMYK
    ],
)
def test_bands_of_a_tiff_that_would_be_dropped_are_a_fault(tmp_path, tags, said):
    path = tmp_path / 'image.tif'
    Image.new('RGBA', (7, 4)).save(path)
    for tag, (before, after) in tags.items():
        entries = [struct.pack('<HHIHH', tag, 3, 1, value, 0) for value in (before, after)]
        assert path.read_bytes().count(entries[0]) == 1
        path.write_bytes(path.read_bytes().replace(*entries))
    fault = image_files.look(image_files.ImageFile(str(path), 'cv2', 'color')).fault
    assert fault.startswith(said)
    assert bool(fault) == bool(said)


# Classes without pixels.


def labels(root, *values, part='train'):
    """Replace all masks of a part: each has the same values."""
    for path in (root / 'ann_dir' / part).iterdir():
        write(path, np.resize(np.uint8(values), SIZE))


def test_masks_of_0_and_255_are_refused_with_the_command_that_converts_them(check, root):
    """Trained as they are, the score of 'class 1' is nan and mIoU 100."""
    labels(root, 0, 255)
    labels(root, 0, 255, part='val')
    found = check(data_set(root), data_set(root, 'val'))
    assert set(found) == {'train_dataloader.dataset', 'val_dataloader.dataset'}
    assert all('its masks contain only 0 and 255' in reason for reason in found.values())
    command = shlex.split(found['train_dataloader.dataset'].partition('convert them: ')[2])
    subprocess.run([sys.executable, ROOT / command[1], *command[2:]], check=True, capture_output=True, timeout=100)
    assert command[command.index('--out-dir') + 1] == f'{root}_labels'
    done = Path(f'{root}_labels')
    assert check(data_set(done), data_set(done, 'val')) == {}
    assert set(np.unique(Image.open(done / 'ann_dir/val/sound.png'))) == {0, 1}


def test_one_data_set_of_0_and_255_among_others(check, root):
    """Its class is in the other data sets, but a score on it would count nothing as a building."""
    labels(root, 0, 255, part='val')
    for sets in [
        (data_set(root), data_set(root, 'val')),
        (dict(type='ConcatDataset', datasets=[data_set(root), data_set(root, 'val')]),),
    ]:
        (reason,) = check(*sets).values()
        assert 'contain only 0 and 255' in reason
    found = check(data_set(root), None, data_set(root, 'val'), stage='before_test')
    assert set(found) == {'test_dataloader.dataset'}
    assert check(data_set(root), data_set(root, 'val'), allow_absent=['class 1']) == {}


@pytest.mark.parametrize(
    ('values', 'options', 'absent'),
    [
        ((0,), {}, 'class 1'),
        ((1, 255), {}, 'class 0'),
        ((0, 1), dict(reduce_zero_label=True), 'class 1'),
        ((1, 2), dict(reduce_zero_label=True), ''),
        ((3,), dict(type='PotsdamDataset', metainfo=dict(classes=['tree', 'car']), reduce_zero_label=False), 'car'),
        ((3, 4), dict(type='PotsdamDataset', metainfo=dict(classes=['tree', 'car']), reduce_zero_label=False), ''),
        ((0, 7), dict(metainfo=None), ''),
        ((0, 2, 254), dict(metainfo=dict(classes=['a', 'b', 'c']), ignore_index=254), 'b'),
    ],
)
def test_a_class_without_a_pixel_in_training(check, root, values, options, absent):
    labels(root, *values)
    found = check(data_set(root, **options))
    assert set(found) == ({'train_dataloader'} if absent else set())
    assert all(f'no mask has a pixel of {absent}; ' in reason for reason in found.values())
    assert all(f"allow_absent='[{absent}]'" in reason for reason in found.values())
    assert not absent or check(data_set(root, **options), allow_absent=[absent]) == {}


def test_classes_count_over_all_training_sets(check, root):
    """And not in validation."""
    labels(root, 0)
    labels(root, 1, part='val')
    union = dict(
        type='RepeatDataset',
        times=2,
        dataset=dict(type='ConcatDataset', datasets=[data_set(root), data_set(root, 'val')]),
    )
    assert check(union) == {}
    assert set(check(data_set(root), data_set(root, 'val'))) == {'train_dataloader'}


def test_a_class_that_only_validation_or_test_lacks_is_a_warning(check, root, warned):
    labels(root, 0, part='val')
    text = 'Data check: no mask of {}_dataloader has a pixel of class 1'
    assert check(data_set(root), data_set(root, 'val')) == {}
    assert (logging.WARNING, text.format('val')) in warned
    warned.clear()
    assert check(data_set(root), None, data_set(root, 'val'), stage='before_test') == {}
    assert (logging.WARNING, text.format('test')) in warned
    warned.clear()
    check(data_set(root), data_set(root, 'val'), allow_absent=['class 1'])
    assert {level for level, _ in warned} == {logging.INFO}


def test_the_suggested_option_names_every_absent_class(check, root):
    names = [f'c{i}' for i in range(15)]
    labels(root, 0)
    (reason,) = check(data_set(root, metainfo=dict(classes=names))).values()
    assert f"allow_absent='[{','.join(names[1:])}]'" in reason
    assert check(data_set(root, metainfo=dict(classes=names)), allow_absent=names[1:]) == {}


def test_names_of_absent_classes_must_be_classes(check, root):
    assert check(data_set(root), allow_absent=['class 1', 'clas 1']) == {
        'allow_absent': 'clas 1: not among the classes class 0, class 1'
    }
    labels(root, 0)
    assert check(data_set(root), allow_absent='class 1') == {}


def test_nothing_is_said_of_classes_where_masks_are_not_read(check, root):
    labels(root, 0)
    missing = dict(type='ConcatDataset', datasets=[data_set(root), data_set(root, 'nowhere')])
    assert set(check(missing)) == {'train_dataloader.dataset.datasets.1'}
    other = data_set(root, pipeline=[dict(type='LoadImageFromFile')])
    assert check(dict(type='ConcatDataset', datasets=[data_set(root), other])) == {}


def test_a_mask_that_is_ignored_in_all_its_pixels(check, root, warned):
    for part in ('train', 'val'):
        add(root, 'blank', part=part)
        write(root / 'ann_dir' / part / 'blank.png', np.full(SIZE, 255, np.uint8))
    expected = {f'ann_dir/{part}/blank.png': r'all its pixels are ignored \(label 255\)' for part in ('train', 'val')}
    assert_faults(check(data_set(root), data_set(root, 'val')), expected, root)
    assert check(data_set(root), data_set(root, 'val'), allow_ignored=True) == {}
    assert check(data_set(root), None, data_set(root, 'val'), stage='before_test') == {}
    assert [text for level, text in warned if level == logging.WARNING] == [
        f'Data check: 1 masks of {part}_dataloader.dataset have only ignored pixels'
        for part in ('train', 'val', 'test')
    ]


@pytest.mark.parametrize('kind', ['JPEG', 'WEBP'])
def test_lossy_masks_are_refused(check, root, kind):
    """Whatever this one holds: compression changes labels."""
    write(root / 'ann_dir/train/sound_1.png', np.zeros(SIZE, np.uint8), format=kind)
    assert_faults(
        check(data_set(root)), {'ann_dir/train/sound_1.png': f'masks must be lossless, such as PNG; {kind}'}, root
    )


# Files that are not read.


def test_what_lies_with_the_data_and_is_not_read(check, root):
    for name, suffix in (('upper', '.PNG'), ('photo', '.jpg'), ('deep/er', '.jpeg')):
        write(root / f'img_dir/train/{name}{suffix}', np.zeros((*SIZE, 3), np.uint8), format='PNG')
    (root / 'img_dir/train/gone.png').symlink_to(root / 'nothing.png')
    (root / 'img_dir/train/folder.png').mkdir()
    add(root, 'lonely')
    (root / 'img_dir/train/lonely.png').unlink()
    write(root / 'ann_dir/train/upper.PNG', np.zeros(SIZE, np.uint8))
    (root / 'ann_dir/train/lost.png').symlink_to(root / 'nothing.png')
    suffix = r'not read: its name does not end in \.png$'
    expected = {
        'img_dir/train/upper.PNG': suffix,
        'img_dir/train/photo.jpg': suffix,
        'img_dir/train/deep/er.jpeg': suffix,
        'img_dir/train/gone.png': 'a broken link$',
        'img_dir/train/folder.png': 'a folder that is named like an image$',
        'ann_dir/train/lonely.png': 'a mask without an image$',
        'ann_dir/train/upper.PNG': suffix,
        'ann_dir/train/lost.png': 'a broken link$',
    }
    assert_faults(check(data_set(root), data_set(root, 'val')), expected, root)
    (root / 'list.txt').write_text('sound_0\nsound_2\n')
    assert check(data_set(root, ann_file='list.txt')) == {}, 'a list selects on purpose'


def test_what_may_lie_with_the_data(check, root):
    """Hidden files, other kinds, other forms of what is read, what is read by another data set, an image's mask."""
    for name in ('img_dir/train/.hidden.jpg', 'img_dir/train/sound_0.jpg', 'ann_dir/train/sound_0.bmp'):
        (root / name).write_bytes(b'')
    (root / 'img_dir/train/notes.txt').write_text('')
    add(root, 'photo', suffix='.jpg')
    both = dict(type='ConcatDataset', datasets=[data_set(root), data_set(root, img_suffix='.jpg')])
    assert set(check(both)) == {str(root / 'img_dir/train/sound_0.jpg')}, 'now it is read'
    (root / 'img_dir/train/sound_0.jpg').unlink()
    assert check(both) == {}
    assert check(data_set(root), data_set(root, img_suffix='.jpg')) == {}
    assert check(data_set(root), None, data_set(root, img_suffix='.jpg')) == {}
    assert set(check(data_set(root))) == {
        str(root / f'{kind}/train/photo{s}') for kind, s in (('img_dir', '.jpg'), ('ann_dir', '.png'))
    }
    (root / 'img_dir/train/photo.jpg').unlink()
    (root / 'ann_dir/train/photo.png').unlink()
    assert check(data_set(root, indices=1), allow_absent=['class 0']) == {}, 'of three images'


def test_images_and_masks_in_one_folder_and_long_suffixes(check, root):
    folder = root / 'all'
    for i in range(3):
        add(root, f'{i}', part='one')
        (root / f'img_dir/one/{i}.png').rename(root / f'ann_dir/one/{i}_left.jpg')
        (root / f'ann_dir/one/{i}.png').rename(root / f'ann_dir/one/{i}_mask.png')
    (root / 'ann_dir/one').rename(folder)
    cfg = dict(data_prefix=dict(img_path='all', seg_map_path='all'), img_suffix='_left.jpg', seg_map_suffix='_mask.png')
    write(folder / '0_colours.png', np.zeros(SIZE, np.uint8))
    assert check(data_set(root, **cfg)) == {}
    write(folder / '3_left.JPG', np.zeros(SIZE, np.uint8), format='PNG')
    write(folder / '4_mask.png', np.zeros(SIZE, np.uint8))
    expected = {'all/3_left.JPG': r'not read: .* end in _left\.jpg$', 'all/4_mask.png': 'a mask without an image$'}
    assert_faults(check(data_set(root, **cfg)), expected, root)


def test_no_image_of_the_suffix_but_of_others(check, root):
    found = check(data_set(root, img_suffix='.jpg'))
    assert found == {
        'train_dataloader.dataset': f'no image *.jpg in {root}/img_dir/train; it contains 3 *.png: set img_suffix'
    }


def test_names_that_are_no_text(check, root):
    """A file's name is bytes: the report shows those that are not UTF-8 escaped."""
    name = os.fsencode(root) + b'/img_dir/train/caf\xe9.jpg'
    with open(name, 'wb') as file:
        file.write(b'')
    assert [path.rpartition('/')[2] for path in check(data_set(root))] == ['caf\\udce9.jpg']


# Heads.


@pytest.mark.parametrize(
    ('model', 'expected'),
    [
        (dict(decode_head=dict(num_classes=2), auxiliary_head=dict(num_classes=2)), {}),
        (dict(decode_head=dict(num_classes=2, out_channels=1), backbone=dict(num_classes=1000)), {}),
        (dict(decode_head=dict(num_classes=5)), {'model.decode_head.num_classes': 5}),
        (dict(decode_head=dict(type='mmattn.UNetBAHead', num_classes=1)), {'model.decode_head.num_classes': 1}),
        (
            dict(decode_head=[dict(num_classes=2), dict(num_classes=3)], auxiliary_head=[dict(num_classes=4)]),
            {'model.decode_head.1.num_classes': 3, 'model.auxiliary_head.0.num_classes': 4},
        ),
        (
            dict(module=dict(decode_head=dict(num_classes=2, kernel_generate_head=dict(num_classes=150)))),
            {'model.module.decode_head.kernel_generate_head.num_classes': 150},
        ),
    ],
)
def test_heads_have_the_classes_of_the_data(check, root, model, expected):
    found = check(data_set(root), data_set(root, 'val'), model=model)
    assert found == {
        where: f'{count}, but train_dataloader.dataset has 2 classes: class 0, class 1'
        for where, count in expected.items()
    }
    assert set(check(data_set(root), None, data_set(root), model=model, stage='before_test')) == set(expected)
    assert check(data_set(root, metainfo=None), model=model) == {}


# Names, colours, weights and ignored labels.


def named(*classes, **meta):
    return dict(metainfo=dict(classes=list(classes), **meta))


@pytest.mark.parametrize(
    ('train', 'val', 'where', 'reason'),
    [
        (named('a', 'a'), {}, 'train', 'classes must have distinct names; duplicates: a'),
        (dict(metainfo=dict(classes='ab')), {}, 'train', "classes must be a list of names; got 'ab'"),
        (
            named('a', 'b', palette=[[0, 0, 300], [0, 0, 0]]),
            {},
            'train',
            'colours of the palette must be three values from 0 to 255; got [0, 0, 300]',
        ),
        (
            named('a', 'b'),
            named('b', 'a'),
            'val',
            'its classes are those of train_dataloader.dataset in another order: b, a',
        ),
    ],
)
def test_names_and_colours_of_classes(check, root, train, val, where, reason):
    assert check(data_set(root, **train), data_set(root, 'val', **val)) == {f'{where}_dataloader.dataset': reason}


@pytest.mark.parametrize(
    ('head', 'options', 'expected'),
    [
        (dict(loss_decode=dict(class_weight=[1.0, 2.0])), {}, {}),
        (
            dict(loss_decode=[dict(type='DiceLoss'), dict(class_weight=[1.0])]),
            {},
            {'model.decode_head.loss_decode.class_weight': '1 weights, but the head has 2 classes'},
        ),
        (dict(ignore_index=7), dict(ignore_index=7), {}),
        (
            dict(ignore_index=7),
            {},
            {'model.auxiliary_head.ignore_index': '255, but model.decode_head.ignore_index is 7'},
        ),
        (
            {},
            dict(ignore_index=7),
            {'train_dataloader.dataset.ignore_index': '7, but model.decode_head.ignore_index is 255'},
        ),
    ],
)
def test_weights_and_ignored_labels_of_heads(check, root, head, options, expected):
    other = dict(num_classes=2, ignore_index=head.get('ignore_index', 255) if options or not head else 255)
    model = dict(decode_head=dict(num_classes=2, **head), auxiliary_head=other)
    assert check(data_set(root, **options), model=model) == expected


def test_metrics_ignore_what_heads_ignore(check, root):
    sets = data_set(root), data_set(root, 'val')
    model = dict(decode_head=dict(num_classes=2, ignore_index=0))
    assert check(*sets, model=model, val_evaluator=[dict(type='IoUMetric', ignore_index=0)]) == {}
    assert check(*sets, model=model, val_evaluator=[dict(type='IoUMetric')]) == {
        'val_evaluator.ignore_index': '255, but model.decode_head.ignore_index is 0'
    }


def test_reduce_zero_label_is_named_where_a_class_is_absent(check, root):
    (reason,) = check(data_set(root, reduce_zero_label=True), allow_ignored=True).values()
    assert 'no mask has a pixel of class 1; reduce_zero_label=True ignores label 0' in reason


# As a user meets it.


def command(tool, data, work_dir, *options):
    return [str(part) for part in (*tool, '--work-dir', work_dir, '--cfg-options', *SMALL, *options)], {
        **os.environ,
        'BUILDINGS_ROOT': str(data),
        'OMP_NUM_THREADS': '1',
        'CUDA_VISIBLE_DEVICES': '',
        'PORT': '29614',
        'PATH': f'{Path(sys.executable).parent}:{os.environ["PATH"]}',
    }


@pytest.mark.e2e
@pytest.mark.parametrize('processes', [1, 2])
def test_train_stops_before_training_and_names_all(root, tmp_path, processes):
    """An empty folder for validation, over which mmengine itself would stumble, and faults in the training data."""
    expected = spoil(root)
    (root / 'img_dir/val/sound.png').unlink()
    tool = (
        [sys.executable, ROOT / 'tools/train.py', CONFIG]
        if processes == 1
        else ['bash', ROOT / 'tools/dist_train.sh', CONFIG, 2]
    )
    arguments, env = command(tool, root, tmp_path / 'work')
    done = run_command(arguments, env)
    assert done.returncode != 0
    assert done.stderr.count('train.py: error: The data check found') == 1  # of both processes, the first says it
    assert 'Traceback' not in done.stderr
    for path in expected:
        assert f'  {root / path}: ' in done.stderr
    assert f'val_dataloader.dataset: no image *.png in {root / "img_dir/val"}' in done.stderr
    assert 'Iter(train)' not in done.stdout


@pytest.mark.parametrize(
    ('enabled', 'error', 'said'),
    [(True, ValueError, 'labels 9 are not among 0…1, 255'), (False, InterruptedError, 'trains')],
)
def test_other_tools_check_before_the_first_batch(root, tmp_path, monkeypatch, enabled, error, said):
    """The stock Runner, as in mmseg's own train.py."""
    add(root, 'label', labels=[9])
    monkeypatch.setenv('BUILDINGS_ROOT', str(root))
    cfg = Config.fromfile(CONFIG)
    cfg.work_dir = str(tmp_path / 'work')
    cfg.experiment_name = f'{tmp_path.name} {enabled}'
    cfg.train_dataloader.update(num_workers=0, persistent_workers=False, batch_size=2)
    cfg.default_hooks.data_check.enabled = enabled
    cfg.log_level = 'ERROR'
    runner = Runner.from_cfg(cfg)

    def run_iter(batch):
        raise InterruptedError('trains')

    runner.train_loop.run_iter = run_iter
    with pytest.raises(error, match=said):
        runner.train()


def error_of(arguments, env):
    done = run_command(arguments, env)
    assert done.returncode != 0
    assert 'Iter(' not in done.stdout
    return done.stderr


@pytest.mark.e2e
def test_test_stops_before_testing_and_names_all(root, tmp_path):
    """A missing mask used to be a traceback midway, and a folder without images numpy's."""
    add(root, 'no_mask', part='val')
    (root / 'ann_dir/val/no_mask.png').unlink()
    torch.save(dict(state_dict={}), tmp_path / 'some.pth')
    tool = [sys.executable, ROOT / 'tools/test.py', CONFIG, tmp_path / 'some.pth']
    arguments, env = command(tool, root, tmp_path / 'work')
    said = error_of(arguments, env)
    assert f'  {root}/img_dir/val/no_mask.png: no mask {root}/ann_dir/val/no_mask.png' in said
    said = error_of([*arguments, 'test_dataloader.dataset.img_suffix=.jpg'], env)
    assert f'test_dataloader.dataset: no image *.jpg in {root}/img_dir/val; it contains 2 *.png' in said


def test_testing_with_augmentation_looks_at_masks(check, root):
    """`TestTimeAug` loads them."""
    (root / 'ann_dir/val/sound.png').unlink()
    augment = dict(type='TestTimeAug', transforms=[[dict(type='LoadAnnotations')], [dict(type='PackSegInputs')]])
    found = check(data_set(root, 'val', pipeline=[dict(type='LoadImageFromFile'), augment]))
    assert_faults(found, {'img_dir/val/sound.png': 'no mask '}, root)


def test_only_validating_checks_what_validates(check, root):
    add(root, 'label', labels=[9])
    assert check(data_set(root), data_set(root, 'val'), stage='before_val') == {}
    add(root, 'label', labels=[9], part='val')
    assert set(check(data_set(root), data_set(root, 'val'), stage='before_val')) == {
        str(root / 'ann_dir/val/label.png')
    }


@pytest.mark.e2e
def test_train_takes_allow_absent_and_refuses_other_heads(root, tmp_path):
    labels(root, 0)
    tool = [sys.executable, ROOT / 'tools/train.py', CONFIG]
    options = ['default_hooks.data_check.allow_absent=[building]', 'model.auxiliary_head.num_classes=5']
    said = error_of(*command(tool, root, tmp_path / 'work', *options))
    head = 'model.auxiliary_head.num_classes: 5, but train_dataloader.dataset has 2 classes: background, building'
    assert 'found 1 fault ' in said
    assert head in said


def test_the_detectors_classes_are_those_of_the_data(tiny_data, tmp_path, monkeypatch):
    """By mmdet's own hook, which the shipped schedules have on."""
    for name, value in tiny_data.items():
        monkeypatch.setenv(name, value)
    cfg = Config.fromfile(
        ROOT / 'configs/attended_residual/faster-rcnn_r50-w16-attn0010-dcn_fpn_1xb8-150_bccd-320x240.py'
    )
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.update(num_workers=0, persistent_workers=False)
    cfg.work_dir, cfg.log_level, cfg.experiment_name = str(tmp_path), 'ERROR', tmp_path.name
    cfg.train_cfg.update(max_iters=1, val_interval=2)
    cfg.model.roi_head.bbox_head.num_classes = 80
    with pytest.raises(AssertionError, match=r'`num_classes` \(80\) in Shared2FCBBoxHead'):
        Runner.from_cfg(cfg).train()
