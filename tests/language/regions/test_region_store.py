"""The store of region features: what is read is what was written, interrupted or not, and no fault passes."""

import json
import os
import pickle
import re
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.runner import Runner
from torch.utils.data import DataLoader, Dataset

from mmattn.language import Regions, RegionStore, RegionWriter
from mmattn.language.regions import region_writer
from mmattn.language.regions.data_preprocessor import RegionDataPreprocessor, pad_regions
from mmattn.language.text.batching import pad_collate
from mmattn.registry import MODELS
from mmattn.utils.faults import FaultsError

from ...full_disk import full_disk
from ..files import STORED, content, edit_store

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
    assert store.sizes == dict.fromkeys(images, SIZE)
    assert not list(tmp_path.glob('*.part'))


def test_the_files_are_plain_hdf5(tmp_path, monkeypatch):
    """Other programs read them with h5py alone."""
    monkeypatch.setattr(region_writer, 'IMAGES', 5)
    path = write(tmp_path / 'a', float16=True, source='a détector')
    files = [h5py.File(file) for file in sorted(path.iterdir())]
    assert [dict(file.attrs) for file in files] == [dict(source='a détector')] * 2
    for name, dtype in zip(ARRAYS, ('float16', 'float32', 'int32', 'float32')):
        expected = torch.cat([getattr(each, name) for each in IMAGES.values()]).numpy().astype(dtype)
        found = np.concatenate([file[name][()] for file in files])
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, expected)
    assert [file['first'][()].tolist() for file in files] == [[0, 1, 3, 6, 10, 11], [0, 2, 5]]
    assert [file['sizes'][()].tolist() for file in files] == [[[*SIZE]] * 5, [[*SIZE]] * 2]
    assert [name for file in files for name in file['names'].asstr()[()]] == [*IMAGES]


def test_a_float16_store_is_half_as_large_and_rounds(tmp_path):
    each = regions(0, 99, 60)._replace(features=torch.full((99, 60), 1 / 3))
    small, large = (write(tmp_path / f'{float16}', {'x': each}, float16=float16) for float16 in (True, False))
    assert (large / STORED).stat().st_size - (small / STORED).stat().st_size == 2 * 99 * 60
    assert torch.equal(RegionStore(small)['x'].features, each.features.half().float())


def test_an_image_is_a_copy_and_a_pickled_store_its_paths_alone(tmp_path):
    store = RegionStore(write(tmp_path / 'a'))
    image_id, each = next(iter(IMAGES.items()))
    for x in (store[image_id].features, store[image_id].boxes, store[image_id].scores):
        x.zero_()
    same(store[image_id], each)
    data = pickle.dumps(store)
    assert len(data) < 300
    same(pickle.loads(data)[image_id], each)


def test_several_folders_are_one_store(tmp_path):
    a = write(tmp_path / 'a', {'1': regions(1), '2': regions(2)})
    b = write(tmp_path / 'b', {'3': regions(3, extra=False)})
    store = RegionStore([a, str(b)])
    assert store.image_ids == ['1', '2', '3']
    same(store['2'], regions(2))
    same(store['3'], regions(3, extra=False))
    write(tmp_path / 'c', {'2': regions(2)})
    write(tmp_path / 'd', {'4': regions(2, width=5), '1': regions(1, width=5)})
    with pytest.raises(ValueError, match='3 faults') as caught:
        RegionStore([a, tmp_path / 'c', tmp_path / 'd'])
    faults = str(caught.value).split('\n  ')[1:]
    expected = ('c', 'image 2'), ('d', 'image 1'), ('d', '5 features')
    places = [f'{tmp_path / name / STORED}: {fault}' for name, fault in expected]
    assert [' '.join(fault.split()[:3]) for fault in faults] == places


# Faults of stores.


