"""What the data sets find, sample and pack, and what they say of files that are not as they should be."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mmattn.video import datasets as module
from mmattn.video.datasets import DAVISDataset, VideoFolderDataset, YouTubeVOSDataset
from mmattn.video.frame_files import read_frame
from mmattn.video.loading import LoadClipFrames, LoadClipMasks, LoadGivenMasks, PackClip, SampleClip
from mmattn.video.masks import write_mask

from ..requirements import requires
from . import clips
from .clips import TEST, packed, squares


def train(num_frames, **options):
    return [SampleClip(num_frames, **options), LoadClipFrames(), LoadClipMasks(), PackClip()]


def davis(root, part='val', **options):
    return DAVISDataset(f'ImageSets/{part}.txt', '240p', data_root=str(root), **options)


def test_a_test_item_is_the_whole_clip_and_what_is_given(tmp_path):
    masks = [squares(p, 1, 5) for p in range(4)]
    masks[2] = squares(2, 1, 5, 6)  # DAVIS knows the objects of the first frame alone
    clips.davis(tmp_path, bear=masks, goat=masks[:1])
    dataset = davis(tmp_path, pipeline=TEST, test_mode=True)
    item, goat = dataset[0], dataset[1]
    assert list(item) == ['data_samples']
    sample = item['data_samples']
    assert (sample.clip, sample.sample_idx, sample.ori_shape) == ('bear', 0, clips.SIZE)
    assert sample.frame_paths == [str(tmp_path / f'JPEGImages/240p/bear/{i:05}.jpg') for i in range(4)]
    assert sample.mask_paths == [str(tmp_path / f'Annotations/240p/bear/{i:05}.png') for i in range(4)]
    assert sample.frame_numbers == sample.output_positions == [0, 1, 2, 3]
    assert sample.first_frames == {1: 0, 5: 0}
    assert list(sample.given) == [0]
    assert sample.given[0].dtype == torch.uint8
    np.testing.assert_array_equal(sample.given[0], masks[0])
    assert goat['data_samples'].frame_numbers == [0]


def test_one_object_of_davis_2016(tmp_path):
    clips.davis(tmp_path, bear=[np.where(squares(p, 2, 3) > 0, 255, 0) for p in range(3)])
    (tmp_path / 'ImageSets/val.txt').write_text(
        ''.join(f'/JPEGImages/240p/bear/{i:05}.jpg /Annotations/240p/bear/{i:05}.png\n' for i in range(3))
    )
    sample = davis(tmp_path, pipeline=TEST, single_object=True)[0]['data_samples']
    assert len(davis(tmp_path, single_object=True)) == 1
    assert sample.first_frames == {1: 0}
    np.testing.assert_array_equal(sample.given[0], squares(0, 2, 3) > 0)
    with pytest.raises(ValueError, match=r'00000.png: shows no object \(255 is void\).*single_object=True'):
        davis(tmp_path)


def test_objects_that_are_given_later(tmp_path):
    """A folder with masks at frames 0 and 20: the second shows what begins there, and what does not."""
    masks = [squares(p % 9, 1, 5) for p in range(23)]
    masks[20] = squares(2, 1, 7)
    clips.clip(tmp_path, 'walk', masks, masked=(0, 20))
    sample = packed(tmp_path)
    assert sample.first_frames == {1: 0, 5: 0, 7: 20}
    assert list(sample.given) == [0, 20]
    np.testing.assert_array_equal(sample.given[20], squares(2, 7))
    assert [i for i, path in enumerate(sample.mask_paths) if path] == [0, 20]


def test_a_folder_of_frames_is_a_clip(tmp_path):
    clips.clip(tmp_path, '.', [squares(p, 3) for p in range(12)], 'walk', 'walk masks', masked=(2,), suffix='.png')
    for i in range(12):  # the tenth behind the ninth; what is no frame does not count
        (tmp_path / f'walk/{i:05}.png').rename(tmp_path / f'walk/img{7 + i}.png')
    (tmp_path / 'walk masks/00002.png').rename(tmp_path / 'walk masks/img9.png')
    (tmp_path / 'walk/notes.txt').write_text('')
    (tmp_path / 'walk/._img7.png').write_text('')
    dataset = VideoFolderDataset(
        data_root=str(tmp_path), data_prefix=dict(img_path='walk', mask_path='walk masks'), pipeline=TEST
    )
    sample = dataset[0]['data_samples']
    assert len(dataset) == 1
    assert sample.clip == 'walk'
    assert sample.frame_numbers == list(range(12))
    assert sample.first_frames == {3: 2}
    assert [read_frame(path)[0, 0, 2] for path in sample.frame_paths] == [10 + 9 * i for i in range(12)]


def test_youtube_vos(tmp_path):
    objects = dict(a={1: ('cat', 1), 2: ('dog', 3)}, b={4: ('yak', 0)})
    clips.youtube_vos(tmp_path / 'valid', objects, dict(a=5, b=3), masked=(0, 1, 3))
    # a mask of the server shows no more than what begins there
    write_mask(tmp_path / 'valid/Annotations/a/00015.png', squares(3, 2))
    clips.youtube_vos(tmp_path / 'train', dict(c={1: ('cat', 0)}), dict(c=2))
    dataset = YouTubeVOSDataset(data_root=str(tmp_path / 'valid'), seen='../train/meta.json', pipeline=TEST)
    assert dataset.metainfo['seen_categories'] == ['cat']
    a, b = (dataset[i]['data_samples'] for i in range(2))
    assert (a.first_frames, b.first_frames) == ({1: 1, 2: 3}, {4: 0})
    assert a.categories == {1: 'cat', 2: 'dog'}
    assert a.frame_numbers == [0, 5, 10, 15, 20]
    assert a.output_positions == [1, 2, 3, 4]  # what the server asks for
    np.testing.assert_array_equal(a.given[1], squares(1, 1))
    np.testing.assert_array_equal(a.given[3], squares(3, 2))
    assert 'seen_categories' not in YouTubeVOSDataset(data_root=str(tmp_path / 'valid')).metainfo


def break_files(root):
    """All that can be wrong with a data set, and what its faults begin with."""
    frames, masks = root / 'JPEGImages/240p', root / 'Annotations/240p'
    for number in (2, 5, 6):
        (frames / f'gap/0000{number}.jpg').unlink()
    cut = frames / 'cut/00001.jpg'
    cut.write_bytes(cut.read_bytes()[:-100])
    (frames / 'cut/00002.jpg').write_bytes(b'')
    Image.new('L', (44, 29)).save(frames / 'cut/00003.jpg')
    Image.fromarray(np.full(clips.SIZE, 40000, np.uint16)).save(frames / 'cut/00004.jpg', format='PNG')
    write_mask(masks / 'size/00001.png', np.zeros((44, 30), int))
    (masks / 'size/00002.png').write_bytes((masks / 'size/00002.png').read_bytes()[:-30])
    Image.new('RGB', (44, 30)).save(masks / 'size/00003.png')
    Image.fromarray(squares(1, 200)).save(masks / 'size/00004.png', format='JPEG')
    Image.fromarray(squares(1, 200)).save(masks / 'size/00005.bmp')
    write_mask(masks / 'empty/00000.png', squares(0))
    (masks / 'first/00000.png').unlink()
    (frames / 'void').rename(frames / 'elsewhere')
    for suffix in ('jpg', 'png'):
        Image.new('RGB', (44, 30)).save(frames / f'empty/unnumbered.{suffix}')
    return [
        f'{frames}/gap/00003.jpg: follows 00001.jpg; frames missing between them: 1',
        f'{frames}/gap/00007.jpg: follows 00004.jpg; frames missing between them: 2',
        *(f'{masks}/gap/0000{i}.png: ' for i in (2, 5, 6)),
        *(f'{frames}/cut/0000{i}.jpg: ' for i in (1, 2, 3, 4)),
        *(f'{masks}/size/0000{i}.png: ' for i in (1, 2, 3, 4)),
        f'{masks}/size/00005.png: has the same name',
        f'{masks}/empty/00000.png: ',
        f'{frames}/empty: ',
        f'{masks}/first: ',
        f'{frames}/void: ',
        f'{frames}/none: ',
    ]


def test_all_faults_are_told_at_once_before_work(tmp_path):
    masks = [squares(p, 1) for p in range(8)]
    names = ('fine', 'gap', 'cut', 'size', 'empty', 'first', 'void')
    clips.davis(tmp_path, **dict.fromkeys(names, masks))
    (tmp_path / 'ImageSets/val.txt').write_text('\n'.join([*names, 'none', '']))
    assert len(DAVISDataset('ImageSets/train.txt', '240p', data_root=str(tmp_path))) == len(names)
    expected = break_files(tmp_path)
    with pytest.raises(ValueError, match=f'^{len(expected)} faults:\n') as raised:
        davis(tmp_path)
    told = raised.value.lines()
    assert [sum(line.startswith(fault) for line in told) for fault in expected] == [1] * len(expected), told
    with pytest.raises(ValueError, match='10 faults'):  # what costs no reading
        davis(tmp_path, check_files=False)


@pytest.mark.parametrize('shown', ['meta', 'masks'])
def test_objects_of_masks_and_meta_json_that_differ_are_a_warning(tmp_path, monkeypatch, shown):
    dog = ('dog', 2 if shown == 'meta' else 0)
    clips.youtube_vos(tmp_path, dict(a={1: ('cat', 0), 2: dog}, b={3: ('yak', 0)}), dict(a=5, b=2))
    if shown == 'meta':
        write_mask(tmp_path / 'Annotations/a/00010.png', squares(2, 1))
    else:
        edit(tmp_path / 'meta.json', lambda objects: objects.pop('2'))
    told = []
    monkeypatch.setattr(module, 'print_log', lambda message, *args: told.append(message))
    YouTubeVOSDataset(data_root=str(tmp_path))
    (message,) = told
    assert re.match(rf'a: .*objects 2.*{tmp_path}/meta\.json', message)


def test_frames_and_masks_of_meta_json_that_are_not_there(tmp_path):
    clips.youtube_vos(tmp_path, dict(a={1: ('cat', 0), 2: ('dog', 1)}), dict(a=4))
    (tmp_path / 'Annotations/a/00005.png').unlink()
    edit(tmp_path / 'meta.json', lambda objects: objects['1']['frames'].append('00099'))
    with pytest.raises(ValueError, match='2 faults') as raised:
        YouTubeVOSDataset(data_root=str(tmp_path))
    assert [line.split(': ')[0] for line in raised.value.lines()] == [
        f'{tmp_path}/JPEGImages/a/00099.jpg',
        f'{tmp_path}/Annotations/a/00005.png',
    ]


def test_a_clip_without_a_mask(tmp_path):
    clips.clip(tmp_path, 'a', [squares(p, 1) for p in range(3)], masked=())
    with pytest.raises(ValueError, match=rf'{tmp_path}/Annotations/a: .*{tmp_path}/JPEGImages/a'):
        VideoFolderDataset(data_root=str(tmp_path))


@pytest.mark.parametrize('loader', [SampleClip(2), SampleClip(2, reference='random'), LoadGivenMasks()])
def test_masks_that_show_no_object_are_told_by_the_loader(tmp_path, loader):
    """Where the check of the files is left out."""
    clips.clip(tmp_path, 'walk', [squares(p) for p in range(3)])
    dataset = VideoFolderDataset(data_root=str(tmp_path), check_files=False, pipeline=[loader])
    with pytest.raises(ValueError, match=r'^walk: '):
        dataset[0]


def edit(path, change):
    """Change the content of a JSON file."""
    content = json.loads(path.read_text())
    change(content['videos']['a']['objects'])
    path.write_text(json.dumps(content))


def test_names_of_frames_need_no_padding_and_no_order(tmp_path):
    """Positions are ascending: '10' is before '5' only as text."""
    clips.youtube_vos(tmp_path, dict(a={1: ('cat', 1), 2: ('dog', 2)}), dict(a=4))

    def without_padding(objects):
        for thing in objects.values():
            thing['frames'] = [str(int(frame)) for frame in thing['frames'][::-1]]

    edit(tmp_path / 'meta.json', without_padding)
    for path in [*tmp_path.rglob('000*.*')]:
        path.rename(path.with_stem(str(int(path.stem))))
    item = YouTubeVOSDataset(data_root=str(tmp_path))[0]
    assert [Path(path).stem for path in item['frame_paths']] == ['0', '5', '10', '15']
    assert item['given_positions'] == [1, 2]
    assert item['output_positions'] == [1, 2, 3]


def videos(name='a', number='1', **thing):
    return json.dumps(dict(videos={name: dict(objects={number: dict(frames=['00000']) | thing})}))


WRONG_VIDEOS = ['{}', '{"videos": {"a": {"objects": {"1": {}}}}}', '{"videos"', videos(''), videos(frames='00000')]
WRONG_VIDEOS += [videos(number='0'), videos(number='255'), videos(frames=[0]), videos(category=3)]


@pytest.mark.parametrize('content', WRONG_VIDEOS)
def test_a_meta_json_of_another_kind_is_named(tmp_path, content):
    (tmp_path / 'meta.json').write_text(content)
    with pytest.raises(ValueError, match=rf'^{tmp_path}/meta\.json: '):
        YouTubeVOSDataset(data_root=str(tmp_path))


def test_lists_and_folders_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match='JPEGImages'):
        VideoFolderDataset(data_root=str(tmp_path))
    clips.davis(tmp_path, bear=[squares(0, 1)])
    with pytest.raises(FileNotFoundError, match=r'ImageSets/test\.txt'):
        davis(tmp_path, 'test')
    path = tmp_path / 'ImageSets/val.txt'
    path.write_text('\n')
    with pytest.raises(ValueError, match=r'ImageSets/val\.txt'):
        davis(tmp_path)
    path.write_bytes('\ufeffbear\r\n'.encode())  # a byte order mark
    assert davis(tmp_path)[0]['clip'] == 'bear'


def test_gaps_may_be_allowed_and_steps_be_of_any_size(tmp_path):
    clips.clip(tmp_path, 'a', [squares(p, 1) for p in range(4)], numbers=[3, 10, 17, 24])
    assert VideoFolderDataset(data_root=str(tmp_path)).get_data_info(0)['frame_numbers'] == [0, 7, 14, 21]
    clips.clip(tmp_path, 'b', [squares(p, 1) for p in range(3)], numbers=[0, 1, 100_000])
    with pytest.raises(ValueError, match=r'100000\.jpg: follows 00001\.jpg; frames missing between them: 99998'):
        VideoFolderDataset(data_root=str(tmp_path))
    assert len(VideoFolderDataset(data_root=str(tmp_path), allow_gaps=True)) == 2


def test_clips_of_youtube_vos_may_have_gaps(tmp_path):
    clips.youtube_vos(tmp_path, dict(a={1: ('cat', 2)}), dict(a=5), masked=(2,))
    (tmp_path / 'JPEGImages/a/00005.jpg').unlink()
    assert YouTubeVOSDataset(data_root=str(tmp_path)).get_data_info(0)['frame_numbers'] == [0, 10, 15, 20]
    with pytest.raises(ValueError, match=r'00010\.jpg: follows 00000\.jpg'):
        YouTubeVOSDataset(data_root=str(tmp_path), allow_gaps=False)


def positions(item):
    """Which frames of :func:`clips.clip` an item's inputs show."""
    return ((item['inputs'][:, 2, 0, 0].float() - 10) / 9).round().int().tolist()


