"""The questions of docs/evidence.md: rows under one protocol, figures after each seed, the report."""

import json
import re

import mmcv
import pytest
import torch
from mmengine.registry import DATASETS, MODELS, init_default_scope
from PIL import Image

from mmattn.reproduction import exploration, questions, reproduce
from mmattn.reproduction.evidence import detectable, find
from mmattn.reproduction.exploration import SEEDS, explore
from mmattn.reproduction.plan import plan
from mmattn.reproduction.protocol import Protocol, read_data
from mmattn.reproduction.questions import (
    QUESTIONS,
    RESULTS,
    answer,
    choose_size,
    report,
    restore,
    rows_of,
    size_table,
)
from mmattn.reproduction.results import Result
from mmattn.reproduction.task import ProtocolError
from mmattn.reproduction.variants import SCALED, UNET_BA, blocks
from mmattn.segmentation.unet_ba_head import BLOCKS

from .test_backbone import weights  # noqa: F401  (a fixture)


class Drawn:
    """In place of a run: its score is drawn; how many are finished after each seed."""

    def __init__(self):
        self.scores = {}

    def __call__(self, run, method, workers, jobs):
        score = 40 + torch.randn((), generator=torch.Generator().manual_seed(len(self.scores))).item()
        return Result(dict(mIoU=self.scores.setdefault((run.method, run.seed), score), aAcc=50.0), 0.5, 100.0)


@pytest.fixture
def small(monkeypatch, data):
    """The questions on small images, with few crops, iterations and seeds."""
    question = QUESTIONS['a']
    tiny = question._replace(
        scale=0.1,
        rows=('CC', 'Bi-CC'),
        crops=2,
        iterations=2,
        seeds=3,
        others=2,
        trained=2,
        contrasts=question.contrasts[:1],
    )
    monkeypatch.setattr(questions, 'QUESTIONS', {'a': tiny})
    return data['camvid']


@pytest.mark.parametrize('name', QUESTIONS)
def test_contrasts_are_of_rows_with_the_printed_difference(name):
    """That of one setting: ResNet-50, or unaligned faces."""
    question = QUESTIONS[name]
    rows = rows_of(question, False)
    assert {*question.rows} <= {row.name for row in rows}
    for contrast in question.contrasts:
        found = [
            next(iter(ours.metrics.values())) - next(iter(baseline.metrics.values()))
            for ours in rows
            for baseline in rows
            if (ours.name, baseline.name, ours.setting) == (contrast.ours, contrast.baseline, baseline.setting)
        ]
        assert contrast.paper is None or pytest.approx(contrast.paper) in found
        assert {row.baseline for row in rows if row.name == contrast.ours} == {contrast.baseline}
    primary = {name for contrast in question.contrasts for name in contrast[1:3]}
    assert {row.name for row in rows_of(question, True)} == primary


def test_without_attention_the_head_has_its_convolutions_alone(data):
    question = QUESTIONS['a']
    methods = plan(rows_of(question, False), Protocol('camvid', 2, 0.1, True), read_data('camvid', data['camvid']))
    (method,) = (method for method in methods if method.name == 'no attention')
    init_default_scope('mmseg')
    head = MODELS.build(method.configs[0].model.decode_head).eval()
    maps = [torch.randn(1, head.in_channels, 5, 6)] * 4
    x = head.convs[1](head.convs[0](maps[head.in_index]))
    expected = head.conv_seg(head.conv_cat(torch.cat([maps[head.in_index], x], 1)))
    assert torch.equal(head(maps), expected)
    assert method.baseline == 'CC'


def curve(*values):
    return dict(curve=[[100 * (i + 1), value] for i, value in enumerate(values)])


def test_the_stock_components_alone_decide_the_size():
    """The curve is the mean over seeds; pairs of independent runs deviate √2 times as much as runs."""
    runs = {0: curve(*range(30, 38), 39.5, 40.0), 1: curve(*range(30, 38), 39.5, 41.0), 2: curve(*[30] * 9, 40.6)}
    same = {seed: curve(*[50.0] * 10) for seed in range(3)}
    results = dict(rows=[dict(name='CC', seeds=runs), dict(name='NL', seeds=same)])
    contrasts = QUESTIONS['a'].contrasts
    cc, nl = (line.split(' | ') for line in size_table(results, contrasts).splitlines()[2:])
    finals, before = [40.0, 41.0, 40.6], [37.0, 37.0, 30.0]
    assert cc[1].endswith(f', 1000: {sum(finals) / 3:.2f}')
    assert cc[1].count(':') == 10
    assert cc[2] == f'{sum(finals) / 3 - sum(before) / 3:+.2f}'
    deviation = 2**0.5 * torch.tensor(finals).double().std().item()
    assert cc[3] == f'{deviation:.2f}'
    seeds = int(cc[4].removesuffix(' |'))
    assert detectable(deviation, seeds, 0.05 / 6) <= 1.07 < detectable(deviation, seeds - 1, 0.05 / 6)
    assert nl[2:] == ['+0.00', '0.00', '6 |']  # at least six seeds
    results['rows'][1]['seeds'] = {0: curve(*[40.0] * 10), 1: curve(*[60.0] * 10)}
    assert size_table(results, contrasts).splitlines()[3].endswith('| more than 100 |')


