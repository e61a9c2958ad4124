"""F1 against loops over pixels, by hand, and through the Runner and both test tools."""

import json
import runpy
import sys
from math import isnan, nan
from pathlib import Path

import mmseg
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.runner import Runner
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample
from PIL import Image

from mmattn.segmentation.face_parsing import metric as metric_module
from mmattn.segmentation.face_parsing.metric import FaceParsingMetric

from .. import tiny_data, tiny_segmentors
from ..full_disk import full_disk

ROOT = Path(__file__).parents[2]
CLASSES = ('background', 'left_brow', 'right_brow', 'upper_lip', 'inner_mouth', 'lower_lip', 'hair')
BROWS, MOUTH = ('left_brow', 'right_brow'), ('upper_lip', 'inner_mouth', 'lower_lip')
HELEN = dict(groups=dict(brows=BROWS, mouth=MOUTH), overall=('brows', 'mouth'))


def metric(classes=CLASSES, **options):
    made = FaceParsingMetric(**options)
    made.dataset_meta = dict(classes=classes)
    return made


def sample(truth, predicted, path='folder/face.jpg'):
    def data(labels, dtype):
        return PixelData(data=torch.from_numpy(np.array(labels, np.int64))[None].to(dtype))

    return SegDataSample(
        metainfo=dict(img_path=path), gt_sem_seg=data(truth, torch.uint8), pred_sem_seg=data(predicted, torch.int64)
    ).to_dict()


def score(pairs, **options):
    scored = metric(**options)
    for truth, predicted in pairs:
        scored.process(None, [sample(truth, predicted)])
    return scored.evaluate(len(pairs))


def images(number=5, seed=0):
    """Ground truth and prediction of images of different sizes, with ignored pixels and no hair."""
    rng = np.random.default_rng(seed)
    for i in range(number):
        size = (7 + i, 11 - i)
        truth = rng.integers(0, 6, size)
        predicted = np.where(rng.random(size) < 0.2 + 0.6 * i / number, truth, rng.integers(0, 6, size))
        yield np.where(rng.random(size) < 0.1, 255, truth), predicted


def literal_f1(pairs, *components):
    """F1 in percent with TP, FP and FN summed over the components, each a set of class names; pixel by pixel."""
    tp = fp = fn = 0
    for truths, predictions in pairs:
        for truth, predicted in zip(truths.ravel().tolist(), predictions.ravel().tolist()):
            for component in components if truth != 255 else ():
                is_in, said = CLASSES[truth] in component, CLASSES[predicted] in component
                tp += is_in and said
                fp += said and not is_in
                fn += is_in and not said
    precision, recall = tp / (tp + fp), tp / (tp + fn)
    return 100 * 2 * precision * recall / (precision + recall)


def literal_accuracy(pairs):
    right = [t == p for truth, predicted in pairs for t, p in zip(truth.ravel(), predicted.ravel()) if t != 255]
    return 100 * sum(right) / len(right)


@pytest.mark.parametrize('mode', ['sum', 'union'])
def test_agrees_with_loops_over_pixels(mode):
    pairs = list(images())
    expected = {f'F1.{name}': literal_f1(pairs, {name}) for name in CLASSES[:-1]}
    expected['F1.hair'] = nan
    expected.update({'F1.brows': literal_f1(pairs, BROWS), 'F1.mouth': literal_f1(pairs, MOUTH)})
    expected['overall'] = literal_f1(pairs, BROWS, MOUTH) if mode == 'sum' else literal_f1(pairs, {*BROWS, *MOUTH})
    expected['accuracy'] = literal_accuracy(pairs)
    found = score(pairs, **HELEN, overall_mode=mode)
    assert list(found) == list(expected)
    assert found == pytest.approx(expected, abs=0.00501, nan_ok=True)
    assert all(type(value) is float and (isnan(value) or value == round(value, 2)) for value in found.values())


# The brows: right, right (the other brow), missed, imagined, missed for a lip; the mouth: two right, one right, one
# imagined, one missed as hair.
TRUTH = [[1, 1, 2, 0, 1, 3, 4, 5, 0, 5]]
PREDICTED = [[2, 1, 0, 1, 3, 4, 3, 5, 5, 6]]


