"""The store of region features: what is read is what was written, interrupted or not, and no fault passes."""

import json
import os
import pickle
import re
import shutil
import signal
import sys
from functools import partial

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.runner import Runner
from torch.utils.data import DataLoader, Dataset

from mmattn.language import Regions, RegionStore, RegionWriter
from mmattn.language.regions.data_preprocessor import RegionDataPreprocessor, pad_regions
from mmattn.language.regions.region_store import clip_boxes
from mmattn.language.text.batching import pad_collate
from mmattn.registry import MODELS

from ...full_disk import full_disk

SIZE = (50, 40)
ARRAYS = ('features', 'boxes', 'classes', 'scores')


def regions(seed, count=3, width=6, extra=True):
    """Random regions of an image, with features that float16 holds exactly."""
    rng = torch.Generator().manual_seed(seed)
    corners = torch.rand(2, count, 2, generator=rng) * torch.tensor(SIZE) * 0.45
    boxes = torch.cat([corners[0], corners[0] + 1 + corners[1]], 1)
    features = torch.randint(-50, 50, (count, width), generator=rng) / 8
    classes = torch.arange(count) - 1 if extra else None
    scores = torch.rand(count, generator=rng) if extra else None
    return Regions(features, boxes, SIZE, classes, scores)


IMAGES = {f'image {i}.é': regions(i, 1 + i % 4) for i in range(7)}


def write(path, images=IMAGES, **options):
    with RegionWriter(path, **options) as writer:
        for image_id, each in images.items():
            if image_id not in writer:
                writer.write(image_id, each)
    return path


def begin(path, count, **options):
    """A writer that has written the first images."""
    writer = RegionWriter(path, **options)
    for item in list(IMAGES.items())[:count]:
        writer.write(*item)
    return writer


def end(writer):
    """Interrupt a writer, and return the number of its images."""
    writer.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    return len(writer)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def same(a, b):
    assert a.size == b.size
    for name in ARRAYS:
        x, y = getattr(a, name), getattr(b, name)
        assert x is y is None or (x.dtype == y.dtype and torch.equal(x, y)), name


# Reading.


@pytest.mark.parametrize('float16', [False, True])
@pytest.mark.parametrize('extra', [False, True])
def test_what_is_read_is_what_was_written(tmp_path, float16, extra):
    images = {image_id: regions(i, 1 + i % 4, extra=extra) for i, image_id in enumerate(IMAGES)}
    store = RegionStore(write(tmp_path / 'a', images, float16=float16, source='a detector'))
    assert store.image_ids == list(images)
    assert len(store) == 7
    assert store.num_features == 6
    for image_id, each in images.items():
        assert image_id in store
        same(store[image_id], each)
    store.check()
    assert json.loads((tmp_path / 'a/store.json').read_text(encoding='utf-8')) == dict(
        version=1,
        source='a detector',
        dtype='float16' if float16 else 'float32',
        num_features=6,
        arrays=list(ARRAYS if extra else ARRAYS[:2]),
    )
    assert not list(tmp_path.glob('*.part'))


def test_the_files_are_those_of_numpy(tmp_path):
    """Other programs read them with np.load alone."""
    path = write(tmp_path / 'a')
    found = {name: np.load(path / f'{name}.npy') for name in (*ARRAYS, 'offsets', 'sizes')}
    for name, dtype in zip(ARRAYS, ('float32', 'float32', 'int32', 'float32')):
        expected = torch.cat([getattr(each, name) for each in IMAGES.values()]).numpy().astype(dtype)
        assert found[name].dtype == dtype
        np.testing.assert_array_equal(found[name], expected)
    assert found['offsets'].tolist() == [0, 1, 3, 6, 10, 11, 13, 16]
    assert found['sizes'].tolist() == [list(SIZE)] * 7
    assert (path / 'image_ids.txt').read_text(encoding='utf-8').split('\n') == [*IMAGES, '']


def test_a_float16_store_is_half_as_large_and_rounds(tmp_path):
    each = regions(0)._replace(features=torch.tensor([[1 / 3]] * 3))
    small = write(tmp_path / 'a', {'x': each}, float16=True)
    large = write(tmp_path / 'b', {'x': each})
    assert [path.joinpath('features.npy').stat().st_size - 128 for path in (small, large)] == [6, 12]
    assert torch.equal(RegionStore(small)['x'].features, each.features.half().float())


