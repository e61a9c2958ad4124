"""Folds of clips: what each trains on and tests, rows without training, and the figures of all folds."""

import json
import os
import re
import signal

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, init_default_scope

from mmattn.reproduction import questions, reproduce
from mmattn.reproduction.evidence import required_seeds
from mmattn.reproduction.folds import PROPAGATED, label_propagation, merge, reproduce_folds, table, write_fold
from mmattn.reproduction.plan import plan
from mmattn.reproduction.protocol import Protocol, read_data
from mmattn.reproduction.questions import QUESTIONS, answer, report, rows_of, size_table
from mmattn.reproduction.results import Result
from mmattn.reproduction.runs import scalars
from mmattn.reproduction.short_runs.davis import REPEATED
from mmattn.reproduction.task import ProtocolError
from mmattn.video import read_mask

from .test_backbone import weights  # noqa: F401  (a fixture)

FOLDS = ('bear',), ('goat',)
VARIABLE = 'DAVIS_240P_ROOT'


@pytest.fixture
def question(monkeypatch):
    """The question with a fold for each of the two small clips."""
    tiny = QUESTIONS['d']._replace(folds=FOLDS, iterations=2, seeds=1)
    monkeypatch.setattr(questions, 'QUESTIONS', dict(d=tiny))
    return tiny


def protocol(weights, **changes):  # noqa: F811
    return questions.protocol_of(QUESTIONS['d'], 2, weights, trained=False)._replace(**changes)


def test_each_clip_is_tested_once_and_not_trained_on():
    tested = [clip for fold in QUESTIONS['d'].folds for clip in fold]
    assert len({*tested}) == len(tested) == 8
    assert [len(fold) for fold in QUESTIONS['d'].folds] == [2] * 4


def test_a_fold_trains_and_pastes_only_its_own_clips(data, weights, tmp_path):  # noqa: F811
    """The lists of clips decide on both data sets of the training, also on that of the pasted objects."""
    write_fold(data['davis_240p'], tmp_path / 'data', ['goat'], ['bear'])
    source = read_data('davis_240p', tmp_path / 'data')
    cfg = plan(rows_of(QUESTIONS['d'], False), protocol(weights), source)[0].configs[0]
    init_default_scope('mmengine')
    train = DATASETS.build(cfg.train_dataloader.dataset)
    (paste,) = (step for step in train.pipeline.transforms if hasattr(step, 'dataset'))
    test = DATASETS.build(cfg.test_dataloader.dataset)
    found = [[part.get_data_info(i)['clip'] for i in range(len(part))] for part in (train, paste.dataset, test)]
    assert found == [['goat'], ['goat'], ['bear']]
    assert cfg.val_dataloader.dataset == cfg.test_dataloader.dataset


def test_an_existing_fold_of_other_clips_or_data_is_an_error(data, tmp_path):
    root, folder = data['davis_240p'], tmp_path / 'data'
    for _ in range(2):
        write_fold(root, folder, ['goat'], ['bear'])
    for other, clips in ((root, ['bear']), (tmp_path, ['goat'])):
        with pytest.raises(ProtocolError, match='data is of other clips or of another --data-root'):
            write_fold(other, folder, clips, ['bear'])
    assert (folder / 'ImageSets/train.txt').read_text() == 'goat\n'


def test_missing_clips_are_an_error_before_anything_is_written(data, weights, tmp_path):  # noqa: F811
    for root, names in ((data['davis_240p'], 'cow, dog'), (tmp_path, 'cow, bear, dog')):
        with pytest.raises(ProtocolError, match=rf'{root}/JPEGImages does not have the clips {names} \(set'):
            reproduce_folds(
                [], protocol(weights), tmp_path / 'runs', (('cow', 'bear'), ('dog',)), data_root=root, seeds=[0]
            )
    assert not list(tmp_path.iterdir())


def test_label_propagation_has_the_features_from_which_the_rows_start(data, weights):  # noqa: F811
    """Frozen or not: the maps of the backbone with the weights of the file."""
    frames = torch.randint(256, (2, 3, 32, 48), dtype=torch.uint8)
    state = torch.load(weights, weights_only=True)['state_dict']
    for frozen in (True, False):
        source = read_data('davis_240p', data['davis_240p'])
        cfg = plan(rows_of(QUESTIONS['d'], False), protocol(weights, frozen=frozen), source)[0].configs[0]
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
        found, _ = model.extract_feat(model.data_preprocessor.normalize(frames))
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


