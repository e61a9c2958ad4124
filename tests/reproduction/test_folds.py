"""Folds of clips: what each trains on and tests, rows without training, and the figures of all folds."""

import json
import signal

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, init_default_scope

from mmattn.video import read_mask, write_mask
from reproduction.folds import fold_lists, list_folds
from reproduction.plan import plan
from reproduction.protocol import Protocol, read_data
from reproduction.reproduce import Machine, Scope, reproduce
from reproduction.runs import scalars
from reproduction.tables import read_tables
from reproduction.task import ProtocolError
from reproduction.untrained import check_untrained, label_propagation

pytestmark = pytest.mark.slow

FOLDS = ('bear',), ('goat',)
ROWS = read_tables()['5.1']


def protocol(weights, **changes):
    changes = {'backbone': 'mobilenet-v2-s8_video', 'frozen': True, **changes}
    return Protocol('davis_240p', 2, 1.0, True, pretrained=weights, **changes)


def configs(data, weights, **changes):
    return [m.configs[0] for m in plan(ROWS, protocol(weights, **changes), read_data('davis_240p', data['davis_240p']))]


def test_a_fold_trains_and_pastes_only_the_clips_of_the_others(data, weights, tmp_path):
    """The lists decide on both data sets of the training, also on that of the pasted objects."""
    first, second = list_folds(FOLDS, tmp_path)
    with fold_lists(FOLDS, tmp_path):
        for fold, train_clip, test_clip in ((first, 'goat', 'bear'), (second, 'bear', 'goat')):
            cfg = configs(data, weights, fold=fold)[0]
            init_default_scope('mmengine')
            train = DATASETS.build(cfg.train_dataloader.dataset)
            (paste,) = (step for step in train.pipeline.transforms if hasattr(step, 'dataset'))
            test = DATASETS.build(cfg.test_dataloader.dataset)
            clips = [[part.get_data_info(i)['clip'] for i in range(len(part))] for part in (train, paste.dataset, test)]
            assert clips == [[train_clip], [train_clip], [test_clip]]
            assert cfg.val_dataloader.dataset == cfg.test_dataloader.dataset


def test_photographs_are_trained_on_in_every_fold(data, tmp_path, monkeypatch):
    """Beside the fold's clips, of which each is drawn 60 times as often; objects of both are pasted."""
    for name in ('street_1', 'street_2'):
        write_mask(tmp_path / f'stills/Annotations/{name}/00000.png', np.eye(40, 60, dtype=np.uint8))
        write_mask(tmp_path / f'stills/JPEGImages/{name}/00000.png', np.eye(40, 60, dtype=np.uint8))
    monkeypatch.setenv('STILLS_ROOT', str(tmp_path / 'stills'))
    source = read_data('davis_240p_stills', data['davis_240p_stills'])
    folds = list_folds(FOLDS, tmp_path / 'folds')
    with fold_lists(FOLDS, tmp_path / 'folds'):
        for fold, train_clip, test_clip in zip(folds, ('goat', 'bear'), ('bear', 'goat')):
            protocol = Protocol('davis_240p_stills', 2, 1.0, True, fold=fold)
            grid, strided = (method.configs[0] for method in plan(ROWS, protocol, source)[:2])
            assert strided.model.attention.step == 4  # √16, of 16×22
            init_default_scope('mmengine')
            train = DATASETS.build(grid.train_dataloader.dataset)
            (paste,) = (step for step in train.datasets[1].pipeline.transforms if hasattr(step, 'dataset'))
            for part in (train, paste.dataset):
                clips = [part.get_data_info(i)['clip'] for i in range(len(part))]
                assert clips == [train_clip] * 60 + ['street_1', 'street_2']
            assert train[60]['inputs'].shape == (4, 3, 128, 176)
            test = DATASETS.build(grid.test_dataloader.dataset)
            assert [test.get_data_info(i)['clip'] for i in range(len(test))] == [test_clip]


def test_other_folds_in_a_work_dir_are_an_error_and_change_nothing(tmp_path):
    for _ in range(2):
        with fold_lists(FOLDS, tmp_path):
            pass
    before = {path: path.read_text() for path in tmp_path.iterdir()}
    assert before[tmp_path / 'fold-1_train.txt'] == 'goat\n'
    with pytest.raises(ProtocolError, match='other names'), fold_lists([['goat'], ['bear']], tmp_path):
        pass
    assert {path: path.read_text() for path in tmp_path.iterdir()} == before


def fold_of_images(folder, data):
    protocol = Protocol('camvid', 2, fold=list_folds(FOLDS, folder)[0])
    plan(read_tables()['3.2'], protocol, read_data('camvid', data['camvid']))


def missing_clips(folder, data):
    scope = Scope(seeds=[0], folds=[['cow', 'bear'], ['dog']])
    reproduce(ROWS, protocol(None, frozen=False), folder, scope, Machine(), data['davis_240p'])


