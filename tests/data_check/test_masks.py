"""A folder with every fault at once, the cache, and files that nothing reads."""

import logging
import os
import re
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from common.segmentation import find_pairs
from mmattn.data_check.images import DEEP
from mmattn.data_check.masks import class_weights
from mmattn.segmentation import SegDataCheckHook
from mmattn.utils import files
from mmattn.utils.faults import Faults
from mmattn.video.frame_files import find_files

from ..engine.test_tools import CONFIG, SMALL, free_port
from ..forked_tools import tool
from .image_folders import SIZE, FakeRunner, add, cut, data_set, labels, write


def spoil(root):
    """Add a file with each fault; return words of the reason to expect for each, by path in the root."""
    add(root, 'label', labels=[3, 7, 8, 9])
    add(root, 'sixteen', labels=[256])
    add(root, 'smaller', image_size=(SIZE[0], SIZE[1] - 1))
    add(root, 'turned', image_size=SIZE[::-1])
    for name in ('no_mask', 'cut_image', 'cut_mask', 'colours', 'empty_image', 'empty_mask', 'text', 'cut_header'):
        add(root, name)
    (root / 'ann_dir/train/no_mask.png').unlink()
    cut(root / 'img_dir/train/cut_image.png')
    cut(root / 'img_dir/train/cut_header.png', 0.004)
    cut(root / 'ann_dir/train/cut_mask.png')
    write(root / 'ann_dir/train/colours.png', np.zeros((*SIZE, 3), np.uint8))
    (root / 'img_dir/train/empty_image.png').write_bytes(b'')
    (root / 'ann_dir/train/empty_mask.png').write_bytes(b'')
    (root / 'ann_dir/train/text.png').write_text('<html>404')
    add(root, 'pointer')
    (root / 'img_dir/train/pointer.png').write_text('version https://git-lfs.github.com/spec/v1\noid sha256:0\n')
    for kind, shape in (('img_dir', (1, 40, 3)), ('ann_dir', (1, 40))):
        write(root / kind / 'train/line.png', np.zeros(shape, np.uint8))
    add(root, 'lossy')
    write(root / 'ann_dir/train/lossy.png', np.zeros(SIZE, np.uint8), format='JPEG')
    return {
        'ann_dir/train/label.png': r'labels 3, 7…9 .* 0…1, 255$',
        'ann_dir/train/sixteen.png': r'labels 256 ',
        'ann_dir/train/smaller.png': r'48×40, .*/img_dir/train/smaller\.png 47×40$',
        'ann_dir/train/turned.png': r'48×40, .*/img_dir/train/turned\.png 40×48, after rotation',
        'img_dir/train/no_mask.png': r'.*/ann_dir/train/no_mask\.png$',
        'img_dir/train/cut_image.png': r'unreadable: .*truncated',
        'img_dir/train/cut_header.png': r'unreadable: ',
        'ann_dir/train/cut_mask.png': r'unreadable: .*truncated',
        'ann_dir/train/colours.png': r'.*\(40, 48, 3\)',
        'img_dir/train/empty_image.png': r'unreadable: .*empty$',
        'ann_dir/train/empty_mask.png': r'unreadable: .*empty$',
        'ann_dir/train/text.png': r'unreadable: ',
        'img_dir/train/pointer.png': r'unreadable: .*LFS',
        'ann_dir/train/line.png': r'.* 40 pixels',
        'ann_dir/train/lossy.png': r'.*JPEG',
    }


def assert_faults(found, expected, root):
    assert {os.path.relpath(path, root) for path in found} == set(expected)
    for path, reason in expected.items():
        assert re.match(reason, found[str(root / path)]), (path, found[str(root / path)])


def test_sound_data_pass_and_leave_no_report(check, root):
    assert check(data_set(root), data_set(root, 'none')) != {}
    assert check(data_set(root), data_set(root, 'val')) == {}