def test_all_faults_of_images_together(tmp_path):
    """A store that another program wrote: the writer would accept no such regions."""
    images = {name: regions(i, 4) for i, name in enumerate('abcdefg')}
    write(tmp_path / 'a', images)
    with h5py.File(tmp_path / 'a' / STORED, 'r+') as file:
        arrays = {name: file[name][()] for name in (*ARRAYS, 'first', 'sizes')}
        arrays['features'][[5, 6], 1] = np.nan, np.inf  # b
        arrays['boxes'][8, 2] = 50.5  # c
        arrays['boxes'][9] = 5, 5, 5, 9
        arrays['boxes'][12, 0] = np.nan  # d
        arrays['scores'][13] = np.inf
        arrays['first'][5] = 20  # e: 16 to 20, f: none
        arrays['first'][6] = 20
        arrays['sizes'][6] = 0, 40  # g
        for name, array in arrays.items():
            file[name][...] = array
    store = RegionStore(tmp_path / 'a')
    expected = [
        r'6 features .* 2048',
        r'image b: features .*: regions 1, 2',
        r'image c: .* outside .*: region 0',
        r'image c: .* not positive: region 1',
        r'image d: boxes .*: region 0',
        r'image d: scores .*: region 1',
        r'image f: no regions',
        r'image g: its size .*0×40',
        r'image z is not in the store',
    ]
    wanted = [*images, 'z', 'z', 'a']
    for found, patterns in (
        (store.image_faults(wanted, 2048), expected),
        (store.image_faults(wanted, 6, features=False), expected[2:]),
    ):
        assert all(re.fullmatch(*pair) for pair in zip(patterns, found, strict=True))
    assert store.image_faults(['a', 'e'], 6) == []
    for arguments, message in (
        ((wanted, 2048), 'a: 9 faults:\n  6 features.*image z'),
        ((map(str, range(30)),), 'image 19 .*\n  … and 10 more$'),
    ):
        with pytest.raises(ValueError, match=f'(?s){message}'):
            store.check(*arguments)
    with pytest.raises(KeyError, match='image z'):
        store['z']
    with pytest.raises(ValueError, match=r'image b of .*: features'):  # whatever reads regions reads them here
        store['b']


@pytest.mark.parametrize(
    ('name', 'change', 'names'),
    [
        ('boxes', lambda x: x[:, :3], r'boxes .*\(16, 3\)'),
        ('classes', lambda x: x[:15], r'classes .*\(15,\)'),
        ('sizes', lambda x: x[:6], r'sizes .*\(6, 2\)'),
        ('sizes', lambda x: x + 0.5, 'float64'),
        ('boxes', lambda x: [b'x'] * 16, 'boxes'),
        ('first', lambda x: np.array([0, 1, 3, 2, 10, 11, 13, 16]), 'first must ascend'),
        ('first', lambda x: x - 1, 'first must ascend'),
        ('features', lambda x: x[:, :5], '5'),
        ('features', lambda x: x[0], 'region store'),
        ('names', lambda x: np.arange(7), 'region store'),
        ('names', lambda x: [b'\xff'] * 7, 'region store'),
        ('names', lambda x: [b'1', b'1', b'3', b'4', b'5', b'6', b'7'], 'image 1'),
        *((name, None, f'no array {name}') for name in ('features', 'names')),  # removed
    ],
)
def test_arrays_that_do_not_fit_each_other(tmp_path, name, change, names):
    path = write(tmp_path / 'a')
    with h5py.File(path / STORED, 'r+') as file:
        array = file[name][()]
        del file[name]
        if change:
            file[name] = change(array)
    with pytest.raises(FaultsError, match=rf'{STORED}.*{names}'):
        RegionStore([path, write(tmp_path / 'b', {'x': regions(1)})])


SECRET = 'secret.h5'  # another file, with the arrays of a store


def virtual(file, name, shape, dtype):
    layout = h5py.VirtualLayout(shape, dtype)
    layout[...] = h5py.VirtualSource(SECRET, name, shape)
    file.create_virtual_dataset(name, layout)


def external_storage(file, name, shape, dtype):
    file.create_dataset(name, shape, dtype, external=[(SECRET, 0, h5py.h5f.UNLIMITED)])


def claim(file, name, shape, dtype, **options):
    """An array of a terabyte in a small file."""
    file.create_dataset(name, (10**12, *shape[1:]), dtype, **options)


