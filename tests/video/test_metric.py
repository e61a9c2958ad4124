"""J and F by hand, against the package vos-benchmark on real clips, and what is written."""

import csv
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from math import isnan
from zipfile import ZipFile

import cv2
import numpy as np
import pytest
import torch
from mmengine.structures import PixelData
from PIL import Image

from mmattn.video import metric as metric_module
from mmattn.video.datasets import DAVISDataset, VideoFolderDataset, YouTubeVOSDataset
from mmattn.video.masks import read_mask, write_mask
from mmattn.video.metric import VOSMetric
from mmattn.video.similarity import _disk, boundary_similarity, region_similarity, summarize

from ..conftest import installed
from ..requirements import requires
from . import clips
from .clips import TEST, squares


def square(shift=0):
    mask = np.zeros((200, 200), bool)
    mask[100 + shift : 150 + shift, 100 + shift : 150 + shift] = True
    return mask


@pytest.mark.parametrize(
    ('shift', 'j', 'f'),
    [(0, 1, 1), (1, 0.923817, 1), (3, 0.791473, 0.975), (5, 0.680672, 0.07), (10, 0.470588, 0.07), (50, 0, 0.046512)],
)
def test_shifted_squares(shift, j, f):
    masks = square(shift), square()
    assert region_similarity(*masks) == pytest.approx(j, abs=5e-7)
    assert boundary_similarity(*masks) == pytest.approx(f, abs=5e-7)
    assert boundary_similarity(*masks[::-1]) == pytest.approx(f, abs=5e-7)


def test_empty_and_full_masks():
    nothing, everything = np.zeros((200, 200), bool), np.ones((200, 200), bool)
    assert region_similarity(nothing, nothing) == boundary_similarity(nothing, nothing) == 1
    assert boundary_similarity(everything, nothing) == 1  # neither has a boundary
    assert region_similarity(everything, nothing) == 0
    for masks in ((nothing, square()), (square(), nothing)):
        assert region_similarity(*masks) == boundary_similarity(*masks) == 0


def literal_boundary(mask):
    """Pixel by pixel: unlike the one to the right, below, or below to the right, if there is such."""
    h, w = mask.shape
    return {
        (y, x)
        for y in range(h)
        for x in range(w)
        if any(mask[y, x] != mask[min(y + dy, h - 1), min(x + dx, w - 1)] for dy, dx in ((0, 1), (1, 0), (1, 1)))
    }


def literal_f(predicted, truth):
    radius = np.ceil(0.008 * np.linalg.norm(truth.shape))
    boundaries = literal_boundary(predicted), literal_boundary(truth)
    if not all(boundaries):
        return float(boundaries[0] == boundaries[1])
    pairs = np.array([*boundaries[0]])[:, None] - np.array([*boundaries[1]])
    near = (pairs**2).sum(-1) <= radius**2
    precision, recall = near.any(1).mean(), near.any(0).mean()
    return 2 * precision * recall / (precision + recall) if precision + recall else 0