def test_an_image_is_a_copy(tmp_path):
    store = RegionStore(write(tmp_path / 'a'))
    image_id, each = next(iter(IMAGES.items()))
    for x in (store[image_id].features, store[image_id].boxes, store[image_id].scores):
        x.zero_()
    same(store[image_id], each)


def test_several_folders_are_one_store(tmp_path):
    a = write(tmp_path / 'a', {'1': regions(1), '2': regions(2)})
    b = write(tmp_path / 'b', {'3': regions(3, extra=False)})
    store = RegionStore([a, str(b)])
    assert store.image_ids == ['1', '2', '3']
    same(store['2'], regions(2))
    same(store['3'], regions(3, extra=False))
    write(tmp_path / 'c', {'2': regions(2)})
    write(tmp_path / 'd', {'4': regions(2, width=5), '1': regions(1, width=5)})
    with pytest.raises(ValueError, match=r': 3 faults:\n') as caught:
        RegionStore([a, tmp_path / 'c', tmp_path / 'd'])
    assert str(caught.value).split('\n  ')[1:] == [
        f'{tmp_path}/c: image 2 is also in {a}, line 2',
        f'{tmp_path}/d: image 1 is also in {a}, line 1',
        f'{tmp_path}/d: 5 features per region, but {a} has 6',
    ]


class Images(Dataset):
    def __init__(self, store):
        self.store = store

    def __len__(self):
        return len(self.store)

    def __getitem__(self, index):
        return self.store[self.store.image_ids[index]]


@pytest.mark.parametrize('method', ['fork', pytest.param('spawn', marks=pytest.mark.slow)])
def test_workers_of_a_data_loader_read_the_same(tmp_path, method):
    store = RegionStore(write(tmp_path / 'a'))
    loader = DataLoader(
        Images(store), batch_size=1, num_workers=2, collate_fn=lambda x: x[0], multiprocessing_context='fork'
    )
    if method == 'spawn':
        loader = DataLoader(Images(store), batch_size=None, num_workers=1, multiprocessing_context='spawn')
    for found, expected in zip(loader, IMAGES.values(), strict=True):
        same(found._replace(size=tuple(found.size)), expected)


def test_a_pickled_store_holds_its_paths_alone(tmp_path):
    store = RegionStore(write(tmp_path / 'a'))
    data = pickle.dumps(store)
    assert len(data) < 300
    same(pickle.loads(data)['image 3.é'], IMAGES['image 3.é'])


# Faults of stores.


def test_all_faults_of_images_together(tmp_path):
    """A store that another program wrote: the writer would accept no such regions."""
    images = {name: regions(i, 4) for i, name in enumerate('abcdefg')}
    store = RegionStore(write(tmp_path / 'a', images))
    arrays = {name: np.load(tmp_path / f'a/{name}.npy') for name in (*ARRAYS, 'offsets', 'sizes')}
    arrays['features'][[5, 6], 1] = np.nan, np.inf  # b
    arrays['boxes'][8, 2] = 50.5  # c
    arrays['boxes'][9] = 5, 5, 5, 9
    arrays['boxes'][12, 0] = np.nan  # d
    arrays['scores'][13] = np.inf
    arrays['offsets'][5] = 20  # e: 16 to 20, f: none
    arrays['offsets'][6] = 20
    arrays['sizes'][6] = 0, 40  # g
    for name, array in arrays.items():
        np.save(tmp_path / f'a/{name}.npy', array)
    store = RegionStore(tmp_path / 'a')
    expected = [
        '6 features per region, but the model has 2048',
        'image b: features are NaN, infinite or too large for float32: regions 1, 2',
        'image c: boxes are outside the image of 50×40: region 0',
        'image c: boxes have a side that is not positive: region 1',
        'image d: boxes are NaN or infinite: region 0',
        'image d: scores are NaN or infinite: region 1',
        'image f: no regions',
        'image g: its size must be positive; got 0×40',
        'image z is not in the store',
    ]
    wanted = [*images, 'z', 'z', 'a']
    assert store.find_faults(wanted, 2048) == expected
    assert store.find_faults(wanted, 6, features=False) == expected[2:]
    assert store.find_faults(['a', 'e'], 6) == []
    store.check(['a', 'e'], 6)
    with pytest.raises(ValueError, match=r'(?s)a: 9 faults:\n  6 features .*\n  image z is not in the store$'):
        store.check(wanted, 2048)
    with pytest.raises(ValueError, match=r'(?s)a: 30 faults:\n.*image 19 is not in the store\n  … and 10 more$'):
        store.check(map(str, range(30)))
    with pytest.raises(KeyError, match=r'image z is not in the store .*/a'):
        store['z']