@pytest.mark.parametrize(
    'wrap',
    [
        lambda cfg: cfg,
        lambda cfg: dict(type='RepeatDataset', times=2, dataset=cfg),
        lambda cfg: dict(type='ConcatDataset', datasets=[data_set(cfg['data_root'], 'val'), cfg, cfg]),
        lambda cfg: dict(type='MultiImageMixDataset', pipeline=[], dataset=dict(type='ConcatDataset', datasets=[cfg])),
        lambda cfg: {**cfg, 'ann_file': str(Path(cfg['data_root'], 'list.txt'))},
    ],
    ids=['plain', 'repeat', 'concat', 'mix', 'list'],
)
def test_every_fault_is_named_once_and_nothing_else(check, root, wrap):
    expected = spoil(root)
    (root / 'list.txt').write_text(''.join(f'{path.stem}\n' for path in (root / 'img_dir/train').iterdir()))
    add(root, 'elsewhere', labels=[4], part='val')
    expected['ann_dir/val/elsewhere.png'] = 'labels 4 '
    assert_faults(check(wrap(data_set(root)), data_set(root, 'val')), expected, root)


def test_empty_and_missing_are_named_together(check, root):
    (root / 'img_dir/none').mkdir()
    (root / 'list.txt').write_text('')

    add(root, 'label', labels=[5], part='val')
    cases = [
        (data_set(root, 'none'), 'img_dir/none'),
        (data_set(root, ann_file='list.txt'), 'list.txt'),
        (data_set(root, 'nowhere'), 'img_dir/nowhere'),
        (data_set(root, data_prefix=dict(img_path='img_dir/train')), 'seg_map_path'),
        (data_set(root, ann_file='no_list.txt'), 'no_list.txt'),
        (data_set(root, img_suffix='.jpg'), r'img_suffix'),
    ]
    found = check(dict(type='ConcatDataset', datasets=[cfg for cfg, _ in cases]), data_set(root, 'val'))
    assert found.pop(str(root / 'ann_dir/val/label.png')).startswith('labels 5 ')
    for i, (_, name) in enumerate(cases):
        assert name in found.pop(f'train_dataloader.dataset.datasets.{i}')
    assert found == {}


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('sound_0\r\nsound_1', ''),
        ('sound_0 \nsound_1\t\n', ''),
        ('\ufeffsound_0\nsound_1\n', r"list\.txt lists '\\ufeffsound_0'"),  # odd characters are shown
        ('sound_0\n\nsound_1\n', r"list\.txt.*''|blank|empty"),
        ('sound_0.png\nsound_1\n', r'sound_0\.png.*without \.png'),
    ],
)
def test_lists_of_images(check, root, text, said):
    (root / 'list.txt').write_bytes(text.encode())
    found = check(data_set(root, ann_file='list.txt'), allow_absent=['class 1'])
    assert len(found) == bool(said)
    assert all(re.search(said, reason) for reason in found.values())


def test_images_that_are_listed_twice_or_in_training_and_validation_are_warnings(check, root, warned):
    (root / 'list.txt').write_text('sound_0\nsound_1\nsound_0\n')
    assert check(data_set(root, ann_file='list.txt'), data_set(root)) == {}
    images = f'{root}/img_dir/train'
    assert [text for level, text in warned if level == logging.WARNING] == [
        f'Data check: train_dataloader.dataset lists 1 images more than once, such as {images}/sound_0.png',
        f'Data check: 2 of the 3 images of val_dataloader.dataset are training images, such as {images}/sound_0.png',
    ]