@pytest.mark.parametrize(
    ('mode', 'overall'),
    [
        ('sum', 2 * 5 / (2 * 5 + 3 + 3)),  # brows 2 TP, 1 FP, 2 FN; mouth 3 TP, 2 FP, 1 FN
        ('union', 2 * 6 / (2 * 6 + 2 + 2)),  # the brow taken for a lip is right
    ],
)
def test_by_hand(mode, overall):
    found = score([(TRUTH, PREDICTED)], **HELEN, overall_mode=mode)
    assert found['F1.brows'] == pytest.approx(100 * 4 / 7, abs=0.005)
    assert found['F1.mouth'] == pytest.approx(100 * 6 / 9, abs=0.005)
    assert found['overall'] == pytest.approx(100 * overall, abs=0.005)
    assert found['F1.left_brow'] == pytest.approx(100 * 2 / 5, abs=0.005)
    assert found['F1.hair'] == 0  # predicted, never there
    assert found['accuracy'] == pytest.approx(20)


def test_the_columns_are_those_asked_for_in_their_order(monkeypatch):
    printed = []
    monkeypatch.setattr(metric_module, 'print_log', lambda text, logger: printed.append(text))
    columns = ('mouth', 'hair', 'brows', 'overall')
    found = score(list(images()), **HELEN, columns=columns)
    assert list(found) == ['F1.mouth', 'F1.hair', 'F1.brows', 'overall']
    header, row = ([c.strip() for c in line.split('|')[1:-1]] for line in printed[0].splitlines() if '|' in line)
    assert header == list(columns)
    assert row == ['-' if isnan(value) else f'{value:.2f}' for value in found.values()]


def test_components(monkeypatch):
    """One that is nowhere changes nothing; without them there is no overall; without images nothing is known."""
    pairs = list(images())
    with_hair = score(pairs, groups=HELEN['groups'], overall=('brows', 'mouth', 'hair'))
    assert score(pairs, **HELEN)['overall'] == with_hair['overall']
    assert list(score(pairs, columns=None)) == [*(f'F1.{name}' for name in CLASSES), 'accuracy']
    assert all(map(isnan, score([], **HELEN).values()))
    assert score([([[0, 1, 6]], [[0, 0, 5]])], ignore_index=6, columns=['accuracy']) == {'accuracy': 50}


@pytest.mark.parametrize(
    ('options', 'names'),
    [
        (dict(overall_mode='mean'), "overall_mode .*'mean'"),
        (dict(format_only=True), 'output_dir'),
        (dict(groups=dict(brows=['left_brow', 'brow'])), r"groups\['brows'\] .*'brow'"),
        (dict(groups=dict(hair=['hair'])), r"groups .*\['hair'\]"),
        (dict(groups=dict(accuracy=['hair'])), r"groups .*\['accuracy'\]"),
        (dict(groups=dict(brows=BROWS), overall=['eyes', 'brows']), "overall .*'eyes'"),
        (dict(groups=dict(brows=BROWS), overall=['brows', 'left_brow']), 'overall'),
        (dict(columns=['hair', 'overall']), "columns .*'overall'"),
        (dict(columns=['face'], overall=['hair']), "columns .*'face'"),
        (dict(classes=None), r"metainfo\['classes'\]"),
    ],
)
def test_wrong_names_are_told_before_the_first_batch(options, names):
    with pytest.raises(ValueError, match=names):
        metric(**options)


@pytest.mark.parametrize(
    ('truth', 'predicted', 'names'),
    [
        ([[0, 7]], [[0, 0]], r'ground truth .*\[7\]; .*0…6, and 255'),
        ([[0, 255]], [[9, 8]], r'prediction .*\[9\]'),
        ([[0, 1]], [[0], [1]], r'\(1, 1, 2\), .*\(1, 2, 1\)'),
    ],
)
def test_what_cannot_be_scored_is_named(truth, predicted, names):
    with pytest.raises(ValueError, match=f'folder/face.jpg: .*{names}'):
        metric().process(None, [sample(truth, predicted)])


@pytest.mark.parametrize('reduce_zero_label', [False, True])
def test_predictions_without_ground_truth(tmp_path, reduce_zero_label):
    """Labels are those of the files."""
    written = FaceParsingMetric(output_dir=str(tmp_path / 'a/b'), format_only=True)
    written.dataset_meta = {}
    predicted = next(images())[1]
    only = dict(sample(predicted, predicted), reduce_zero_label=reduce_zero_label)
    del only['gt_sem_seg']
    written.process(None, [only])
    assert written.evaluate(1) == {}
    with Image.open(tmp_path / 'a/b/face.png') as image:
        assert image.mode == 'L'
        np.testing.assert_array_equal(np.array(image), predicted + reduce_zero_label)