@pytest.mark.parametrize('name', ['features', 'boxes'])
def test_an_image_with_nan_is_not_read(tmp_path, name):
    """Another program may have written it; whatever trains, tests or answers reads regions here."""
    store = RegionStore(write(tmp_path / 'a'))
    array = np.load(tmp_path / f'a/{name}.npy')
    array[2, -1] = np.nan
    np.save(tmp_path / f'a/{name}.npy', array)
    broken, *others = list(IMAGES)[1::-1]
    store = RegionStore(tmp_path / 'a')
    with pytest.raises(ValueError, match=rf'^image {broken} of the region store .*a: {name} are NaN.*: region 1$'):
        store[broken]
    same(store[others[0]], IMAGES[others[0]])


def test_all_faults_of_files_together(tmp_path):
    path = write(tmp_path / 'a')
    for name in ('features', 'scores'):
        data = (path / f'{name}.npy').read_bytes()
        (path / f'{name}.npy').write_bytes(data[:-4])
    (path / 'boxes.npy').unlink()
    (path / 'offsets.npy').write_bytes(b'')
    with pytest.raises(ValueError, match='4 faults') as caught:
        RegionStore([path, write(tmp_path / 'b', {'1': regions(1)})])
    offsets, features, boxes, scores = str(caught.value).split('\n  ')[1:]
    for name, fault in dict(offsets=offsets, features=features, scores=scores).items():
        assert fault.startswith(f'{path}/{name}.npy: truncated, or not a NumPy array: ')
    assert boxes == f'{path}/boxes.npy: no such file'
    with pytest.raises(FileNotFoundError, match='a converter such as'):
        RegionStore(tmp_path / 'none')
    with pytest.raises(ValueError, match='at least one folder'):
        RegionStore([])


CHANGES = {
    'boxes.npy: float64 (16, 4), not float32 (16, 4)': lambda path: np.save(
        path / 'boxes.npy', np.load(path / 'boxes.npy').astype(float)
    ),
    'classes.npy: int32 (15,), not int32 (16,)': lambda path: np.save(
        path / 'classes.npy', np.load(path / 'classes.npy')[:15]
    ),
    'sizes.npy: int32 (6, 2), not int32 (7, 2)': lambda path: np.save(
        path / 'sizes.npy', np.load(path / 'sizes.npy')[:6]
    ),
    'offsets.npy: must ascend from 0 to 16': lambda path: np.save(
        path / 'offsets.npy', np.array([0, 1, 3, 2, 10, 11, 13, 16])
    ),
    'features.npy: float32 (16, 6), not float32 (16, 7)': lambda path: change(path, num_features=7),
    'store.json: version 2 of the format; this release reads 1': lambda path: change(path, version=2),
    'store.json: not the record of a store: ValueError("arrays is [\'boxes\']")': lambda path: change(
        path, arrays=['boxes']
    ),
    'store.json: not the record of a store: JSONDecodeError': lambda path: (path / 'store.json').write_bytes(b'{'),
    'store.json: no such file': lambda path: (path / 'store.json').unlink(),
    'image_ids.txt: no such file': lambda path: (path / 'image_ids.txt').unlink(),
    'image_ids.txt, line 1: not UTF-8': lambda path: (path / 'image_ids.txt').write_bytes(b'\xff\n'),
    'image 1 is also in': lambda path: (path / 'image_ids.txt').write_text('1\n1\n3\n4\n5\n6\n7\n', encoding='utf-8'),
}


def change(path, **values):
    record = json.loads((path / 'store.json').read_text(encoding='utf-8'))
    (path / 'store.json').write_text(json.dumps({**record, **values}), encoding='utf-8')


@pytest.mark.parametrize('message', CHANGES)
def test_files_that_do_not_fit_each_other(tmp_path, message):
    path = write(tmp_path / 'a')
    CHANGES[message](path)
    with pytest.raises(ValueError, match=re.escape(message)):
        RegionStore(path)


# Writing.