def compressed_claim(file, name, shape, dtype):
    claim(file, name, shape, dtype, compression='gzip', chunks=(1000, *shape[1:]))


HOSTILE = dict(
    soft_link=lambda file, name, *_: file.__setitem__(name, h5py.SoftLink('/moved')),
    external_link=lambda file, name, *_: file.__setitem__(name, h5py.ExternalLink(SECRET, f'/{name}')),
    virtual=virtual,
    external_storage=external_storage,
    group=lambda file, name, *_: file.create_group(name),
    claim=claim,
    compressed_claim=compressed_claim,
)


@pytest.mark.parametrize('name', ['features', 'boxes', 'first', 'sizes', 'names', 'scores'])
@pytest.mark.parametrize('hostile', HOSTILE)
def test_a_file_reads_no_other_file_and_no_more_than_it_has(tmp_path, monkeypatch, hostile, name):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / 'a')
    for secret in (path / SECRET, SECRET):
        shutil.copy(path / STORED, secret)
    with h5py.File(path / STORED, 'r+') as file:
        shape, dtype = file[name].shape, file[name].dtype
        file.move(name, 'moved')
        HOSTILE[hostile](file, name, shape, dtype)
    with pytest.raises(FaultsError, match=rf'{STORED}: the array {name} '):
        RegionStore(path)


@pytest.mark.parametrize('size', [0, 1, 100, 1500, -1])
def test_truncated_files_are_named(tmp_path, size):
    path = write(tmp_path / 'a')
    (path / STORED).write_bytes((path / STORED).read_bytes()[:size])
    with pytest.raises(FaultsError, match=rf'{path}/{STORED}: damaged'):
        RegionStore(path)


def test_all_faults_of_files_together(tmp_path, monkeypatch):
    monkeypatch.setattr(region_writer, 'IMAGES', 2)
    path = write(tmp_path / 'a')
    files = sorted(path.iterdir())
    for file in files[1:]:
        file.write_bytes(b'')
    with pytest.raises(FaultsError) as caught:
        RegionStore(path)
    assert [*caught.value.by_path] == [*map(str, files[1:])]
    for wrong, names in ((tmp_path / 'none', 'none'), (tmp_path, str(tmp_path)), ([], 'path')):
        with pytest.raises((OSError, ValueError), match=names):
            RegionStore(wrong)


class Images(Dataset):
    """The regions of a store, as a data set has them."""

    def __init__(self, store):
        self.store = store

    def __len__(self):
        return len(self.store)

    def __getitem__(self, row):
        return self.store[[*IMAGES][row]].features, os.getpid()


@pytest.mark.parametrize('start', ['fork', pytest.param('spawn', marks=pytest.mark.slow)])
def test_workers_open_the_files_themselves(tmp_path, start):
    """Although the main process has read them."""
    store = RegionStore(write(tmp_path / 'a'))
    same(store['image 3.é'], IMAGES['image 3.é'])
    loader = DataLoader(Images(store), None, num_workers=2, multiprocessing_context=start)
    found = [*loader]
    for (features, _), each in zip(found, IMAGES.values(), strict=True):
        assert torch.equal(features, each.features)
    assert len({pid for _, pid in found} | {os.getpid()}) == 3
    same(store['image 3.é'], IMAGES['image 3.é'])


def test_a_store_of_an_earlier_release_is_converted_by_the_script_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old = tmp_path / 'data/regions'
    old.mkdir(parents=True)
    for name, dtype in zip(ARRAYS, ('float16', 'float32', 'int32', 'float32')):
        np.save(old / f'{name}.npy', torch.cat([getattr(each, name) for each in IMAGES.values()]).numpy().astype(dtype))
    np.save(old / 'offsets.npy', np.cumsum([0, *(len(each.boxes) for each in IMAGES.values())]))
    np.save(old / 'sizes.npy', np.array([SIZE] * 7, 'int32'))
    (old / 'image_ids.txt').write_text(''.join(f'{name}\n' for name in IMAGES), encoding='utf-8')
    record = dict(version=1, source='a detector', dtype='float16', num_features=6, arrays=ARRAYS)
    (old / 'store.json').write_text(json.dumps(record), encoding='utf-8')
    with pytest.raises(FaultsError, match=rf'{old}: .*docs/custom_data\.md'):
        RegionStore(old)
    page = Path(__file__).parents[3] / 'docs/custom_data.md'
    [script] = re.findall(r'```python\n(import json\n[^`]*RegionWriter[^`]*)```', page.read_text(encoding='utf-8'))
    assert len(script.splitlines()) <= 20
    exec(script, {})
    store = RegionStore('data/regions_hdf5')
    assert store.source_faults('a detector') == []
    assert store.image_ids == [*IMAGES]
    for name, each in IMAGES.items():
        same(store[name], each)