@pytest.mark.slow
def test_only_stock_components_are_trained_to_choose_the_size(small, weights, tmp_path, monkeypatch):  # noqa: F811
    trained = []
    stages = reproduce.run_stages

    def stage(run, method, workers, jobs):
        if (run.folder.parent / 'runs' / f'{run.folder.name}.json').exists():  # its figures are known
            return stages(run, method, workers, jobs)
        cfg = method.configs[0]
        trained.append((method.name, run.seed, cfg.train_cfg.max_iters, cfg.train_cfg.val_interval))
        return Result(
            dict(mIoU=40.0 + run.seed, aAcc=50.0), 0.5, 100.0, [(2 * i, 40.0 + run.seed) for i in range(1, 11)]
        )

    monkeypatch.setattr(reproduce, 'run_stages', stage)
    said = choose_size('a', 20, weights, tmp_path / 'runs', data_root=small, seeds=(0, 1), results=tmp_path / 'results')
    assert sorted(trained) == [('CC', 0, 20, 2), ('CC', 1, 20, 2)]
    assert '| CC | 2: 40.50, ' in said
    assert (tmp_path / 'runs/curves.png').exists()
    assert [path.name for path in (tmp_path / 'results').iterdir()] == ['a_frozen_stock.json']
    said = report(tmp_path / 'evidence.png', tmp_path / 'results')
    assert '| a: CC | frozen_stock | 40.00, 41.00 | 40.50 ± 0.71 |' in said
    assert 'confirmed' not in said
    assert 'undecided' not in said
    # They are runs of the question, if it has their length.
    for iterations, missing in ((20, []), (30, [('CC', 0, 30), ('CC', 1, 30)])):
        trained.clear()
        question = questions.QUESTIONS['a']._replace(iterations=iterations, seeds=2)
        monkeypatch.setattr(questions, 'QUESTIONS', {'a': question})
        answer('a', weights, tmp_path / f'runs_{iterations}', data_root=small, results=tmp_path / 'results')
        others = [(name, seed, iterations) for name in ('Bi-CC', 'no attention') for seed in (0, 1)]
        assert {run[:3] for run in trained} == {*others, *missing}
        (tmp_path / 'results/a_frozen.json').unlink()


@pytest.mark.parametrize('missing', [dict(iterations=None), dict(seeds=0)])
def test_a_question_whose_size_is_not_chosen_is_not_run(missing, small, tmp_path, monkeypatch):
    monkeypatch.setattr(questions, 'QUESTIONS', {'a': questions.QUESTIONS['a']._replace(**missing)})
    with pytest.raises(ProtocolError, match='its size is not chosen yet'):
        answer('a', tmp_path / 'weights.pth', tmp_path / 'runs', results=tmp_path / 'results')
    assert not list(tmp_path.iterdir())


def test_figures_of_another_backbone_are_not_taken(tmp_path):
    with pytest.raises(ProtocolError, match=r'c_frozen\.json has runs with other weights than own\.pth'):
        restore(RESULTS / 'c_frozen.json', tmp_path, tmp_path / 'own.pth')
    assert not list(tmp_path.iterdir())
    restore(RESULTS / 'c_frozen.json', tmp_path, tmp_path / 'mobilenet_v2_imagenet.pth')
    assert len(list((tmp_path / 'runs').iterdir())) >= 20


