"""The converters of region features: the published formats, interruptions, and every fault with its place."""

import errno
import json
import pickle
import shutil

import h5py
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from mmattn.language import RegionStore
from mmattn.language.captioning import VATEXDataset
from mmattn.language.regions.region_writer import RegionWriter

from ..requirements import real_data, requires
from ..support.language_releases import bottom_up_line as line
from ..support.language_releases import random_regions as sample
from ..support.language_releases import region_archive as archive
from ..support.releases import photo, save
from ..tiny_detectors import PIPELINE, detector
from .conftest import content, faults_of, places, scripts

bottom_up, npz, extraction, vatex = scripts('bottom_up_features', 'region_npz', 'region_features', 'vatex_features')

SIZE = (50, 40)


@pytest.fixture
def fails(command, out):
    """Run a converter that must fail; return the faults."""

    def run(*args, out=out):
        code, _, said = command(*args, out=out)
        assert code == 1
        assert not out.exists()
        return faults_of(line for line in said if 'images are kept in' not in line)

    return run


def interrupt(monkeypatch, module, name, after):
    """Let the function of a module raise KeyboardInterrupt after some calls, as Ctrl-C does."""
    original, calls = getattr(module, name), []

    def interrupted(*args):
        calls.append(args)
        if len(calls) > after:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(module, name, interrupted)


# Bottom-up attention.


SAMPLES = {f'{100 + i}': sample(i, 2 + i % 3) for i in range(5)}
LINES = [line(image_id, *each) for image_id, each in SAMPLES.items()]


def check(store):
    assert store.image_ids == list(SAMPLES)
    for image_id, (boxes, features) in SAMPLES.items():
        found = store[image_id]
        assert found.size == SIZE
        np.testing.assert_array_equal(found.boxes, boxes)
        np.testing.assert_array_equal(found.features, features)


def test_bottom_up_features(command, out, tmp_path):
    """Two files, one with Windows' line ends and without the last one."""
    a, b = tmp_path / 'a.tsv.0', tmp_path / 'a.tsv.1'
    a.write_bytes(b''.join(LINES[:3]))
    b.write_bytes(b''.join(LINES[3:]).replace(b'\n', b'\r\n')[:-2])
    code, said, warnings = command(bottom_up, a, b)
    assert (code, warnings) == (0, [])
    assert said[-1] == f'{out}: 5 images, 5 features per region'
    check(RegionStore(out))
    assert command(bottom_up, a, b)[0] == 1  # never overwritten


def test_boxes_are_clipped_on_request(command, out, tmp_path):
    boxes, features = sample(9, 2)
    outside, empty = boxes.copy(), boxes.copy()
    outside[1, 2], empty[0, 2] = 50.5, empty[0, 0]
    (tmp_path / 'a.tsv').write_bytes(line('d', outside, features) + line('e', empty, features))
    assert command(bottom_up, tmp_path / 'a.tsv', '--clip-boxes')[0] == 0
    store = RegionStore(out)
    assert float(store['d'].boxes[1, 2]) == 50
    assert store['e'].boxes[0, 2] == store['e'].boxes[0, 0] + 1