@pytest.mark.parametrize('seed', range(12))
def test_boundaries_against_loops_over_pixels(seed):
    """Blobs, some at the image's edges, where a boundary is other than inside; radius 1 to 3."""
    rng = np.random.default_rng(seed)
    h, w = (int(side) for side in rng.integers(1, 12, 2) * rng.integers(1, 20, 2))

    def blobs():
        return cv2.resize(rng.random((h // 6 + 1, w // 6 + 1)), (w, h)).reshape(h, w) > 0.6

    predicted, truth = blobs(), blobs()
    assert boundary_similarity(predicted, truth) == pytest.approx(literal_f(predicted, truth), abs=1e-12)


def test_the_disk_at_480_by_854():
    assert _disk(8).sum() == 197
    masks = np.zeros((2, 480, 854), bool)
    for mask, shift in zip(masks, (0, 8)):
        mask[100:300, 200 + shift : 500 + shift] = True
    assert boundary_similarity(*masks) == 1
    assert boundary_similarity(masks[0], np.roll(masks[1], 1, 1)) < 0.7


def test_statistics():
    assert summarize(np.linspace(1, 0, 11)) == pytest.approx((0.5, 5 / 11, 0.75))  # 0.5 is not recalled
    assert summarize(np.array([0.7])) == pytest.approx((0.7, 1, 0))
    assert all(isnan(value) for value in summarize(np.array([])))
    long = np.where(np.arange(300) < 224, 1.0, 0.0)  # 8-bit frame numbers would wrap
    long[75] = 0
    assert summarize(long) == pytest.approx((223 / 300, 223 / 300, 75 / 76))


@pytest.fixture
def printed(monkeypatch):
    """What the metric logs."""
    lines = []
    monkeypatch.setattr(metric_module, 'print_log', lambda text, *args: lines.append(str(text)))
    return lines


def cells(table):
    return [[cell.strip() for cell in line.split('|')[1:-1]] for line in table.splitlines() if line[0] == '|']


def samples(root, predicted):
    """The test items of a folder of clips with the predicted masks by clip."""
    dataset = VideoFolderDataset(data_root=str(root), pipeline=TEST)
    return [with_prediction(item['data_samples'], predicted) for item in dataset]


def with_prediction(sample, predicted):
    sample.pred_masks = PixelData(data=torch.from_numpy(np.stack(predicted[sample.clip])).long())
    return sample.to_dict()


def score(data_samples, meta=None, **options):
    metric = VOSMetric(**options)
    metric.dataset_meta = meta or {}
    for sample in data_samples:
        metric.process(None, [sample])
    return metric.evaluate(len(data_samples))


def table_of(path):
    with open(path, newline='') as file:
        return list(csv.reader(file))


def two_clips(root):
    """A clip of two objects, one found, one lost in the end, and one of an object that is never found."""
    masks = dict(both=[squares(p, 1, 5) for p in range(8)], lost=[squares(p, 2) for p in range(5)])
    for name, of_clip in masks.items():
        clips.clip(root, name, of_clip)
    both = [mask.copy() for mask in masks['both']]
    for p in (0, 5, 6, 7):  # the first and the last frame do not count
        both[p][both[p] == 5] = 0
    both[3][both[3] == 0] = 77  # what is none of the objects counts for nothing
    return dict(both=both, lost=[0 * mask for mask in masks['lost']])


def test_means_are_over_objects_and_the_table_says_of_which(tmp_path, printed):
    data_samples = samples(tmp_path, two_clips(tmp_path))
    found = score(data_samples, csv_file=str(tmp_path / 'new/table.csv'))
    five = 400 / 6  # 4 of 6 frames; in the first quarter all, in the last none
    mean, recall, decay = (100 + five + 0) / 3, (100 + five + 0) / 3, (0 + 100 + 0) / 3
    assert found == pytest.approx(
        dict(JF=mean, J=mean, J_recall=recall, J_decay=decay, F=mean, F_recall=recall, F_decay=decay)
    )
    assert all(type(value) is float for value in found.values())
    header, *rows = table_of(tmp_path / 'new/table.csv')
    assert header == ['clip', 'object', *found]
    names = [['all', ''], ['both', ''], ['both', '1'], ['both', '5'], ['lost', ''], ['lost', '2']]
    assert [row[:2] for row in rows] == names
    assert [float(row[2]) for row in rows] == pytest.approx([mean, (100 + five) / 2, 100, five, 0, 0], abs=1e-12)
    assert cells(printed[0])[4] == ['both', '5', '66.7', *['66.7', '66.7', '100.0'] * 2]
    assert score(data_samples, skip_last=False)['J'] == pytest.approx((100 + 400 / 7 + 0) / 3)


def test_objects_count_behind_the_frame_that_gives_them(tmp_path):
    """Object 5 is given at frame 3: what is predicted up to there is no matter, nor are others at 3, right or not."""
    masks = [squares(p, *((1, 5) if p > 2 else (1,))) for p in range(8)]
    clips.clip(tmp_path, 'walk', masks)
    write_mask(tmp_path / 'Annotations/walk/00003.png', squares(3, 5))  # as YouTube-VOS gives it
    predicted = [squares(p, 1, 5) for p in range(8)]
    predicted[0] = 0 * predicted[0]
    assert score(samples(tmp_path, dict(walk=predicted)))['JF'] == 100
    predicted[3] = predicted[0]
    assert score(samples(tmp_path, dict(walk=predicted)))['JF'] == 100
    predicted[5] = squares(5, 1)
    found = score(samples(tmp_path, dict(walk=predicted)), csv_file=str(tmp_path / 'a.csv'))
    assert [float(row[3]) for row in table_of(tmp_path / 'a.csv')[3:]] == pytest.approx([100, 200 / 3])
    assert found['J_decay'] == pytest.approx((0 - 50) / 2)  # of right, wrong, right, the first quarter has two frames
    clips.clip(tmp_path / 'gone', 'walk', [squares(p, *((1, 5) if p < 2 else (1,))) for p in range(6)])
    predicted = [squares(p, *((1, 5) if p < 3 else (1,))) for p in range(6)]  # an object that is gone
    assert score(samples(tmp_path / 'gone', dict(walk=predicted)))['J'] == pytest.approx((100 + 75) / 2)


def test_where_meta_json_lets_an_object_begin_is_no_ground_truth(tmp_path):
    """Object 2 begins at frame 2, whose mask shows neither it nor object 1. In a folder, every mask is whole."""
    clips.youtube_vos(tmp_path, dict(a={1: ('cat', 0), 2: ('dog', 2)}), dict(a=5), masked=(0, 2))
    write_mask(tmp_path / 'Annotations/a/00010.png', squares(2))
    predicted = dict(a=[squares(p, 1) for p in range(5)])
    sample = YouTubeVOSDataset(data_root=str(tmp_path), pipeline=TEST)[0]['data_samples']
    assert sample.first_frames == {1: 0}
    assert score([with_prediction(sample, predicted)]) == {}
    assert score(samples(tmp_path, predicted))['JF'] == 0
    write_mask(tmp_path / 'Annotations/a/00015.png', squares(3, 1))  # the truth of object 1 elsewhere
    sample = YouTubeVOSDataset(data_root=str(tmp_path), pipeline=TEST)[0]['data_samples']
    assert score([with_prediction(sample, predicted)])['JF'] == 100


def test_an_object_that_no_given_mask_shows_is_a_warning(tmp_path, printed):
    """DAVIS gives the objects of the first frame alone; object 5 begins later. DAVIS 2016 has one object, 255."""
    later = [squares(p, *((1, 5) if p > 2 else (1,))) for p in range(8)]
    one = [(squares(p, 2) > 0).astype(int) for p in range(5)]
    for name, masks, single in (('2017', later, False), ('2016', one, True)):
        clips.davis(tmp_path / name, walk=[mask * (255 if single else 1) for mask in masks])
        options = dict(data_root=str(tmp_path / name), pipeline=TEST, single_object=single)
        dataset = DAVISDataset('ImageSets/val.txt', '240p', **options)
        assert score([with_prediction(dataset[0]['data_samples'], dict(walk=masks))])['JF'] == 100
    assert [message for message in printed if 'walk: ' in message] == printed[:1]
    assert 'objects 5' in printed[0]


def test_clips_without_a_frame_to_score_count_for_nothing(tmp_path, printed):
    predicted = two_clips(tmp_path)
    before = score(samples(tmp_path, predicted))
    for name, length, masked in (('one', 1, None), ('two', 2, None), ('given', 5, (0,))):
        clips.clip(tmp_path, name, [squares(p, 3) for p in range(length)], masked=masked)
        predicted[name] = [squares(0, 3)] * length
    data_samples = samples(tmp_path, predicted)
    assert score(data_samples, csv_file=str(tmp_path / 'a.csv')) == pytest.approx(before)
    assert ['one', '', *'-------'] in cells(printed[-1])
    assert ['given', '3', *['nan'] * 7] in table_of(tmp_path / 'a.csv')
    assert score([sample for sample in data_samples if sample['clip'] not in ('both', 'lost')]) == {}
    assert '3 clips' in printed[-1]


def test_seen_and_unseen_categories(tmp_path, printed):
    objects = dict(a={1: ('cat', 0), 2: ('yak', 0)}, b={4: ('cat', 1)})
    clips.youtube_vos(tmp_path / 'valid', objects, dict(a=4, b=5))
    clips.youtube_vos(tmp_path / 'train', dict(c={1: ('cat', 0)}), dict(c=2))
    options = dict(data_root=str(tmp_path / 'valid'), pipeline=TEST)
    dataset = YouTubeVOSDataset(seen='../train/meta.json', **options)
    predicted = dict(a=[squares(p, 1, 2) for p in range(4)], b=[squares(p) for p in range(5)])
    predicted['a'][3] = squares(3, 1)
    data_samples = [with_prediction(item['data_samples'], predicted) for item in dataset]
    found = score(data_samples, dataset.metainfo, skip_last=False)
    assert found['J'] == pytest.approx((100 + 200 / 3 + 0) / 3)
    expected = dict(J_seen=50, F_seen=50, J_unseen=200 / 3, F_unseen=200 / 3, G=(50 + 200 / 3) / 2)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert printed[0].endswith('Local estimate: G 58.3, J_seen 50.0, F_seen 50.0, J_unseen 66.7, F_unseen 66.7')
    assert 'G' not in score(data_samples, YouTubeVOSDataset(**options).metainfo)
    only_seen = score(data_samples, dict(seen_categories=['cat', 'yak']), skip_last=False)
    assert isnan(only_seen['G'])
    assert isnan(only_seen['J_unseen'])


def test_predictions_are_written_for_the_server(tmp_path):
    objects = dict(a={1: ('cat', 1), 5: ('yak', 3)}, b={200: ('cat', 0)})
    clips.youtube_vos(tmp_path / 'valid', objects, dict(a=5, b=3), masked=(0, 1, 3))
    dataset = YouTubeVOSDataset(data_root=str(tmp_path / 'valid'), pipeline=TEST)
    predicted = dict(a=[squares(p, 1, 5) for p in range(5)], b=[squares(p % 2, 200) for p in range(3)])
    data_samples = [with_prediction(item['data_samples'], predicted) for item in dataset]
    out = tmp_path / 'out/masks'
    options = dict(output_dir=str(out), submission=True, keep_results=True)
    assert score(data_samples, format_only=True, **options) == {}
    names = [f'a/{i:05}.png' for i in (5, 10, 15, 20)] + [f'b/{i:05}.png' for i in (0, 5, 10)]
    assert sorted(path.relative_to(out).as_posix() for path in out.rglob('*.*')) == [*names, 'submission.zip']
    for name, mask in zip(names, (*predicted['a'][1:], *predicted['b'])):
        np.testing.assert_array_equal(read_mask(out / name), mask)
        with Image.open(out / name) as image:
            assert image.mode == 'P'
    with ZipFile(out / 'submission.zip') as archive:
        assert archive.namelist() == [f'Annotations/{name}' for name in names]
        assert archive.read('Annotations/a/00005.png') == (out / 'a/00005.png').read_bytes()
    assert score(data_samples, **options) != {}  # what is there is replaced, and scored
    assert len(table_of(out / 'results.csv')) == 1 + 1 + 2 + 3
    score(data_samples, output_dir=str(tmp_path / 'other'))
    assert sorted(path.name for path in (tmp_path / 'other').iterdir()) == ['a', 'b', 'results.csv']  # no archive


@pytest.fixture(scope='session')
def vos_benchmark():
    """The folder of the package, installed once into the cache."""
    for needed in ('skimage', 'tqdm'):
        if find_spec(needed) is None:
            pytest.skip(f'vos-benchmark needs {needed}')
    try:
        return installed('vos-benchmark', '0.1.0')
    except subprocess.SubprocessError as error:
        pytest.skip(f'vos-benchmark cannot be installed: {error}')


BENCHMARK = """
import json, sys
from vos_benchmark.benchmark import benchmark
*scores, clips = benchmark([{truth!r}], [{predicted!r}], strict=True, num_processes=2, verbose=False)
print(json.dumps([[score[0] for score in scores], clips[0]]))
"""


@pytest.mark.slow
@requires('davis_240p')
def test_agrees_with_vos_benchmark_on_real_clips(vos_benchmark, tmp_path):
    """The first mask repeated, and the truth shifted and worn; objects 1 and 5 of two clips laid over one another."""
    dataset = DAVISDataset('ImageSets/val.txt', '240p', data_root=str(clips.DAVIS), pipeline=TEST)
    truth = {
        item['data_samples'].clip: [read_mask(path) for path in item['data_samples'].mask_paths] for item in dataset
    }
    truth['both'] = [np.where(b, 5, a) for a, b in zip(truth['libby'], truth['soapbox'][::-1])]
    predicted = {name: [masks[0]] * len(masks) for name, masks in truth.items()}
    shifted = [np.roll(mask, (p % 5, p % 7), (0, 1)) for p, mask in enumerate(truth['both'])]
    predicted['both'] = [
        cv2.morphologyEx(mask, cv2.MORPH_OPEN, np.ones((p % 9 + 1, 4))) for p, mask in enumerate(shifted)
    ]
    for name, masks in truth.items():
        clips.clip(tmp_path, name, masks)
    out = tmp_path / 'out'
    data_samples = samples(tmp_path, predicted)
    found = score(data_samples, output_dir=str(out), csv_file=str(tmp_path / 'ours.csv'))
    code = BENCHMARK.format(truth=str(tmp_path / 'Annotations'), predicted=str(out))
    done = subprocess.run(
        [sys.executable, '-c', code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, 'PYTHONPATH': str(vos_benchmark), 'OMP_NUM_THREADS': '1'},
    )
    assert done.returncode == 0, done.stderr
    scores, of_clips = json.loads(done.stdout)
    assert [found[name] for name in ('JF', 'J', 'F')] == pytest.approx(scores, abs=1e-6)
    ours = {(clip, i): row for clip, i, *row in table_of(tmp_path / 'ours.csv')[1:] if i}
    theirs = {(clip, i): (j, scores[1][i]) for clip, scores in of_clips.items() for i, j in scores[0].items()}
    assert set(ours) == set(theirs) == {('libby', '1'), ('soapbox', '1'), ('both', '1'), ('both', '5')}
    for key, (j, f) in theirs.items():
        assert (float(ours[key][1]), float(ours[key][4])) == pytest.approx((j, f), abs=1e-6)
    assert float(ours['libby', '1'][1]) == pytest.approx(30.4, abs=0.05)
    assert float(ours['soapbox', '1'][1]) == pytest.approx(13.3, abs=0.05)
    assert 40 < float(ours['both', '5'][1]) < 95


def test_wrong_arguments_and_predictions_are_told(tmp_path):
    predicted = two_clips(tmp_path)
    (tmp_path / 'file').write_text('')
    short = dict(predicted, both=predicted['both'][:-1])
    small = dict(predicted, both=[mask[:, :-1] for mask in predicted['both']])
    for call, name in (
        (lambda: VOSMetric(format_only=True), 'output_dir'),
        (lambda: VOSMetric(output_dir=str(tmp_path / 'file/out')), 'file/out'),
        (lambda: VOSMetric(csv_file=str(tmp_path / 'file/a.csv')), 'file'),
        (lambda: score(samples(tmp_path, short)), 'both'),
        (lambda: score(samples(tmp_path, small)), r'both/00001\.png'),
    ):
        with pytest.raises((ValueError, OSError), match=name):
            call()