@pytest.mark.parametrize(
    ('wrong', 'message'),
    [
        (dict(features=torch.full((3, 6), torch.nan)), 'NaN, infinite or too large for float16: regions 0, 1, 2'),
        (dict(features=torch.tensor([[0.0] * 6] * 2 + [[7e4] * 6])), 'too large for float16: region 2'),
        (dict(features=torch.zeros(3, 5)), 'num_features must be 6, as of the images before; got 5'),
        (dict(features=torch.zeros(0, 6), boxes=torch.zeros(0, 4), classes=None, scores=None), 'no regions'),
        (dict(features=torch.zeros(3)), r'features must be \(n, D\); got \(3,\)'),
        (dict(boxes=torch.zeros(2, 4)), r'boxes must be \(3, 4\), one per region; got \(2, 4\)'),
        (dict(scores=None), r"arrays must be \['features', 'boxes', 'classes', 'scores'\], as of the images before"),
        (dict(scores=torch.zeros(2)), r'scores must be \(3,\), one per region; got \(2,\)'),
        (dict(size=(5, 4)), 'outside the image of 5×4: regions 0, 1, 2'),
        (dict(size=(0, 4)), 'its size must be positive; got 0×4'),
        (dict(size=(50.5, 40)), r'size must be whole numbers; got \(50\.5, 40\)'),
        (dict(classes=torch.tensor([1.0, 1.7, 2.0])), 'classes must be integers; got torch.float32'),
    ],
)
def test_wrong_regions_are_not_written(tmp_path, wrong, message):
    with RegionWriter(tmp_path / 'a', float16=True) as writer:
        writer.write('good', regions(0))
        with pytest.raises(ValueError, match=f'image bad: .*{message}'):
            writer.write('bad', regions(1)._replace(**wrong))
        with pytest.raises(ValueError, match='image good is already in the store'):
            writer.write('good', regions(1))
        for wrong_id in ('', 'a\nb', 'a\r', 7):
            with pytest.raises(ValueError, match='image_id must be a non-empty string without line breaks'):
                writer.write(wrong_id, regions(1))
        assert len(writer) == 1
    assert RegionStore(tmp_path / 'a').image_ids == ['good']


def test_a_store_is_never_overwritten(tmp_path):
    path = write(tmp_path / 'a')
    before = content(path)
    with pytest.raises(FileExistsError, match='never overwritten'):
        RegionWriter(path)
    writer = begin(tmp_path / 'b', 1)
    shutil.copytree(path, tmp_path / 'b')  # by another program, in the meantime
    with pytest.raises(FileExistsError, match='never overwritten'):
        writer.__exit__(None, None, None)
    assert content(path) == content(tmp_path / 'b') == before
    with pytest.raises(ValueError, match='no image was written'), RegionWriter(tmp_path / 'c'):
        pass
    assert not (tmp_path / 'c').exists()


def test_other_arguments_do_not_continue_a_store(tmp_path):
    end(begin(tmp_path / 'a', 1, source='x'))
    with pytest.raises(ValueError, match=r"a\.part: begun with source 'x', but now it is 'y'; remove this folder"):
        RegionWriter(tmp_path / 'a', 'y')
    with pytest.raises(ValueError, match="begun with dtype 'float32', but now it is 'float16'"):
        RegionWriter(tmp_path / 'a', 'x', float16=True)
    (tmp_path / 'a.part/images.jsonl').write_bytes(b'{\n')
    with pytest.raises(ValueError, match=r'images.jsonl: not the progress of a store .*; remove .*a\.part'):
        RegionWriter(tmp_path / 'a', 'x')


def in_child(function):
    """Run a function in a forked process, and return how the process ended."""
    child = os.fork()
    if not child:
        try:
            function()
            os._exit(0)
        finally:
            os._exit(9)
    return os.waitpid(child, 0)[1]


def killed_after(limit, path):
    """Write a store, and send SIGKILL to this process before the call of the operating system after ``limit``."""
    calls = 0

    def profile(frame, event, function):
        nonlocal calls
        if event == 'c_call' and function.__name__ in (
            'write',
            'seek',
            'truncate',
            'rename',
            'open',
            'unlink',
            'mkdir',
        ):
            calls += 1
            if calls > limit:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(profile)
    write(path, source='x')


@pytest.mark.parametrize('start', [5, pytest.param(0, marks=pytest.mark.slow)])
def test_a_killed_writer_continues_where_it_stopped(tmp_path, start):
    """Killed at each point of a run, from the first file to the new name of the folder."""
    expected = content(write(tmp_path / 'expected', source='x'))
    limit, most, code = 0, 0, signal.SIGKILL
    while code == signal.SIGKILL:
        path = tmp_path / f'{limit}'
        end(begin(path, start, source='x'))
        code = in_child(partial(killed_after, limit, path))
        limit += 1
        if not path.exists():
            kept = end(begin(path, 0, source='x'))
            assert kept >= max(start, most)
            most = kept
            write(path, source='x')
        assert content(path) == expected
    assert code == 0
    assert most == 7
    assert limit > 30