def test_a_training_item_is_the_reference_and_a_frame_of_each_segment(tmp_path):
    masks = [squares(p % 9, *([] if p < 2 else [1, 5])) for p in range(25)]
    masks[7] = squares(7, 1, 6)
    clips.clip(tmp_path, 'walk', masks, masked=[i for i in range(25) if i != 12])
    dataset = VideoFolderDataset(data_root=str(tmp_path), pipeline=train(6))
    np.random.seed(0)
    items = [dataset[0] for _ in range(150)]
    chosen = np.array([positions(item) for item in items])
    assert (chosen[:, 0] == 2).all()  # the first mask with an object
    segments = [[3, 4, 5, 6], [7, 8, 9, 10], [11, 13, 14, 15], [16, 17, 18, 19], [20, 21, 22, 23, 24]]
    assert [sorted(set(column)) for column in chosen[:, 1:].T.tolist()] == segments  # all of them, without the 12th
    for item, expected in zip(items, chosen.tolist()):
        sample = item['data_samples']
        assert sample.frame_numbers == [position - 2 for position in expected]
        assert sample.first_frames == {1: 0, 5: 0}
        for mask, position in zip(sample.gt_masks.data, expected):
            wanted = masks[position] * (masks[position] != 6)  # which the reference does not show
            np.testing.assert_array_equal(mask, wanted)
        np.testing.assert_array_equal(sample.given[0], masks[2])
        assert [path.endswith(f'{i:05}.png') for path, i in zip(sample.mask_paths, expected)] == [True] * 6
    assert item['inputs'].dtype == sample.gt_masks.data.dtype == sample.given[0].dtype == torch.uint8
    assert item['inputs'].shape == (6, 3, *clips.SIZE)