def test_a_frozen_backbone_keeps_its_weights_and_the_rest_is_trained(data, weights):  # noqa: F811
    source = read_data('davis_240p', data['davis_240p'])
    for frozen in (True, False):
        cfg = plan(rows_of(QUESTIONS['d'], False), protocol(weights, frozen=frozen), source)[1].configs[0]
        init_default_scope('mmengine')
        model = MODELS.build(cfg.model).train()
        trained = {name.partition('.')[0] for name, p in model.named_parameters() if p.requires_grad}
        assert ('backbone' in trained) != frozen
        assert {'projection', 'encoder', 'decoder', 'expand_mask_project', 'score'} <= trained
        assert any(module.training for module in model.backbone.modules()) != frozen


def run(fold, seed, last, **metrics):
    return dict(
        metrics={'J&F': last, **metrics}, seconds=0.5, memory=1.0, curve=[(1, 0.0)] * 8 + [(9, 1.0), (10, last)]
    )


def figures(number):
    """Figures of a fold with two seeds."""
    return dict(
        table='5.1',
        rows=[
            dict(
                name=name,
                config='configs/a.py',
                baseline=None,
                paper=[],
                parameters=1,
                macs=2.0,
                mean={},
                seeds={
                    str(seed): run(
                        number, seed, base + 10 * number + seed, **{f'J&F of {FOLDS[number][0]}': base + seed}
                    )
                    for seed in (0, 1)
                },
            )
            for name, base in (('SST (Grid)', 40.0), ('SST (Strided)', 42.5))
        ],
    )


def test_a_pair_is_a_fold_and_a_seed():
    """Also in the columns of the clips, which are means over the seeds."""
    merged = merge([figures(0), figures(1)])
    assert [row['name'] for row in merged['rows']] == ['SST (Grid)', 'SST (Strided)']
    pairs = {key: (each['seed'], each['fold']) for key, each in merged['rows'][0]['seeds'].items()}
    assert pairs == {'0': (0, 1), '1': (0, 2), '2': (1, 1), '3': (1, 2)}
    assert questions.values_of(merged, False) == {
        'SST (Grid)': {0: 40.0, 1: 50.0, 2: 41.0, 3: 51.0},
        'SST (Strided)': {0: 42.5, 1: 52.5, 2: 43.5, 3: 53.5},
    }
    lines = table(merged).splitlines()
    assert lines[0] == '|  | bear | goat | J&F, mean |'
    assert lines[2:] == ['| SST (Grid) | 40.50 | 40.50 | 40.50 |', '| SST (Strided) | 43.00 | 43.00 | 43.00 |']


def test_the_size_depends_on_the_deviation_within_folds():
    """Two folds ten points apart, whose seeds are one point apart: the variance of seeds is 1 / 2."""
    merged = merge([figures(0), figures(1)])
    (line,) = size_table(merged, QUESTIONS['d'].contrasts).splitlines()[2:]
    *_, spread, seeds, _ = (word.strip() for word in line.split('|'))
    assert spread == '1.00'
    assert int(seeds) == np.ceil(required_seeds(1.0, 1.6, 6) / 2)


@pytest.mark.slow
def test_all_folds_of_a_seed_come_before_the_next_seed(question, data, weights, tmp_path, monkeypatch):  # noqa: F811
    """In another work dir, finished runs are found; the environment keeps its data; the report counts pairs."""
    order, scores = [], {}

    def stage(run, method, workers, jobs):
        (clip,) = (run.folder.parent / 'data/ImageSets/val.txt').read_text().split()
        stored = run.folder.parent / 'runs' / f'{run.folder.name}.json'
        if stored.exists():
            found = json.loads(stored.read_text())
            assert found.pop('steps') == 2
            return Result(**found)
        order.append((run.seed, run.folder.parent.name, run.method))
        score = scores.setdefault((run.method, clip, run.seed), 40.0 + len(scores) ** 1.5)
        stored.parent.mkdir(exist_ok=True)
        metrics = {'J&F': score, 'J': score, 'F': score, f'J&F of {clip}': score}
        stored.write_text(json.dumps(dict(steps=2, metrics=metrics, seconds=0.5, memory=9.0)))
        return Result(metrics, 0.5, 9.0)

    monkeypatch.setattr(questions, 'QUESTIONS', dict(d=question._replace(seeds=2)))
    monkeypatch.setattr(reproduce, 'run_stages', stage)
    monkeypatch.setenv(VARIABLE, str(data['davis_240p']))
    handler = signal.getsignal(signal.SIGTERM)
    results = tmp_path / 'results'
    try:
        answer('d', weights, tmp_path / 'runs', results=results)
        assert [each[:2] for each in order[::2]] == [(0, 'fold-1'), (0, 'fold-2'), (1, 'fold-1'), (1, 'fold-2')]
        assert os.environ[VARIABLE] == str(data['davis_240p'].resolve())
        written, count = (results / 'd_frozen.json').read_text(), len(order)
        text = answer('d', weights, tmp_path / 'other', results=results)
        assert len(order) == count == 8
        assert (results / 'd_frozen.json').read_text() == written
        with pytest.raises(ProtocolError, match='another --data-root'):
            answer('d', weights, tmp_path / 'runs', results=results, data_root=copy_of(data['davis_240p'], tmp_path))
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert f'| {PROPAGATED} | ' in text
    rows = {row['name']: row['seeds'] for row in json.loads(written)['rows']}
    for clip, name in enumerate(('bear', 'goat')):
        masks = [
            read_mask(str(path), True) > 0
            for path in sorted((data['davis_240p'] / f'Annotations/240p/{name}').iterdir())
        ]
        for seed in (0, 1):
            assert rows[REPEATED][str(2 * seed + clip)]['metrics']['J'] == pytest.approx(
                100 * (masks[0] & masks[1]).sum() / (masks[0] | masks[1]).sum()  # neither the first nor the last frame
            )
            for method in ('SST (Grid)', 'SST (Strided)'):
                assert rows[method][str(2 * seed + clip)]['metrics']['J&F'] == scores[method, name, seed]
    said = report(tmp_path / 'picture.png', results)
    assert re.search(
        r'SST \(Strided\) − SST \(Grid\) \| \+1\.60 \| .+? \| 4 \| .+? \| (undecided|confirmed|refuted) \|', said
    )