@pytest.mark.parametrize(
    ('call', 'names'),
    [
        (lambda folder, data: list_folds([['bear', 'goat']], folder), 'two folds'),
        (lambda folder, data: list_folds([['bear'], ['goat', 'bear']], folder), 'common names'),
        (fold_of_images, 'lists of names'),
        (missing_clips, '(?s)not in .*dog'),
        (lambda _, data: check_untrained(['label propagation'], configs(data, None, frozen=False)[0]), '--pretrained'),
    ],
)
def test_folds_that_cannot_be_made(data, tmp_path, call, names):
    with pytest.raises(ProtocolError, match=names):
        call(tmp_path, data)
    assert not [path for path in tmp_path.rglob('*') if path.is_file()]


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


@pytest.mark.e2e
def test_folds_through_the_tools(data, weights, tmp_path):
    """J&F of a clip is that of the last validation of its fold; a second call trains nothing and gives the same."""
    rows = [row for row in ROWS if row.baseline is None]
    scope = Scope(seeds=[3], folds=FOLDS, untrained=['first mask', 'label propagation'], units='.*')
    scope = scope._replace(contrasts=['SST (Grid) - first mask'])
    handler = signal.getsignal(signal.SIGTERM)
    arguments = rows, protocol(weights), tmp_path, scope, Machine(workers=0), data['davis_240p']
    try:
        texts = {reproduce(*arguments) for _ in range(2)}
    finally:
        signal.signal(signal.SIGTERM, handler)
    (text,) = texts
    content = json.loads((tmp_path / 'results.json').read_text())
    assert content['samples'] == ['bear', 'goat']
    assert [row['name'] for row in content['rows']] == ['SST (Grid)', 'first mask', 'label propagation']
    sst, repeated, _ = (row['mean'] for row in content['rows'])
    stem = 'sst-grid_r50-d8_4xb1-100k_youtube-vos-2018-240x432'
    name = 'sst-grid_mobilenet-v2-s8_video_1xb4-2_davis-240p-128x176'
    by_clip = []
    for number, (clip,) in enumerate(FOLDS, 1):
        run = content['runs'][f'{stem}_fold-{number}']['3']
        (log,) = scalars(tmp_path / f'{name}_fold-{number}_seed-3')
        assert [line['step'] for line in log if 'JF' in line] == [2]
        assert run['metrics']['J&F'] == pytest.approx(log[-1]['JF'])
        score, count = run['scores'][content['samples'].index(clip)]
        assert score / count == pytest.approx(log[-1]['JF'], abs=1e-3)
        by_clip.append(log[-1]['JF'])
        paths = sorted((data['davis_240p'] / f'Annotations/240p/{clip}').iterdir())
        first, second = (read_mask(str(path), True) > 0 for path in paths[:2])  # neither first nor last are scored
        found = content['runs'][f'first mask, {stem}_fold-{number}']['none']['metrics']['J']
        assert found == pytest.approx(100 * (first & second).sum() / (first | second).sum())
    assert sst['J&F'] == pytest.approx(sum(by_clip) / 2, abs=1e-3)
    mean = f'{sst["J&F"] - repeated["J&F"]:+.2f}'
    assert f'| SST (Grid) − first mask | {mean} [' in text
    assert '2 folds, each tested on other samples' in text
    assert (tmp_path / 'contrasts.png').is_file()
    cfg = Config.fromfile(tmp_path / 'configs' / f'{name}_fold-1.py')
    assert cfg.model.backbone.type == 'mmattn.FrozenBackbone'
    assert cfg.custom_imports.imports == ['reproduction.mobilenet_v2_stride8', 'reproduction.frozen_backbone']
    assert content['rows'][1]['configs'] == [f'first mask, {stem}_fold-1', f'first mask, {stem}_fold-2']


def test_the_backbone_for_clips_is_the_first_part_of_the_whole(weights):
    """Maps and gradients, in float64."""
    from reproduction.mobilenet_v2_stride8 import MobileNetV2Stride8

    init_default_scope('mmengine')
    cfg = dict(act_cfg=dict(type='ReLU6'))
    part = MobileNetV2Stride8(**cfg).double()
    whole = MODELS.build(dict(type='mmseg.MobileNetV2', out_indices=(1, 2), **cfg)).double()
    state = torch.load(weights, weights_only=True)['state_dict']
    whole.load_state_dict(state)
    part.load_state_dict({key: state[key] for key in part.state_dict()})
    images = torch.randn(2, 3, 24, 40, dtype=torch.float64)
    gradients = []
    for model in (part, whole):
        maps = model(images)
        assert [tuple(x.shape) for x in maps] == [(2, 24, 6, 10), (2, 32, 3, 5)]
        sum((x**2).sum() for x in maps).backward()
        gradients.append((maps, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    (maps, ours), (whole_maps, expected) = gradients
    assert all(torch.equal(*pair) for pair in zip(maps, whole_maps, strict=True))
    assert ours.keys() == expected.keys() == dict(part.named_parameters()).keys()
    assert all(torch.equal(ours[name], value) for name, value in expected.items())
    (last,) = MobileNetV2Stride8(out_indices=(2,), **cfg).double()(images)  # which a head selects by its number
    assert last.shape == maps[1].shape