@pytest.mark.one_case
@pytest.mark.parametrize(
    ('length', 'expected'), [(1, [[0, 0, 0, 0]]), (2, [[0, 1, 1, 1]]), (3, [[0, 1, 1, 2]]), (4, [[0, 1, 2, 3]])]
)
def test_short_clips_give_frames_more_than_once(tmp_path, length, expected):
    clips.clip(tmp_path, 'walk', [squares(p, 1) for p in range(length)])
    dataset = VideoFolderDataset(data_root=str(tmp_path), pipeline=train(4))
    assert {*map(tuple, (positions(dataset[0]) for _ in range(20)))} == {*map(tuple, expected)}
    assert positions(VideoFolderDataset(data_root=str(tmp_path), pipeline=train(1))[0]) == [0]


def test_a_random_reference_shows_an_object_and_leaves_enough_frames(tmp_path):
    masks = [squares(p, *([1] if p % 2 else [])) for p in range(12)]
    clips.clip(tmp_path, 'walk', masks)
    dataset = VideoFolderDataset(data_root=str(tmp_path), pipeline=train(4, reference='random'))
    items = [dataset[0] for _ in range(100)]
    chosen = np.array([positions(item) for item in items])
    assert sorted(set(chosen[:, 0].tolist())) == [1, 3, 5, 7, 9]
    assert (np.diff(chosen[chosen[:, 0] < 9]) > 0).all()
    numbers = [item['data_samples'].frame_numbers for item in items]  # the distance to the reference
    np.testing.assert_array_equal(numbers, chosen - chosen[:, :1])