def test_without_h5py_the_extra_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / 'a')
    monkeypatch.setitem(sys.modules, 'h5py', None)
    for call in (lambda: RegionStore(path), lambda: RegionWriter(tmp_path / 'b')):
        with pytest.raises(ImportError, match=r'mmattn\[language\]'):
            call()


# Writing.


@pytest.mark.parametrize(
    ('wrong', 'names'),
    [
        (dict(features=torch.full((3, 6), torch.nan)), 'features .*regions 0, 1, 2'),
        (dict(features=torch.tensor([[0.0] * 6] * 2 + [[7e4] * 6])), 'features .*float16: region 2'),
        (dict(features=torch.zeros(3, 5)), 'widths'),
        (dict(features=torch.zeros(0, 6), boxes=torch.zeros(0, 4), classes=None, scores=None), 'no regions'),
        (dict(features=torch.zeros(3)), 'features'),
        (dict(boxes=torch.zeros(2, 4)), 'boxes'),
        (dict(scores=None), 'arrays'),
        (dict(scores=torch.zeros(2)), 'scores'),
        (dict(size=(5, 4)), 'boxes .*5×4'),
        (dict(size=(0, 4)), 'size'),
        (dict(size=(50.5, 40)), 'size'),
        (dict(classes=torch.tensor([1.0, 1.7, 2.0])), 'classes'),
    ],
)
def test_wrong_regions_are_not_written(tmp_path, wrong, names):
    with RegionWriter(tmp_path / 'a', float16=True) as writer:
        writer.write('good', regions(0))
        for image_id, changed in (('bad', regions(1)._replace(**wrong)), ('good', regions(1))):
            with pytest.raises(ValueError, match=f'image {image_id}.*{names if image_id == "bad" else ""}'):
                writer.write(image_id, changed)
        for wrong_id in ('', 'a\nb', 'a\0', 'a\r', 7, '\udcff'):
            with pytest.raises(ValueError, match=r'image_id|utf-8'):
                writer.write(wrong_id, regions(1))
    assert RegionStore(tmp_path / 'a').image_ids == ['good']


def test_one_process_at_a_time_writes_a_store(tmp_path):
    with RegionWriter(tmp_path / 'a', 'x') as writer:
        writer.write('1', regions(1))

        def other():
            with pytest.raises(BlockingIOError, match='in use'):
                RegionWriter(tmp_path / 'a', 'x')

        assert in_child(other) == 0


def test_a_store_with_other_arguments_begins_anew(tmp_path):
    """Its images may have other arrays, and other numbers of features. What was begun stays for its own arguments."""
    plain = {'1': regions(1, width=4, extra=False)}
    options = dict(stamp='after', source='x', float16=True)
    for number, changed in enumerate((dict(stamp='before'), dict(source='y'), dict(float16=False))):
        path = tmp_path / f'{number}'
        expected = content(write(tmp_path / f'expected {number}', plain, **options))
        end(begin(path, 2, **options | changed))
        assert content(write(path, plain, **options)) == expected
        shutil.rmtree(path)
        assert end(RegionWriter(path, **options | changed)) == 2


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


CALLS = 'write', 'flush', 'fsync', 'replace', 'rename', 'open', 'unlink', 'mkdir', 'rmdir'


def killed_after(limit, path):
    """Write a store, and send SIGKILL to this process before the call of the operating system after ``limit``."""
    calls = 0

    def profile(frame, event, function):
        nonlocal calls
        if event == 'c_call' and function.__name__ in CALLS:
            calls += 1
            if calls > limit:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(profile)
    write(path)