def test_damaged_rows_are_left_out_on_request(command, out, tmp_path, monkeypatch):
    """The conversion goes on with the images before the faults, and equals that of a file without them."""
    source, whole = tmp_path / 'a.tsv', tmp_path / 'whole' / 'a.tsv'
    whole.parent.mkdir()
    whole.write_bytes(b''.join(LINES[:4]))
    assert command(bottom_up, whole)[0] == 0
    expected = content(out)
    out.rename(tmp_path / 'expected')
    truncated, other = LINES[4][: len(LINES[4]) // 2] + b'\n', line('9', *sample(9, 2))[:-9] + b'\n'
    source.write_bytes(b''.join([LINES[0], truncated, LINES[1], other, LINES[2], LINES[0], LINES[3]]))
    code, _, said = command(bottom_up, source)
    assert code == 1
    assert said[0].startswith(f'4 images are kept in {out}.')
    assert 'Run the same command again to resume, with --skip-damaged' in said[0]
    faults = faults_of(said[1:])
    assert [fault.partition(': ')[0] for fault in faults] == [f'{source}, line {number}' for number in (2, 4, 6)]
    code, said, warnings = command(bottom_up, source, '--skip-damaged')
    assert (code, said[0]) == (0, 'images converted before: 4')
    assert warnings == ['warning: left out 3 images', *(f'  {fault}' for fault in faults)]
    assert content(out) == expected
    source.write_bytes(truncated + LINES[4])
    assert command(bottom_up, source, '--skip-damaged', out=tmp_path / 'intact')[0] == 0
    assert '104' in RegionStore(tmp_path / 'intact')
    source.write_bytes(truncated)
    code, _, said = command(bottom_up, source, '--skip-damaged', out=tmp_path / 'none')
    assert code == 1
    assert said[-1].startswith(f'error: {source}, line 1: ')


@pytest.mark.parametrize('counts', [[3, 3, 3, 3, 3], [2, 5, 1, 4, 2]])
def test_bottom_up_features_in_hdf5(command, fails, out, tmp_path, counts):
    """As public code for visual questions writes them: with one number of regions, or several."""
    samples = [sample(i, count) for i, count in enumerate(counts)]
    scale = np.float32([*SIZE, *SIZE])
    corners = [boxes / scale for boxes, _ in samples]
    arrays = dict(
        image_features=[features for _, features in samples],
        image_bb=[boxes for boxes, _ in samples],
        spatial_features=[np.concatenate([box, box[:, 2:] - box[:, :2]], 1) for box in corners],
    )
    source, ids = tmp_path / 'a36.hdf5', tmp_path / 'a36_imgid2idx.pkl'
    rows = dict(zip((9, 391895, 3, 7, 5), (4, 0, 1, 3, 2)))
    ids.write_bytes(pickle.dumps(rows, 2))
    fixed = len({*counts}) == 1
    with h5py.File(source, 'w') as file:
        for name, parts in arrays.items():
            file[name] = (np.stack if fixed else np.concatenate)(parts)
        if not fixed:
            ends = np.cumsum(counts)
            file['pos_boxes'] = np.stack([ends - counts, ends], 1)
    code, said, warnings = command(bottom_up, source)
    assert (code, warnings) == (0, [])
    assert said[-1] == f'{out}: 5 images, 5 features per region'
    store = RegionStore(out)
    assert {*store.image_ids} == {*map(str, rows)}
    for image_id, row in rows.items():
        boxes, features = samples[row]
        assert store[str(image_id)].size == SIZE
        np.testing.assert_array_equal(store[str(image_id)].boxes, boxes)
        np.testing.assert_array_equal(store[str(image_id)].features, features)
    shutil.rmtree(out)
    for wrong in ({1: 5}, {1: -1}, {1: np.float64(1)}, 3):  # NumPy's numbers name a function
        ids.write_bytes(pickle.dumps(wrong))
        assert places(fails(bottom_up, source)) == [str(ids)]
    ids.unlink()
    assert str(ids) in fails(bottom_up, source)[0]
    ids.write_bytes(pickle.dumps(rows))
    with h5py.File(source, 'r+') as file:
        if fixed:
            del file['image_bb']
            file['image_bb'] = h5py.ExternalLink(tmp_path / 'other.hdf5', '/image_bb')
        else:
            file['pos_boxes'][1, 1] = 99
    assert places(fails(bottom_up, source)) == [str(source)]


def test_a_full_disk_ends_the_conversion_and_damages_no_image(command, out, tmp_path, monkeypatch):
    source, tried = tmp_path / 'a.tsv', []

    def write(self, image_id, regions):
        tried.append(image_id)
        raise OSError(errno.ENOSPC, 'No space left on device', 'features.npy')

    source.write_bytes(b''.join(LINES))
    with monkeypatch.context() as patch:
        patch.setattr(RegionWriter, 'write', write)
        code, _, said = command(bottom_up, source, '--skip-damaged')
    assert (code, len(tried), out.exists()) == (1, 1, False)
    assert 'No space left' in said[-1]
    assert command(bottom_up, source)[0] == 0
    check(RegionStore(out))


# NumPy archives.


def test_archives_of_integers(command, out, tmp_path):
    arrays = archive(tmp_path / 'a.npz')
    archive(tmp_path / 'b.npz', image_id=np.array([1, 2, 3]), num_regions=np.array([4, 1, 2]))
    code, said, warnings = command(npz, tmp_path / 'a.npz', tmp_path / 'b.npz', '--id-format', 'image{}')
    assert (code, warnings) == (0, [])
    assert said[-1] == f'{out}: 6 images, 6 features per region'
    store = RegionStore(out)
    assert store.image_ids == [f'image{number}' for number in (7, 2**40, 9, 1, 2, 3)]
    for row, image_id in enumerate(store.image_ids[:3]):
        found = store[image_id]
        np.testing.assert_array_equal(found.features, arrays['feat'][row] * 0.25)
        np.testing.assert_array_equal(found.boxes, arrays['boxes'][row])
        assert found.size == SIZE
        assert found.classes.tolist() == [-1, 0, 79, 3]
        torch.testing.assert_close(found.scores, torch.tensor([0, 0.2, 1, 0.4]))
    assert [len(store[f'image{number}'].boxes) for number in (1, 2, 3)] == [4, 1, 2]
    assert torch.equal(store['image3'].features, store['image9'].features[:2])


def test_archives_of_floating_point_numbers_and_strings(command, out, tmp_path):
    features = np.random.default_rng(1).standard_normal((3, 4, 6))
    plain = dict(features=features, image_ids=np.array(['a', 'b', 'é']), sizes=np.array([SIZE] * 3))
    nothing = dict.fromkeys(('feat', 'step', 'image_id', 'size', 'cls', 'score'))
    archive(tmp_path / 'a.npz', **plain, **nothing, scores=np.full((3, 4), 0.5))
    assert command(npz, tmp_path / 'a.npz')[0] == 0
    found = RegionStore(out)['é']
    np.testing.assert_array_equal(found.features, features[2].astype(np.float32))
    assert found.classes is None
    assert found.scores.tolist() == [0.5] * 4


def test_a_changed_archive_is_converted_from_its_beginning(command, out, tmp_path):
    """The rows that were written before the change are not mixed with those of the changed file."""
    path = tmp_path / 'a.npz'
    features = np.arange(72, dtype=np.float32).reshape(3, 4, 6)
    broken = features.copy()
    broken[1, 2] = np.nan
    archive(path, feat=broken, step=None)
    code, _, said = command(npz, path)
    assert (code, said[-1].startswith(f'error: {path}, image 1: ')) == (1, True)
    archive(path, feat=-features, step=None)
    code, said, _ = command(npz, path)
    assert code == 0
    assert not any('converted before' in line for line in said)
    store = RegionStore(out)
    for row, image_id in enumerate(store.image_ids):
        np.testing.assert_array_equal(store[image_id].features, -features[row])


@pytest.mark.parametrize(
    ('name', 'count', 'first'),
    [
        pytest.param(*case, marks=requires(case[0]))
        for case in (('flickr8k_entities', 500, '1077546505'), ('coco_vqa_mini', 575, '684'), ('daquar', 327, '1118'))
    ],
)
def test_real_archives(command, out, name, count, first):
    source = real_data(name) / 'features_val.npz'
    assert command(npz, source)[0] == 0
    store = RegionStore(out)
    store.check()
    assert (len(store), store.num_features, store.image_ids[0]) == (count, 128, first)
    with np.load(source) as arrays:
        features, boxes, sizes, step = (arrays[key] for key in ('feat', 'boxes', 'size', 'step'))
    for row in (0, 11, count - 1):
        found = store[store.image_ids[row]]
        np.testing.assert_array_equal(found.features, features[row].astype(np.float32) * step)
        np.testing.assert_array_equal(found.boxes, boxes[row])
        assert found.boxes[0].tolist() == [0, 0, *sizes[row]]
        assert int(found.classes[0]) == -1
        assert 0 <= float(found.scores.min()) <= float(found.scores.max()) <= 1


# Detectors.


def write_detector(folder):
    """Paths of a config and a checkpoint of a small Faster R-CNN, and of two photographs."""
    folder.mkdir(parents=True, exist_ok=True)
    dataset = dict(type='CocoDataset', pipeline=[*PIPELINE[:2], dict(type='LoadAnnotations'), PIPELINE[2]])
    cfg = Config(dict(default_scope='mmdet', model=detector('faster'), test_dataloader=dict(dataset=dataset)))
    cfg.dump(folder / 'detector.py')
    init_default_scope('mmdet')
    torch.manual_seed(0)
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), folder / 'detector.pth')
    for i in range(2):
        save(folder / f'photos/{"ab"[i]}/{i}.JPG', photo(i, (40, 48 + 4 * i)), format='JPEG')
    return folder / 'detector.py', folder / 'detector.pth', folder / 'photos'


