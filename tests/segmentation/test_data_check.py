"""A folder with every fault at once, the cache, and the decoders' own idea of size and label."""

import os
import re
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from mmcv.transforms import LoadImageFromFile
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from mmengine.runner import Runner
from PIL import Image

from mmattn.segmentation import SegDataCheckHook, data_check, image_facts
from mmattn.segmentation.data_check_hook import SHOWN

from ..engine.test_tools import CONFIG, ROOT, SMALL

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

    def __init__(self, work_dir, train, val=None):
        self.work_dir = str(work_dir)
        self.cfg = Config(
            dict(train_dataloader=dict(dataset=train), **(dict(val_dataloader=dict(dataset=val)) if val else {}))
        )


@pytest.fixture
def check(tmp_path):
    """Run a fresh hook; return ``{path: reasons}`` as in the report, {} if it is content."""
    init_default_scope('mmseg')
    work_dir = tmp_path / 'work'
    work_dir.mkdir()
    report = work_dir / 'data_check.txt'

    def check(*data_sets):
        said = ''
        try:
            SegDataCheckHook().before_loops(FakeRunner(work_dir, *data_sets))
        except ValueError as error:
            said = str(error)
        lines = report.read_text().splitlines() if said else []
        assert report.exists() == bool(said)
        assert all(line in said for line in [f'found {len(lines)} faults', *lines][:SHOWN] if lines)
        return dict(line.split(': ', 1) for line in lines)

    check.work_dir = work_dir
    return check


@pytest.fixture
def looked(monkeypatch):
    """The names of the files that are looked into."""
    names = []

    def look(file, original=image_facts.look):
        names.append(f'{"mask" if file.is_mask else "image"} {Path(file.path).name}')
        return original(file)

    monkeypatch.setattr(image_facts, 'look', look)
    return names


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
    assert found == {str(root / 'img_dir/train/gone.png'): f'no such file; no mask {root / "ann_dir/train/gone.png"}'}


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
    assert data_check.accepted_labels(dataset) == {label for label in range(256) if seen_by_training(dataset, label)}


def test_labels_of_a_set_without_classes_are_free(root):
    init_default_scope('mmseg')
    dataset = DATASETS.build(data_set(root, metainfo=None))
    assert data_check.accepted_labels(dataset) == {*range(256)}


@pytest.mark.parametrize('flag', ['color', 'unchanged', 'color_ignore_orientation'])
@pytest.mark.parametrize('backend', ['cv2', 'pillow'])
@pytest.mark.parametrize('suffix', ['jpg', 'png', 'bmp', 'tif', 'webp'])
def test_the_size_is_that_of_the_loaded_image(tmp_path, suffix, backend, flag):
    """For photographs that were taken upright, too."""
    exif = Image.Exif()
    exif[image_facts.ORIENTATION] = 6
    path = tmp_path / f'image.{suffix}'
    write(path, np.zeros((4, 7, 3), np.uint8), **({} if suffix == 'bmp' else dict(exif=exif)))
    image = LoadImageFromFile(color_type=flag, imdecode_backend=backend)(dict(img_path=str(path)))['img']
    facts = image_facts.look(image_facts.ImageFile(str(path), backend, flag))
    assert facts == ((image.shape[1], image.shape[0]), (), '')


@pytest.mark.parametrize('suffix', ['jpg', 'png', 'bmp', 'tif', 'webp', 'gif'])
@pytest.mark.parametrize('share', [0.2, 0.6, 0.98])
def test_files_that_are_cut_short(tmp_path, suffix, share):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8)
    path = tmp_path / f'image.{suffix}'
    write(path, noise)
    whole = path.stat().st_size
    files = [image_facts.ImageFile(str(path), 'cv2', 'color'), image_facts.ImageFile(str(path), 'pillow', 'color')]
    assert [image_facts.look(file).fault for file in files] == ['', '']
    cut(path, share)
    assert path.stat().st_size < whole
    assert all(image_facts.look(file).fault.startswith('unreadable: ') for file in files)
    path.write_bytes(path.read_bytes() + bytes(whole - path.stat().st_size))  # space was reserved, but never filled
    if suffix in ('jpg', 'png'):
        assert all(image_facts.look(file).fault.startswith('unreadable: ') for file in files)


@pytest.mark.parametrize('backend', ['cv2', 'pillow'])
def test_masks_that_are_cut_short_whatever_decodes_them(tmp_path, backend):
    path = tmp_path / 'mask.png'
    write(path, np.random.default_rng(0).integers(0, 3, (64, 64)).astype(np.uint8))
    file = image_facts.ImageFile(str(path), backend, 'unchanged', is_mask=True)
    assert image_facts.look(file) == ((64, 64), (0, 1, 2), '')
    cut(path)
    assert image_facts.look(file).fault.startswith('unreadable: ')


def test_bytes_behind_the_end_do_no_harm(tmp_path):
    """As some cameras leave them."""
    for suffix in ('jpg', 'png'):
        path = tmp_path / f'image.{suffix}'
        write(path, np.zeros((4, 7, 3), np.uint8))
        path.write_bytes(path.read_bytes() + b'\0' * 20)
        assert cv2.imread(str(path)) is not None
        assert image_facts.look(image_facts.ImageFile(str(path), 'cv2', 'color')) == ((7, 4), (), '')


def test_masks_of_one_bit_and_with_a_palette(tmp_path):
    labels = np.random.default_rng(0).integers(0, 2, (5, 9)).astype(bool)
    Image.fromarray(labels).save(tmp_path / 'bit.png')
    palette = Image.fromarray(labels.astype(np.uint8) * 5, 'P')
    palette.putpalette([7] * 768)
    palette.save(tmp_path / 'palette.png')
    for name, expected in (('bit', (0, 1)), ('palette', (0, 5))):
        file = image_facts.ImageFile(str(tmp_path / f'{name}.png'), 'pillow', 'unchanged', is_mask=True)
        assert image_facts.look(file) == ((9, 5), expected, '')


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
    done = subprocess.run(arguments, env=env, text=True, timeout=300, capture_output=True)
    assert done.returncode != 0
    assert done.stderr.count('ValueError: The data check found') == processes
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