@pytest.mark.slow
@pytest.mark.parametrize('start', [5, pytest.param(0, marks=pytest.mark.slow)])
def test_a_killed_writer_continues_where_it_stopped(tmp_path, monkeypatch, start):
    """Killed at each point of a run, from the first file to the new name of the folder."""
    monkeypatch.setattr(region_writer, 'IMAGES', 2)
    expected = content(write(tmp_path / 'expected'))
    limit, most, code = 0, 0, signal.SIGKILL
    while code == signal.SIGKILL:
        path = tmp_path / f'{limit}'
        end(begin(path, start))
        code = in_child(partial(killed_after, limit, path))
        limit += 1
        if not path.exists():
            kept = end(begin(path, 0))
            assert kept >= max(start, most)
            most = kept
            write(path)
        assert content(path) == expected
    assert code == 0
    assert most == 7
    assert limit > 20


def test_a_file_that_a_power_failure_has_cut_is_named_and_its_images_are_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(region_writer, 'IMAGES', 2)
    for number in (1, 2):  # in the middle, and the last
        path = tmp_path / f'{number}'
        end(begin(path, 5))
        [file] = tmp_path.glob(f'{number}.*.part/regions-0000{number}.h5')
        file.write_bytes(file.read_bytes()[:-9])
        with pytest.raises(FaultsError, match=str(file)):
            RegionWriter(path)
        file.unlink()
        store = RegionStore(write(path))
        assert {*store.image_ids} == {*IMAGES}
        for name, each in IMAGES.items():
            same(store[name], each)


def test_a_full_disk_loses_no_image(tmp_path, monkeypatch):
    monkeypatch.setattr(region_writer, 'IMAGES', 2)
    expected = content(write(tmp_path / 'expected'))
    items = list(IMAGES.items())
    with RegionWriter(tmp_path / 'a') as writer:
        with full_disk(190):
            for item in items[:2]:
                writer.write(*item)
            for item in items[2:4]:
                with pytest.raises(OSError, match='File too large'):
                    writer.write(*item)
        assert len(writer) == 2
        for item in items[2:]:  # after space was made
            writer.write(*item)
    assert content(tmp_path / 'a') == expected
    writer = begin(tmp_path / 'b', 2)
    with full_disk(190), pytest.raises(OSError, match='File too large'):
        writer.__exit__(None, None, None)
    assert not (tmp_path / 'b').exists()


# Boxes and batches.


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


def test_batches_of_pictures_and_single_numbers():
    """Pictures are stacked, without regions; an image without regions is all padding, also if no other has one."""
    pictures = [torch.rand(3, 4, 5), torch.rand(3, 4, 5)]
    data = dict(inputs=dict(image=pictures, answer=[torch.tensor(7), torch.tensor(2)], question=[torch.ones(2)] * 2))
    inputs = RegionDataPreprocessor()(data)['inputs']
    assert torch.equal(inputs['image'], torch.stack(pictures))
    assert inputs['answer'].tolist() == [7, 2]
    assert set(inputs) == {'image', 'answer', 'question'}
    for counts, most in (((0, 2), 2), ((0, 0), 1)):
        features, boxes, mask = pad_regions(*([torch.ones(count, width) for count in counts] for width in (6, 4)))
        assert features.shape == (2, most, 6)
        assert boxes[0].tolist() == [[0, 0, 1, 1]] * most
        assert mask[0].all()
        assert not features[0].any()
        assert mask[1].tolist() == [counts[1] == 0] * most
    with pytest.raises(ValueError, match='image 1 of the batch'):
        pad_regions([torch.ones(2, 6), torch.ones(2, 5)])


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
    edit_store(tmp_path / 'regions', 'first', lambda first: first.__setitem__(1, 0))
    store = RegionStore(tmp_path / 'regions')
    assert store.image_faults() == ['image a: no regions']
    assert store.image_faults(['a', 'c'], allow_empty=True) == ['image c is not in the store']
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