@pytest.fixture
def model(tmp_path):
    return write_detector(tmp_path)


OPTIONS = ('--min-regions', 3, '--max-regions', 9, '--whole-image', '--device', 'cpu')


@requires('mmcv operators')
def test_region_features(command, out, model, tmp_path, monkeypatch):
    code, said, _ = command(extraction, *model, *OPTIONS)
    assert code == 0
    assert said[-1] == f'{out}: 2 images, 16 features per region'
    store = RegionStore(out)
    store.check()
    assert store.image_ids == ['0', '1']
    for image_id, size in (('0', (48, 40)), ('1', (52, 40))):
        found = store[image_id]
        assert found.size == size
        assert found.boxes[0].tolist() == [0, 0, *size]
        assert 4 <= len(found.boxes) <= 10
        assert torch.equal(found.scores[1:], found.scores[1:].sort(descending=True)[0])
    expected = content(out)
    out.rename(tmp_path / 'expected')
    with monkeypatch.context() as patch:
        interrupt(patch, extraction.RegionExtractor, '__call__', after=1)
        assert command(extraction, *model, *OPTIONS)[0] == 130
    config, checkpoint, folder = model
    other = tmp_path / 'other' / checkpoint.name
    other.parent.mkdir()
    torch.save(torch.load(checkpoint) | dict(meta=dict(other=1)), other)
    for changed in ((config, other, folder), (config, checkpoint, folder / 'a')):
        code, said, _ = command(extraction, *changed, *OPTIONS)
        assert (code, [line for line in said if 'converted before' in line]) == (0, [])
        shutil.rmtree(out)
    assert 'images converted before: 1' in command(extraction, *model, *OPTIONS)[1]
    assert content(out) == expected