def test_so_many_objects_are_chosen_at_random(tmp_path):
    clips.clip(tmp_path, 'walk', [squares(p, 1, 2, 6) for p in range(3)])
    pipeline = [SampleClip(3), LoadClipFrames(), LoadClipMasks(max_objects=2), PackClip()]
    dataset = VideoFolderDataset(data_root=str(tmp_path), pipeline=pipeline)
    samples = [dataset[0]['data_samples'] for _ in range(40)]
    assert {tuple(sample.first_frames) for sample in samples} == {(1, 2), (1, 6), (2, 6)}
    assert all(set(s.gt_masks.data.unique().tolist()) == {0, *s.first_frames} for s in samples)


def test_a_clip_without_an_object_in_the_reference_is_rejected():
    results = dict(clip='walk', frames=[np.zeros((2, 3, 3), np.uint8)], masks=[np.array([[0, 255, 0]] * 2, np.uint8)])
    assert PackClip()(results) is None


def test_what_does_not_count_is_no_part_of_the_given_mask():
    masks = [np.array([[0, 255, 7]], np.uint8), np.array([[255, 8, 7]], np.uint8)]
    sample = PackClip()(dict(clip='walk', masks=masks))['data_samples']
    assert sample.gt_masks.data.tolist() == [[[0, 255, 7]], [[255, 0, 7]]]
    assert sample.given[0].tolist() == [[0, 0, 7]]
    assert sample.first_frames == {7: 0}


def test_corrupt_frames_are_named(tmp_path):
    clips.clip(tmp_path, 'walk', [squares(p, 1) for p in range(3)])
    path = tmp_path / 'JPEGImages/walk/00001.jpg'
    path.write_bytes(path.read_bytes()[:-100])
    dataset = VideoFolderDataset(data_root=str(tmp_path), pipeline=train(3), check_files=False)
    with pytest.raises(ValueError, match=r'walk/00001\.jpg: unreadable'):
        dataset[0]


@requires('davis_240p')
def test_real_clips():
    sizes = {}
    for part, number in (('train', 6), ('val', 2)):
        dataset = davis(clips.DAVIS, part, pipeline=TEST)
        assert len(dataset) == number
        for item in dataset:
            sample = item['data_samples']
            assert sample.first_frames == {1: 0}
            assert 0.005 < (sample.given[0] == 1).float().mean() < 0.5
            sizes[sample.clip] = len(sample.frame_paths)
    assert (sizes['libby'], sizes['soapbox'], sizes['cows']) == (49, 99, 104)