@pytest.mark.slow
def test_figures_are_written_after_each_seed_and_reported(small, weights, tmp_path, monkeypatch):  # noqa: F811
    stages = reproduce.run_stages
    monkeypatch.setattr(reproduce, 'run_stages', drawn := Drawn())
    results = tmp_path / 'results'
    seen = []
    whole = questions.reproduce

    def watched(*arguments, **options):
        path = results / 'a_frozen.json'
        seen.append(len(json.loads(path.read_text())['rows'][0]['seeds']) if path.exists() else 0)
        return whole(*arguments, **options)

    monkeypatch.setattr(questions, 'reproduce', watched)
    text = answer('a', weights, tmp_path / 'runs', data_root=small, results=results)
    assert seen == [0, 1, 2]
    assert '| no attention |' not in text  # the last seed is that of the primary contrast alone
    assert sorted(drawn.scores) == [
        (name, i) for name, n in (('Bi-CC', 3), ('CC', 3), ('no attention', 2)) for i in range(n)
    ]
    assert 'heads trained on its features of 2 fixed crops' in text
    # In another work dir, the figures of all runs are found.
    written = (results / 'a_frozen.json').read_text()
    monkeypatch.setattr(reproduce, 'run_stages', stages)
    answer('a', weights, tmp_path / 'other', data_root=small, results=results)
    assert (results / 'a_frozen.json').read_text() == written
    assert seen == [0, 1, 2, 3, 3, 3]  # no figure is ever missing in the file
    said = report(tmp_path / 'picture.png', results)
    (contrast,) = questions.QUESTIONS['a'].contrasts
    values = tuple({seed: drawn.scores[name, seed] for seed in range(3)} for name in ('Bi-CC', 'CC'))
    finding = find(contrast._replace(values=values, planned=3), 6)
    found = re.search(r'Bi-CC − CC \| \+1.07 \| (.+?) \| 3 \| (.+?) \| (\w+) \|', said).groups()
    assert found == (str(finding.difference).removesuffix(' *'), f'{finding.detectable:.2f}', finding.verdict)
    for (name, seed), score in drawn.scores.items():
        line = next(line for line in said.splitlines() if line.startswith(f'| a: {name} | frozen |'))
        assert line.split('|')[3].split(',')[seed].strip() == f'{score:.2f}'
    assert said.count('| not run |') == 1  # with the backbone trained
    with Image.open(tmp_path / 'picture.png') as picture:
        assert len(set(picture.convert('RGB').getdata())) > 20

    answer('a', weights, tmp_path / 'trained', trained=True, data_root=small, results=results)
    said = report(tmp_path / 'picture.png', results)
    assert 'not run' not in said
    rows = json.loads((results / 'a_trained.json').read_text())['rows']
    assert {row['name'] for row in rows} == {'CC', 'Bi-CC'}


@pytest.mark.slow
def test_faces_are_turned_in_the_test_alone(weights, data, tmp_path, monkeypatch):  # noqa: F811
    """Each image is rotated as mmcv rotates it; the score of upright faces is that of the last validation."""
    question = QUESTIONS['c']._replace(crops=2, iterations=2, seeds=2, others=0)
    monkeypatch.setattr(questions, 'QUESTIONS', dict(c=question))
    configs = {}

    def stage(run, method, workers, jobs):
        configs[run.method] = method.configs[0]
        return Result(dict(overall=50.0 + run.seed, accuracy=90.0), 0.5, 100.0, [(1, 10.0), (2, 80.0 + 3 * run.seed)])

    monkeypatch.setattr(reproduce, 'run_stages', stage)
    answer('c', weights, tmp_path / 'runs', data_root=data['fasseg'], results=tmp_path / 'results')
    said = report(tmp_path / 'picture.png', tmp_path / 'results')
    assert '| c: U-Net | frozen | 50.00, 51.00 |' in said
    assert '| c: U-Net, validation | frozen | 80.00, 83.00 |' in said
    cfg = configs['U-Net-BA']
    assert cfg.default_hooks.checkpoint.save_best is None
    init_default_scope('mmseg')
    upright, turned = (DATASETS.build(cfg[f'{part}_dataloader'].dataset)[0] for part in ('val', 'test'))
    expected = mmcv.imrotate(
        upright['data_samples'].gt_sem_seg.data[0].numpy().astype('uint8'),
        30,
        border_value=255,
        interpolation='nearest',
    )
    assert (turned['data_samples'].gt_sem_seg.data[0].numpy() == expected).all()
    assert upright['inputs'][0].shape == turned['inputs'][0].shape
    assert not torch.equal(upright['inputs'][0], turned['inputs'][0])