@requires('mmcv operators')
def test_an_image_without_a_detection_is_a_fault(fails, command, out, model):
    photos = model[-1]
    options = ('--min-regions', 0, '--score-thr', 1)
    assert places(fails(extraction, *model, *options)) == [f'{photos}/a/0.JPG', f'{photos}/b/1.JPG']
    assert command(extraction, *model, *options, '--whole-image')[0] == 0
    assert [len(RegionStore(out)[image_id].boxes) for image_id in '01'] == [1, 1]


# VATEX.


def test_published_features_of_vatex(command, out, tmp_path):
    """Arrays (1, T, D) as published, in two folders; the data set of the configs reads the store."""
    rng = np.random.default_rng(0)
    videos = {f'{folder}/v_{i}_000010_000020': i + 3 for folder in ('trainval', 'public_test') for i in range(2)}
    videos = {f'{path}{path[0]}': steps for path, steps in videos.items()}
    arrays = {path: rng.standard_normal((1, steps, 6)).astype(np.float32) for path, steps in videos.items()}
    for path, array in arrays.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        np.save(tmp_path / f'{path}.npy', array)
    np.save(tmp_path / 'trainval' / 'plain.npy', rng.standard_normal((2, 6)))  # without the first axis
    code, said, warnings = command(vatex, tmp_path / 'trainval', tmp_path / 'public_test')
    assert (code, warnings) == (0, [])
    assert said[-1] == f'{out}: 5 images, 6 features per region'
    store = RegionStore(out)
    for path, array in arrays.items():
        regions = store[path.split('/')[1]]
        np.testing.assert_array_equal(regions.features, array[0])
        starts = torch.arange(array.shape[1]).float()
        assert torch.equal(regions.boxes[:, 0], starts)
        assert torch.equal(regions.boxes[:, 2], starts + 1)
    training = tmp_path / 'vatex_training_v1.0.json'
    captions = [f'A man sings {word}.' for word in 'bcdefghijk']
    training.write_text(json.dumps([dict(videoID='v_1_000010_000020t', enCap=captions)]), encoding='utf-8')
    dataset = VATEXDataset(str(training), str(out), captions_per_image=10)
    np.testing.assert_array_equal(dataset[0]['inputs']['features'], arrays['trainval/v_1_000010_000020t'][0])