def config(folder, name):
    """A tiny model on tiny images, scored by the metric."""
    cfg = Config.fromfile(ROOT / 'configs/bi_cc/bi-cc_r18-d8-half_1xb8-50_buildings-256x256.py')
    cfg.model = tiny_segmentors.config('BN').model
    cfg.model.data_preprocessor.update(size=(32, 32), seg_pad_val=255)
    cfg.model.decode_head.update(num_classes=2)
    cfg.train_dataloader.update(num_workers=0, persistent_workers=False, batch_size=2)
    cfg.train_dataloader.dataset.pipeline[3].crop_size = (32, 32)
    cfg.train_cfg.update(max_iters=1, val_interval=1)
    cfg.val_evaluator = cfg.test_evaluator = dict(
        type='mmattn.FaceParsingMetric',
        groups=dict(both=('background', 'building')),
        overall=('building',),
        columns=('building', 'both', 'overall', 'accuracy'),
    )
    cfg.default_hooks.checkpoint.update(save_best='overall', rule='greater')
    cfg.update(work_dir=str(folder), log_level='ERROR', experiment_name=f'{folder.name} {name}')
    return cfg


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """The checkpoint that ``save_best='overall'`` chose after one iteration, and the data."""
    folder = tmp_path_factory.mktemp('metric')
    tiny_data.folders(folder / 'data', '.png', 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('BUILDINGS_ROOT', str(folder / 'data'))
        Runner.from_cfg(config(folder, 'train')).train()
    return folder / 'best_overall_iter_1.pth', folder / 'data'


@pytest.mark.one_case
@pytest.mark.parametrize('path', [ROOT / 'tools/test.py', Path(mmseg.__file__).parent / '.mim/tools/test.py'])
def test_tools_write_index_maps_and_metrics(trained, tmp_path, monkeypatch, path):
    checkpoint, data = trained
    monkeypatch.setenv('BUILDINGS_ROOT', str(data))
    cfg = config(tmp_path, path.parent)
    cfg.dump(tmp_path / 'config.py')
    folders = '--work-dir', tmp_path / 'work', '--out', tmp_path / 'out'
    monkeypatch.setattr(sys, 'argv', [*map(str, (path, tmp_path / 'config.py', checkpoint, *folders))])
    runpy.run_path(str(path), run_name='__main__')
    (metrics,) = (tmp_path / 'work').glob('*/*.json')
    found = json.loads(metrics.read_text())
    names = sorted(path.name for path in (data / 'img_dir/val').iterdir())
    assert sorted(path.name for path in (tmp_path / 'out').iterdir()) == names
    evaluator = Evaluator(dict(cfg.test_evaluator))
    evaluator.dataset_meta = dict(classes=('background', 'building'))
    for name in names:
        evaluator.process([sample(*(Image.open(folder / name) for folder in (data / 'ann_dir/val', tmp_path / 'out')))])
    expected = evaluator.evaluate(len(names))
    assert list(expected) == ['F1.building', 'F1.both', 'overall', 'accuracy']
    assert {name: found[name] for name in expected} == expected


def test_predictions_are_whole_and_of_one_image_each(tmp_path):
    labels = np.random.default_rng(0).integers(0, 6, (40, 50))
    scored = metric(output_dir=str(tmp_path / 'out'))
    with full_disk(100), pytest.raises(OSError, match=rf"File too large: '{tmp_path}/out/face\.png'"):
        scored.process(None, [sample(labels, labels)])
    assert not list((tmp_path / 'out').iterdir())
    for _ in range(2):  # the sampler's padding gives an image twice
        scored.process(None, [sample(labels, labels)])
    with pytest.raises(ValueError, match=r'out/face\.png .*folder/face\.jpg .*b/face\.jpg'):
        scored.process(None, [sample(labels, labels, 'b/face.jpg')])
    with pytest.raises(ValueError, match='label 305'):
        metric(output_dir=str(tmp_path), format_only=True).process(None, [sample(labels, labels + 300)])
