"""Rows without training beside trained ones, on clips."""

import json
import signal

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, init_default_scope

from mmattn.video import read_mask, write_mask
from reproduction.plan import plan
from reproduction.protocol import Protocol, read_data
from reproduction.reproduce import Machine, Scope, reproduce
from reproduction.runs import scalars
from reproduction.tables import read_tables
from reproduction.task import ProtocolError
from reproduction.untrained import check_untrained, label_propagation

pytestmark = pytest.mark.slow

ROWS = read_tables()['5.1']


def protocol(weights, **changes):
    changes = {'backbone': 'mobilenet-v2-s8_video', 'frozen': True, **changes}
    return Protocol('davis_240p', 2, 1.0, True, pretrained=weights, **changes)


def configs(data, weights, **changes):
    return [m.configs[0] for m in plan(ROWS, protocol(weights, **changes), read_data('davis_240p', data['davis_240p']))]


def test_label_propagation_requires_weights(data):
    with pytest.raises(ProtocolError, match='--pretrained'):
        check_untrained(['label propagation'], configs(data, None, frozen=False)[0])


def test_label_propagation_has_the_features_from_which_the_rows_start(data, weights):
    """Frozen or not: the maps of the backbone with the weights of the file."""
    frames = torch.randint(256, (2, 3, 32, 48), dtype=torch.uint8)
    state = torch.load(weights, weights_only=True)['state_dict']
    for frozen in (True, False):
        cfg = configs(data, weights, frozen=frozen)[0]
        init_default_scope('mmengine')
        model = label_propagation(cfg)
        assert model.top_k == 1
        assert model.test_cfg == cfg.model.test_cfg
        whole = MODELS.build(dict(type='mmseg.MobileNetV2', out_indices=(2, 3), act_cfg=dict(type='ReLU6')))
        whole.eval()  # it returns None
        whole.load_state_dict(state)
        normalised = (frames.flip(1).double() - 127.5) / 127.5
        expected = whole.double()(normalised)[0].permute(0, 2, 3, 1)
        expected = expected / (expected**2).sum(-1, keepdim=True).sqrt()
        maps, _ = model.extract_feat(model.data_preprocessor.normalize(frames))
        torch.testing.assert_close(maps.double(), expected, rtol=1e-4, atol=1e-5)


def test_photographs_are_trained_on_beside_clips(data, tmp_path, monkeypatch):
    """A clip is drawn 60 times as often as a photograph; objects of both are pasted. The test has clips alone."""
    for name in ('street_1', 'street_2'):
        write_mask(tmp_path / f'stills/Annotations/{name}/00000.png', np.eye(40, 60, dtype=np.uint8))
        write_mask(tmp_path / f'stills/JPEGImages/{name}/00000.png', np.eye(40, 60, dtype=np.uint8))
    monkeypatch.setenv('STILLS_ROOT', str(tmp_path / 'stills'))
    lists = {
        name: (data['davis_240p'] / f'ImageSets/{name}.txt').read_text(encoding='utf-8').split()
        for name in ('train', 'val')
    }
    source = read_data('davis_240p_stills', data['davis_240p_stills'])
    methods = plan(ROWS, Protocol('davis_240p_stills', 2, 1.0, True), source)
    grid, strided = (method.configs[0] for method in methods[:2])
    assert strided.model.attention.step == 4  # √16, of 16×22
    init_default_scope('mmengine')
    train = DATASETS.build(grid.train_dataloader.dataset)
    (paste,) = (step for step in train.datasets[1].pipeline.transforms if hasattr(step, 'dataset'))
    for part in (train, paste.dataset):
        clips = [part.get_data_info(i)['clip'] for i in range(len(part))]
        assert clips == lists['train'] * 60 + ['street_1', 'street_2']
    assert train[60 * len(lists['train'])]['inputs'].shape == (4, 3, 128, 176)
    test = DATASETS.build(grid.test_dataloader.dataset)
    assert [test.get_data_info(i)['clip'] for i in range(len(test))] == lists['val']


@pytest.mark.e2e
def test_rows_without_training_through_the_tools(data, weights, tmp_path):
    """J&F of a clip is that of the last validation; a second call trains nothing and gives the same."""
    rows = [row for row in ROWS if row.baseline is None]
    scope = Scope(seeds=[3], untrained=['first mask', 'label propagation'], units='.*')
    scope = scope._replace(contrasts=['SST (Grid) - first mask'])
    handler = signal.getsignal(signal.SIGTERM)
    arguments = rows, protocol(weights), tmp_path, scope, Machine(workers=0), data['davis_240p']
    try:
        texts = {reproduce(*arguments) for _ in range(2)}
    finally:
        signal.signal(signal.SIGTERM, handler)
    (text,) = texts
    content = json.loads((tmp_path / 'results.json').read_text())
    clips = content['samples']
    assert sorted(clips) == sorted((data['davis_240p'] / 'ImageSets/val.txt').read_text().split())
    assert [row['name'] for row in content['rows']] == ['SST (Grid)', 'first mask', 'label propagation']
    sst, repeated, _ = (row['mean'] for row in content['rows'])
    stem = 'sst-grid_r50-d8_4xb1-100k_youtube-vos-2018-240x432'
    name = 'sst-grid_mobilenet-v2-s8_video_1xb4-2_davis-240p-128x176'
    run = content['runs'][stem]['3']
    (log,) = scalars(tmp_path / f'{name}_seed-3')
    assert [line['step'] for line in log if 'JF' in line] == [2]
    assert run['metrics']['J&F'] == pytest.approx(log[-1]['JF'])
    assert sum(score / count for score, count in run['scores']) / len(clips) == pytest.approx(log[-1]['JF'], abs=1e-3)
    regions = []
    for clip in clips:
        paths = sorted((data['davis_240p'] / f'Annotations/240p/{clip}').iterdir())
        first, second = (read_mask(str(path), True) > 0 for path in paths[:2])  # neither first nor last are scored
        regions.append(100 * (first & second).sum() / (first | second).sum())
    found = content['runs'][f'first mask, {stem}']['none']['metrics']['J']
    assert found == pytest.approx(sum(regions) / len(regions))
    assert sst['J&F'] == pytest.approx(log[-1]['JF'], abs=1e-3)
    assert f'| SST (Grid) − first mask | {sst["J&F"] - repeated["J&F"]:+.2f}' in text
    assert (tmp_path / 'contrasts.png').is_file()
    cfg = Config.fromfile(tmp_path / 'configs' / f'{name}.py')
    assert cfg.model.backbone.type == 'mmattn.FrozenBackbone'
    assert cfg.custom_imports.imports == ['reproduction.mobilenet_v2_stride8', 'reproduction.frozen_backbone']
    assert content['rows'][1]['configs'] == [f'first mask, {stem}']