@pytest.mark.parametrize('lost', range(0, 130, 9))
def test_lost_ends_of_files(tmp_path, lost):
    """After a power failure, files may be shorter than the progress says, or longer."""
    expected = content(write(tmp_path / 'expected'))
    end(begin(tmp_path / 'a', 5))
    for number, name in enumerate(ARRAYS):
        file = tmp_path / f'a.part/new/{name}.npy'
        data = file.read_bytes()
        file.write_bytes(data + b'x' * lost if number == lost % 4 else data[: max(0, len(data) - lost)])
    journal = tmp_path / 'a.part/images.jsonl'
    journal.write_bytes(journal.read_bytes() + b'["image 5')
    assert content(write(tmp_path / 'a')) == expected


def test_a_full_disk_loses_no_image(tmp_path):
    expected = content(write(tmp_path / 'expected'))
    items = list(IMAGES.items())
    with RegionWriter(tmp_path / 'a') as writer:
        with full_disk(190):
            writer.write(*items[0])
            for item in items[1:3]:
                with pytest.raises(OSError, match='File too large'):
                    writer.write(*item)
        assert len(writer) == 1
        for item in items[1:]:  # after space was made
            writer.write(*item)
    assert content(tmp_path / 'a') == expected


def test_two_processes_do_not_write_one_store(tmp_path):
    with RegionWriter(tmp_path / 'a') as writer:
        writer.write('1', regions(1))

        def other():
            try:
                RegionWriter(tmp_path / 'a')
            except BlockingIOError as error:
                os._exit(0 if 'in use by another run' in str(error) else 1)

        assert in_child(other) == 0


# Boxes and batches.


def test_clipped_boxes():
    boxes = torch.tensor([[-3, -4, 7, 8], [49.5, 10, 52, 20], [60, 50, 70, 60], [5, 6, 5, 6], [1, 2, 3, 4]]).float()
    expected = [[0, 0, 7, 8], [49, 10, 50, 20], [49, 39, 50, 40], [5, 6, 6, 7], [1, 2, 3, 4]]
    assert clip_boxes(boxes, SIZE).tolist() == expected


def test_padding_of_regions():
    """Each image is found again in the batch; the rest is 0, the box (0, 0, 1, 1), and masked."""
    counts = (2, 5, 1, 5)
    each = [regions(i, count) for i, count in enumerate(counts)]
    tokens = [torch.arange(3), torch.arange(1), torch.arange(2), torch.arange(3)]
    data = dict(
        inputs=dict(features=[x.features for x in each], boxes=[x.boxes for x in each], target=tokens),
        data_samples=['kept'],
    )
    preprocessor = MODELS.build(dict(type='mmattn.RegionDataPreprocessor'))
    assert isinstance(preprocessor, RegionDataPreprocessor)
    batch = preprocessor(data)
    assert batch['data_samples'] == ['kept']
    inputs = batch['inputs']
    assert inputs['features'].shape == (4, 5, 6)
    assert inputs['target'].tolist() == [[0, 1, 2], [0, 1, 1], [0, 1, 1], [0, 1, 2]]
    for image, (x, count) in enumerate(zip(each, counts)):
        assert torch.equal(inputs['features'][image, :count], x.features)
        assert torch.equal(inputs['boxes'][image, :count], x.boxes)
        assert not inputs['features'][image, count:].any()
        assert inputs['boxes'][image, count:].tolist() == [[0, 0, 1, 1]] * (5 - count)
        assert inputs['region_mask'][image].tolist() == [False] * count + [True] * (5 - count)
    assert 'region_mask' not in data['inputs']  # the batch that came is unchanged


@pytest.mark.parametrize(
    ('features', 'boxes', 'message'),
    [
        ([], [], 'one tensor per image, at least one; got 0 and 0'),
        ([(2, 6)], [(2, 4), (2, 4)], 'got 1 and 2'),
        ([(2, 6), (0, 6)], [(2, 4), (1, 4)], r'got \(0, 6\) and \(1, 4\) for image 1'),
        ([(2, 6), (2, 5)], [(2, 4), (2, 4)], r'must be \(n, 6\) .* got \(2, 5\)'),
        ([(2, 6)], [(3, 4)], r'got \(2, 6\) and \(3, 4\)'),
    ],
)
def test_batches_that_cannot_be_padded(features, boxes, message):
    with pytest.raises(ValueError, match=message):
        pad_regions(list(map(torch.zeros, features)), list(map(torch.zeros, boxes)))