def copy_of(root, tmp_path):
    """The same data at another place."""
    folder = tmp_path / 'moved'
    folder.mkdir()
    for part in ('JPEGImages', 'Annotations'):
        (folder / part).mkdir()
        (folder / part / '240p').symlink_to(root / part / '240p')
    return folder


@pytest.mark.e2e
def test_a_run_of_the_stock_component(data, weights, tmp_path):  # noqa: F811
    """Through the tools: J&F is that of the last validation, and of the fold's clip; a second call trains nothing."""
    rows = [row for row in rows_of(QUESTIONS['d'], False) if row.baseline is None]
    root = data['davis_240p']
    handler = signal.getsignal(signal.SIGTERM)
    try:
        for _ in range(2):
            reproduce_folds(rows, protocol(weights), tmp_path, FOLDS, data_root=root, seeds=[3], workers=0)
    finally:
        signal.signal(signal.SIGTERM, handler)
    rows = json.loads((tmp_path / 'results.json').read_text())['rows']
    assert [row['name'] for row in rows] == [REPEATED, PROPAGATED, 'SST (Grid)']
    for pair, (fold, (clip,)) in zip(('6', '7'), enumerate(FOLDS)):
        found = rows[-1]['seeds'][pair]
        (log,) = scalars(*(tmp_path / f'fold-{fold + 1}').glob('sst-grid*_seed-3'))
        assert [line['step'] for line in log if 'JF' in line] == [2]
        assert found['metrics']['J&F'] == found['metrics'][f'J&F of {clip}'] == pytest.approx(log[-1]['JF'])
    assert 'FrozenBackbone' in Config.fromfile(tmp_path / 'fold-1' / rows[-1]['config']).pretty_text


def test_only_models_that_read_the_last_map_fit_the_backbone_for_clips(data, weights):  # noqa: F811
    source = read_data('davis_240p', data['davis_240p'])
    rows = rows_of(QUESTIONS['d'], False)
    with pytest.raises(ValueError, match=r'mobilenet-v2-d8 does not fit: the model mmattn\.SST reads its last map'):
        plan(rows, protocol(weights, backbone='mobilenet-v2-d8'), source)
    with pytest.raises(ValueError, match=r's8_video does not fit: decode_head of the row reads 256 channels, .* None'):
        plan(
            rows_of(QUESTIONS['a'], False),
            Protocol('camvid', 2, 0.1, True, backbone=QUESTIONS['d'].backbone),
            read_data('camvid', data['camvid']),
        )
    with pytest.raises(ProtocolError, match='--frozen requires --pretrained'):
        plan(rows, protocol(None), source)
    with pytest.raises(ProtocolError, match='--cached-crops is for segmentation; --frozen freezes any'):
        plan(rows, protocol(weights, crops=4), source)


def test_the_backbone_for_clips_is_the_first_part_of_the_whole(weights):  # noqa: F811
    """Maps and gradients, in float64."""
    init_default_scope('mmengine')
    cfg = dict(act_cfg=dict(type='ReLU6'))
    part = MODELS.build(dict(type='mmattn.MobileNetV2Stride8', **cfg)).double()
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
    (maps, found), (others, expected) = gradients
    assert all(torch.equal(*pair) for pair in zip(maps, others, strict=True))
    assert found.keys() == expected.keys() == dict(part.named_parameters()).keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