@pytest.mark.slow
def test_each_variant_changes_one_setting_of_the_method(weights, data, tmp_path, monkeypatch):  # noqa: F811
    question = QUESTIONS['c']._replace(crops=2, iterations=2)
    monkeypatch.setattr(exploration, 'QUESTIONS', dict(c=question))
    monkeypatch.setattr(questions, 'QUESTIONS', dict(c=question))
    configs, trained = {}, set()

    def stage(run, method, workers, jobs):
        configs[run.method] = method.configs[0]
        trained.add((run.method, run.seed))
        return Result(dict(overall=50.0, accuracy=90.0), 0.5, 100.0, [(1, 10.0), (2, 80.0)])

    monkeypatch.setattr(reproduce, 'run_stages', stage)
    results = tmp_path / 'results'
    explore('c', weights, tmp_path / 'runs', data_root=data['fasseg'], results=results)
    names = ['U-Net', 'U-Net-BA', *UNET_BA]
    assert trained == {(name, seed) for name in names for seed in SEEDS}
    assert '| c: U-Net-BA, 5×5 neighbourhoods, validation | exploratory | 80.00, 80.00 |' in report(
        tmp_path / 'picture.png', results
    )

    def model(name):
        return MODELS.build(configs[name].model)

    def without(cfg, *keys):
        found = cfg.to_dict()
        for key in keys:
            *parents, last = key.split('.')
            part = found
            for parent in parents:
                part = part[parent]
            part.pop(last, None)
        return found

    init_default_scope('mmseg')
    changed = 'model.decode_head.block', 'optim_wrapper.optimizer.lr'
    assert len({str(without(configs[name], *changed)) for name in names}) == 1
    own = configs['U-Net-BA']
    assert 'block' not in own.model.decode_head  # the blocks of the class are those of the variants
    assert blocks() == list(BLOCKS)
    learning_rate = configs['U-Net-BA, learning rate 0.001']
    assert without(learning_rate, changed[1]) == without(own, changed[1])
    assert learning_rate.optim_wrapper.optimizer.lr == 0.001 < own.optim_wrapper.optimizer.lr
    shapes = {name: {key: value.shape for key, value in model(name).state_dict().items()} for name in names}
    scaled = model(SCALED).decode_head.up_blocks
    assert [block.scale for block in scaled] == [None] * 4
    assert shapes[SCALED] == shapes['U-Net-BA']
    wide = model('U-Net-BA, 5×5 neighbourhoods').decode_head.up_blocks
    assert [block.settings['kernel_size'] for block in wide] == [(5, 5)] * 4
    geometric = model('U-Net-BA, no content logits, one pass').decode_head.up_blocks
    assert [(block.content, block.geometric) for block in geometric] == [(False, True)] * 4
    first, *others = model('U-Net-BA, one pass, own projections').decode_head.up_blocks
    assert first.settings['iterations'] == 1
    assert not any(block.share for block in (first, *others))
    lowest = {key: value for key, value in shapes['U-Net'].items() if 'up_blocks.3.' in key}
    mixed = shapes['U-Net-BA, convolution at the lowest level']
    assert {key: value for key, value in mixed.items() if 'up_blocks.3.' in key} == lowest


@pytest.mark.slow
def test_a_follow_up_adds_a_variant_to_finished_runs(weights, data, tmp_path, monkeypatch):  # noqa: F811
    """Only the variant is trained; its contrasts are a family of their own; no figure is ever missing in the file."""
    variant = SCALED
    first, *_ = QUESTIONS['c'].contrasts
    question = QUESTIONS['c']._replace(crops=2, iterations=2, seeds=3, others=3, follow_up=())
    added = first._replace(question='the scale is the cause', ours=variant, baseline='U-Net-BA', paper=None)
    trained, seen, results = [], [], tmp_path / 'results'

    def stage(run, method, workers, jobs):
        if (run.folder.parent / 'runs' / f'{run.folder.name}.json').exists():
            return stages(run, method, workers, jobs)
        if (results / 'c_frozen.json').exists():
            seen.append(sum(len(row['seeds']) for row in json.loads((results / 'c_frozen.json').read_text())['rows']))
        trained.append((run.method, run.seed))
        score = 80.0 + 3 * run.seed - 2 * (run.method == 'U-Net-BA') + run.seed**2 * (run.method == variant)
        return Result(dict(overall=50.0, accuracy=90.0), 0.5, 100.0, [(1, 10.0), (2, score)])

    stages = reproduce.run_stages
    monkeypatch.setattr(reproduce, 'run_stages', stage)
    for follow_up in ((), (added, added._replace(baseline='U-Net'))):
        monkeypatch.setattr(questions, 'QUESTIONS', dict(c=question._replace(follow_up=follow_up)))
        trained.clear()
        seen.clear()
        answer('c', weights, tmp_path / str(len(follow_up)), data_root=data['fasseg'], results=results)
        said = report(tmp_path / 'picture.png', results)
        assert ('Follow-up' in said) == bool(follow_up)
    assert {*trained} == {(variant, seed) for seed in range(3)}
    assert {*seen} == {6}
    gains = [2.0, 3.0, 6.0]
    values = dict(enumerate(gains)), dict.fromkeys(range(3), 0.0)
    for count, name in ((2, f'{variant} − U-Net-BA, upright'), (6, 'U-Net-BA − U-Net, upright')):
        line = next(line for line in said.splitlines() if f'| {name} |' in line)
        shift = gains if count == 2 else [-2.0] * 3
        finding = find(added._replace(values=(dict(enumerate(shift)), values[1]), planned=3), count)
        assert f'| {str(finding.difference).removesuffix(" *")} | 3 |' in line
        assert line.endswith(f'| {finding.verdict} |')