def test_batches_of_pictures_and_single_numbers():
    """Pictures are stacked, without regions; an image without regions is all padding, also if no other has one."""
    pictures = [torch.rand(3, 4, 5), torch.rand(3, 4, 5)]
    data = dict(inputs=dict(image=pictures, answer=[torch.tensor(7), torch.tensor(2)], question=[torch.ones(2)] * 2))
    inputs = RegionDataPreprocessor()(data)['inputs']
    assert torch.equal(inputs['image'], torch.stack(pictures))
    assert inputs['answer'].tolist() == [7, 2]
    assert set(inputs) == {'image', 'answer', 'question'}
    for counts, most in (((0, 2), 2), ((0, 0), 1)):
        features, boxes, mask = pad_regions(
            [torch.ones(count, 6) for count in counts], [torch.ones(count, 4) for count in counts]
        )
        assert features.shape == (2, most, 6)
        assert boxes[0].tolist() == [[0, 0, 1, 1]] * most
        assert mask[0].all()
        assert not features[0].any()
        assert mask[1].tolist() == [counts[1] == 0] * most


@pytest.mark.parametrize('kind', ['regions', 'regions without boxes', 'pictures', 'phrases'])
def test_padding_by_the_workers_gives_the_same_batch(kind):
    counts = 2, 1, 3
    images = {
        'regions': [dict(features=torch.rand(n, 6), boxes=torch.rand(n, 4)) for n in (2, 0, 3)],
        'regions without boxes': [dict(features=torch.rand(n, 6)) for n in (2, 0, 3)],
        'pictures': [dict(image=torch.rand(3, 4, 5)) for _ in counts],
        'phrases': [dict(features=torch.rand(n, 6), phrases=torch.arange(n), targets=torch.rand(n, n)) for n in counts],
    }[kind]
    words = [torch.tensor([4, 5]), torch.tensor([6]), torch.tensor([7, 8, 9])]
    samples = [
        dict(inputs=dict(image, question=question, answer=torch.tensor(1)), data_samples=str(i))
        for i, (image, question) in enumerate(zip(images, words))
    ]
    name = f'mmattn.{"Phrase" if kind == "phrases" else "Region"}DataPreprocessor'
    preprocess = MODELS.build(dict(type=name))
    expected, found = preprocess(pseudo_collate(samples)), preprocess(pad_collate(samples, name))
    assert found.pop('data_samples') == expected.pop('data_samples') == ['0', '1', '2']
    assert found.keys() == expected.keys() == {'inputs'}
    assert found['inputs'].keys() == expected['inputs'].keys()
    for name, x in expected['inputs'].items():
        assert torch.equal(found['inputs'][name], x)


def test_an_image_may_be_without_regions_if_it_is_allowed(tmp_path):
    with RegionWriter(tmp_path / 'regions') as writer:
        for name in ('a', 'b'):
            writer.write(name, regions(0, 2))
    np.save(tmp_path / 'regions/offsets.npy', np.array([0, 0, 4]))
    store = RegionStore(tmp_path / 'regions')
    assert store.find_faults() == ['image a: no regions']
    assert store.find_faults(['a', 'c'], allow_empty=True) == ['image c is not in the store']
    assert store['a'].features.shape == (0, 6)


def test_a_loader_of_a_config_that_inherits_ours_by_package(tmp_path):
    """mmengine adds the scope to all dicts of such a config, and passes it to the function that collates."""
    (tmp_path / 'mine.py').write_text("_base_ = 'mmattn::_base_/datasets/daquar.py'\n")
    loader = Config.fromfile(tmp_path / 'mine.py').train_dataloader
    assert loader.collate_fn._scope_ == 'mmattn'
    samples = [dict(inputs=dict(question=torch.tensor([4, 2])), data_samples='')] * 2
    loader.update(dataset=samples, num_workers=0, persistent_workers=False, sampler=dict(type='DefaultSampler'))
    [batch] = Runner.build_dataloader(loader)
    assert batch['inputs']['question'].tolist() == [[4, 2]] * 2