def test_predictions_among_masks_that_are_shifted(check, root, warned):
    """Pseudo-labels have class indices, which reduce_zero_label would make one less, and 0 to ignored pixels."""
    text = PngInfo()
    text.add_text('Labels', 'class indices from 0')
    path = root / 'ann_dir/train/sound_1.png'
    Image.fromarray(np.tile(np.uint8([1, 2]), (SIZE[0], SIZE[1] // 2))).save(path, pnginfo=text)
    for name in ('train/sound_0', 'train/sound_2', 'val/sound'):
        write(root / f'ann_dir/{name}.png', np.tile(np.uint8([1, 2]), (SIZE[0], SIZE[1] // 2)))
    found = check(data_set(root, reduce_zero_label=True), data_set(root, 'val', reduce_zero_label=True))
    assert [*found] == [str(path)]
    assert 'c + 1' in found[str(path)]
    three = dict(classes=['a', 'b', 'c'])
    assert check(data_set(root, metainfo=three), allow_absent=['a']) == {}
    assert any('1 of 3 masks' in said and 'predicted' in said for _, said in warned)


def test_images_of_12_bits_in_16(check, root):
    for name, brightest in (('dark', 4095), ('bright', 65535), ('black', 0)):
        add(root, name)
        write(root / f'img_dir/train/{name}.png', np.full(SIZE, brightest, np.uint16))
    add(root, 'colours')
    cv2.imwrite(str(root / 'img_dir/train/colours.png'), np.full((*SIZE, 3), 1000, np.uint16))
    found = check(data_set(root))
    assert {Path(path).stem: reason.partition(';')[0] for path, reason in found.items()} == {
        'dark': f'{DEEP}: values up to 4095 become at most 15 of 255',
        'colours': f'{DEEP}: values up to 1000 become at most 3 of 255',
    }


def test_what_has_not_changed_is_not_looked_at_again(check, root, looked):
    def names(*data_sets):
        """What a check looks into."""
        looked.clear()
        check(*data_sets)
        return sorted(name.removesuffix('.png') for name in looked)

    both = data_set(root), data_set(root, 'val')
    stems = 'sound', 'sound_0', 'sound_1', 'sound_2'
    assert names(*both) == [f'{kind} {stem}' for kind in ('image', 'mask') for stem in stems]
    assert names(*both) == []
    mask = root / 'ann_dir/train/sound_1.png'
    status = mask.stat()
    os.utime(mask, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert names(*both) == ['mask sound_1']
    add(root, 'sound_2', labels=[9])
    assert names(*both) == ['image sound_2', 'mask sound_2']
    assert names(*both) == []
    assert set(check(*both)) == {str(root / 'ann_dir/train/sound_2.png')}, 'known, and still a fault'
    assert len(check(data_set(root, metainfo=dict(classes=['a'])))) == 3
    assert looked == [], 'labels are known whatever the classes'
    load, load_labels = dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')
    for pipeline, kind in (
        ([load, dict(load_labels, imdecode_backend='cv2')], 'mask'),
        ([dict(load, color_type='unchanged'), load_labels], 'image'),
    ):
        check(data_set(root))
        found = names(data_set(root, pipeline=pipeline))
        assert len(found) >= 3, 'another decoder may see another size, or other labels'
        assert all(name.startswith(kind) for name in found)


def test_faults_of_reading_and_a_spoilt_cache_are_not_kept(check, root, looked):
    """A mended permission, say, changes neither size nor time."""
    (check.work_dir / 'data_check.json').write_text('{"half": ')
    cut(root / 'ann_dir/train/sound_1.png')
    check(data_set(root))
    assert len(looked) == 6
    assert not list(check.work_dir.glob('*.part'))
    looked.clear()
    assert set(check(data_set(root))) == {str(root / 'ann_dir/train/sound_1.png')}
    assert looked == ['mask sound_1.png']


def test_the_hook_checks_once(check, root, looked):
    hook, runner = SegDataCheckHook(), FakeRunner(check.work_dir, data_set(root))
    hook.before_loops(runner)
    (check.work_dir / 'data_check.json').unlink()
    hook.before_train(runner)
    assert len(looked) == 6


def test_other_readers_and_remote_files_are_left_out(check, root, looked, warned):
    spoil(root)
    other = [dict(type='LoadBiomedicalImageFromFile'), dict(type='LoadBiomedicalAnnotation')]
    assert check(data_set(root, pipeline=other)) == {}
    assert check(data_set(root, data_prefix=dict(img_path='s3://bucket/i', seg_map_path='s3://bucket/m'))) == {}
    assert check(data_set(root, backend_args=dict(backend='petrel'))) == {}
    assert looked == []
    skipped = [text for _, text in warned if 'train_dataloader.dataset is skipped' in text]
    assert [('transforms' in text, 'local disk' in text) for text in skipped] == [(True, False), *[(False, True)] * 2]
    images_only = check(data_set(root, pipeline=[dict(type='LoadImageFromFile')]))
    assert {os.path.relpath(path, root) for path in images_only} == {
        'img_dir/train/cut_image.png',
        'img_dir/train/cut_header.png',
        'img_dir/train/empty_image.png',
        'img_dir/train/pointer.png',
    }


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


def test_what_lies_with_the_data_and_is_not_read(check, root):
    for name, suffix in (('upper', '.PNG'), ('photo', '.jpg'), ('deep/er', '.jpeg')):
        write(root / f'img_dir/train/{name}{suffix}', np.zeros((*SIZE, 3), np.uint8), format='PNG')
    (root / 'img_dir/train/gone.png').symlink_to(root / 'nothing.png')
    (root / 'img_dir/train/folder.png').mkdir()
    (root / 'elsewhere').mkdir()
    write(root / 'elsewhere/far.jpg', np.zeros((*SIZE, 3), np.uint8))
    (root / 'img_dir/train/linked').symlink_to(root / 'elsewhere')
    add(root, 'lonely')
    (root / 'img_dir/train/lonely.png').unlink()
    write(root / 'ann_dir/train/upper.PNG', np.zeros(SIZE, np.uint8))
    (root / 'ann_dir/train/lost.png').symlink_to(root / 'nothing.png')
    suffix = r'not read: its name does not end in \.png$'
    expected = {
        'img_dir/train/upper.PNG': suffix,
        'img_dir/train/photo.jpg': suffix,
        'img_dir/train/deep/er.jpeg': suffix,
        'img_dir/train/linked/far.jpg': suffix,
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


def test_a_hidden_folder_is_not_meant(check, root):
    """In a data set, and in a converter."""
    images, masks = root / 'img_dir/train', root / 'ann_dir/train'
    name = '.ipynb_checkpoints/sound_0-checkpoint.png'
    for folder in (images, masks):
        (folder / name).parent.mkdir()
        shutil.copy(folder / 'sound_0.png', folder / name)
    for other in ('sound_0.png~', 'sound_0.png.bak', 'Thumbs.db', '.DS_Store', '._sound_0.png'):
        shutil.copy(images / 'sound_0.png', images / other)
    assert_faults(check(data_set(root)), {f'img_dir/train/{name}': 'in a hidden folder'}, root)
    find_pairs(images, masks, {'.png'}, faults := Faults())
    assert not [path for path in faults.by_path if name in path]


@pytest.mark.parametrize('name', ['sound_0 (1)', 'sound_0-Copy1', 'Kopie von sound_0', 'another one', 'b/sound_0'])
def test_copies_are_found_by_their_bytes(check, root, warned, capsys, name):
    """Within a folder a warning, in a data set and in a converter; in a clip only under a name of another form."""
    images, masks = root / 'img_dir/train', root / 'ann_dir/train'
    for folder in (images, masks):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(folder / 'sound_0.png', folder / f'{name}.png')
    shutil.copy(masks / 'sound_1.png', masks / 'sound_2.png')  # masks may be equal
    assert check(data_set(root)) == {}
    (text,) = (text for level, text in warned if level == logging.WARNING)
    assert f'1 images of train_dataloader are copies: {images}/{name}.png of sound_0.png' in text
    find_pairs(images, masks, {'.png'}, faults := Faults())
    assert not faults
    assert capsys.readouterr().err.strip() == f'warning: 1 images are copies: {images}/{name}.png of sound_0.png'
    is_named_after = 'sound_0' in name and '/' not in name
    copied = [f'{images / name}.png: a copy of sound_0.png; remove it'] * is_named_after
    find_files(images, root / 'none', None, faults := Faults())
    assert [f'{path}: {reason}' for path, reasons in faults.by_path.items() for reason in reasons] == copied


def test_a_copy_of_a_training_image_may_not_be_validated(check, root):
    """Nor tested, though the test is later. The option allows it."""
    (root / 'img_dir/test').mkdir()
    for part, name in (('val', 'a'), ('test', 'b')):
        add(root, name, part=part)
        shutil.copy(root / 'img_dir/train/sound_1.png', root / f'img_dir/{part}/{name}.png')
    sets = data_set(root), data_set(root, 'val'), data_set(root, 'test')
    reason = 'has the bytes of the training image .*sound_1.png'
    expected = {'img_dir/val/a.png': reason, 'img_dir/test/b.png': reason}
    assert_faults(check(*sets), expected, root)
    assert check(*sets, allow_copies=True) == {}


def test_tiles_without_data_may_be_trained_and_validated(check, root):
    """Black ones, as at the border of an aerial survey, are equal byte by byte."""
    for part in ('train', 'val'):
        add(root, 'black', part=part)
        Image.new('RGB', SIZE[::-1]).save(root / f'img_dir/{part}/black.png')
    assert check(data_set(root), data_set(root, 'val')) == {}


def test_only_files_of_one_size_and_end_are_read_whole(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(files, '_digest', lambda path: read.append(path.name))
    for i in range(4):
        (tmp_path / f'{i}').write_bytes(bytes(5000 + i // 2) + bytes([i // 3]))
    files.find_copies(tmp_path.iterdir())
    assert sorted(read) == ['0', '1']


def test_masks_that_were_altered_after_painting(check, root, warned):
    """One warning a data set, with a count and a figure; none of the painted masks."""
    mask = np.zeros((160, 192), np.uint8)
    cv2.ellipse(mask, (60, 70), (40, 30), 20, 0, 360, 3, -1)
    cv2.ellipse(mask, (120, 90), (40, 50), 70, 0, 360, 1, -1)
    small = mask[::4, ::4]
    classes = dict(metainfo=dict(classes=[f'class {i}' for i in range(4)]))
    for i in range(3):
        write(root / f'ann_dir/train/sound_{i}.png', small)
    assert check(data_set(root, **classes), allow_absent=['class 2']) == {}
    assert not [text for level, text in warned if level == logging.WARNING]
    scaled = cv2.resize(mask, SIZE[::-1], interpolation=cv2.INTER_AREA)
    for i in range(2):
        write(root / f'ann_dir/train/sound_{i}.png', scaled)
    assert check(data_set(root, **classes), allow_absent=['class 2']) == {}
    (text,) = (text for level, text in warned if level == logging.WARNING)
    assert re.search(r'2 of 3 masks have labels that were probably scaled.*sound_0.png: \d+ % of \d+ edges', text)


def test_pictures_that_people_see_otherwise(check, root, warned):
    """One warning a kind and data set, with a count."""
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (*SIZE, 3)).astype(np.uint8)) for _ in range(6)]
    exif = Image.Exif()
    exif[0x0112] = 3
    deep = Image.fromarray(np.linspace(0, (1 << 14) - 1, SIZE[0] * SIZE[1]).reshape(SIZE).astype(np.uint16))
    clear = images[2].convert('RGBA')
    clear.putpixel((3, 4), (9, 9, 9, 0))
    for name, image, options in (
        ('turned', images[0], dict(exif=exif)),
        ('opaque', images[1].convert('RGBA'), {}),
        ('clear', clear, {}),
        ('deep', deep, {}),
        ('moving', images[3], dict(save_all=True, append_images=images[4:])),
        ('clear_2', clear.rotate(90).resize(SIZE[::-1]), {}),
    ):
        add(root, name)
        image.save(root / f'img_dir/train/{name}.png', **options)
    assert check(data_set(root)) == {}
    said = sorted(text.partition('dataset: ')[2] for level, text in warned if level == logging.WARNING)
    assert [re.sub(r' have.*/', ' … ', text) for text in said] == [
        '1 of 9 images … deep.png: values up to 16383 become at most 63 of 255',
        '1 of 9 images … turned.png',
        '1 of 9 images … moving.png: 3 frames',
        '2 of 9 images … clear.png',
    ]


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


def test_names_that_are_no_text(check, root):
    """A file's name is bytes: the report shows those that are not UTF-8 escaped."""
    name = os.fsencode(root) + b'/img_dir/train/caf\xe9.jpg'
    with open(name, 'wb') as file:
        file.write(b'')
    assert [path.rpartition('/')[2] for path in check(data_set(root))] == ['caf\\udce9.jpg']


@pytest.mark.e2e
@pytest.mark.parametrize('name', ['train.py', 'dist_train.sh'])
def test_train_stops_before_training_and_names_all(attempt, root, tmp_path, name):
    """An empty folder for validation, over which mmengine itself would stumble, and faults in the training data."""
    expected = spoil(root)
    (root / 'img_dir/val/sound.png').unlink()
    words = [CONFIG, *([2] if name == 'dist_train.sh' else []), '--work-dir', tmp_path / 'work']
    environment = dict(BUILDINGS_ROOT=str(root), CUDA_VISIBLE_DEVICES='', PORT=free_port())
    done = attempt(*tool(name, *words), '--cfg-options', *SMALL, **environment)
    assert done.returncode != 0
    assert done.stderr.count('train.py: error: The data check found') == 1  # of both processes, the first says it
    assert 'Traceback' not in done.stderr
    assert all(str(root / path) in done.stderr for path in [*expected, 'img_dir/val'])
    assert 'Iter(train)' not in done.stdout


@pytest.mark.one_case
@pytest.mark.parametrize(
    ('enabled', 'error', 'said'), [(True, ValueError, 'labels 9'), (False, InterruptedError, 'trains')]
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


@pytest.mark.e2e
def test_test_stops_before_testing_and_names_all(attempt, root, tmp_path):
    """A missing mask used to be a traceback midway, and a folder without images numpy's."""
    add(root, 'no_mask', part='val')
    (root / 'ann_dir/val/no_mask.png').unlink()
    torch.save(dict(state_dict={}), tmp_path / 'some.pth')
    words = tool('test.py', CONFIG, tmp_path / 'some.pth', '--work-dir', tmp_path / 'work', '--cfg-options', *SMALL)
    for option, said in ((), 'ann_dir/val/no_mask.png'), (['test_dataloader.dataset.img_suffix=.jpg'], 'img_dir/val'):
        done = attempt(*words, *option, BUILDINGS_ROOT=str(root))
        assert done.returncode != 0
        assert 'Iter(' not in done.stdout
        assert f'{root}/{said}' in done.stderr


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


def test_unequal_classes_are_logged_with_weights_to_copy(check, root, warned):
    """Shares of all training pixels that count; equal classes need no weights."""
    labels(root, 0, 1)
    check(data_set(root))
    assert 'class_weight' not in str(warned)
    labels(root, *[0] * 22, 1, 255)
    check(data_set(root))
    assert 'class 0 95.65%, class 1 4.35%' in str(warned)
    assert 'class_weight=[0.723, 3.391]' in str(warned)  # (median share / share) ** 0.5, of 22/23 and 1/23
    assert class_weights([0.5, 0, 0.125, 0.125]) == [0.5, 1, 1, 1]  # a class without pixels has no share
