"""The size that is counted by default, what a model of each kind is given, tables, and detectors in stages."""

from types import SimpleNamespace

import mmcv.cnn  # noqa: F401  registers Conv2d
import pytest
import torch
from mmengine.config import Config
from mmengine.fileio import dump
from torch import nn

from analysis_tools.get_flops import count, input_channels, input_size, table_by_module, table_with_paper
from mmattn.utils.files import write_text

from .requirements import requires
from .tiny_detectors import detector

RESIZE = dict(type='RandomResize', scale=(2048, 1024))


@pytest.mark.parametrize(
    ('pipeline', 'expected'),
    [
        ([RESIZE, dict(type='RandomCrop', crop_size=(32, 48))], (32, 48)),
        ([RESIZE, dict(type='RandomCrop', crop_size=180)], (180, 180)),
        ([RESIZE, dict(type='RandomCrop', crop_type='relative_range', crop_size=(0.5, 0.5))], (1024, 2048)),
        ([RESIZE, dict(type='PackSegInputs')], (1024, 2048)),
        ([dict(type='RandomChoiceResize', scale=[(1333, 640), (1333, 800)])], (800, 1333)),  # the last counts
        ([dict(type='RandomChoiceResize', scale=[(1333, 800)])], (800, 1333)),
        ([dict(type='RandomCrop', crop_size=(8, 16, 16)), dict(type='Resize', scale=(64, 48))], (48, 64)),
        ([], None),
    ],
)
def test_the_crop_decides_then_the_scale(pipeline, expected):
    assert input_size(Config(dict(train_dataloader=dict(dataset=dict(pipeline=pipeline))))) == expected


@pytest.mark.parametrize(
    ('model', 'expected'),
    [
        (dict(), 3),
        (dict(data_preprocessor=dict(type='SegDataPreProcessor'), backbone=None), 3),
        (dict(data_preprocessor=dict(mean=[1, 2, 3, 4]), backbone=dict(in_channels=4)), 4),
        (dict(data_preprocessor=dict(mean=[1, 2]), backbone=dict(type='STDCContextPathNet')), 2),
        (dict(data_preprocessor=dict(mean=[127.5]), backbone=dict(in_channels=1)), 1),
        (dict(data_preprocessor=dict(mean=[127.5]), backbone=dict()), 3),  # the mean of all channels
    ],
)
def test_the_channels_are_those_that_are_normalised(model, expected):
    assert input_channels(Config(dict(model=model))) == expected


GIVEN = []
PLAIN = torch.zeros(2)  # a tensor that a model has had before it was built


def note(*inputs):
    """Note the shapes of tensors, and other values as they are; compute 3 · 4 · 5 products."""
    texts = [{name: tuple(x.shape) for name, x in each.items()} for each in inputs if isinstance(each, dict)]
    GIVEN.append((*texts, *(tuple(getattr(each, 'shape', each)) for each in inputs if not isinstance(each, dict))))
    torch.zeros(3, 4) @ torch.zeros(4, 5)


class Reads(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.unused = nn.Linear(4, 5)
        for name, option in options.items():
            setattr(self, name, option)

    def forward(self, inputs):
        note(inputs)
        return inputs.flatten()[:2] + PLAIN if isinstance(inputs, torch.Tensor) else None


class Embedding(nn.Module):
    def forward(self, words):
        note(words)
        return words

    def logits(self, x):
        note(x)


class Translates(Reads):
    """The source becomes a memory of two numbers a word, the target one of three."""

    translate = True

    def encoder(self, x):
        return x.new_empty(*x.shape, 2)

    def decoder(self, words, memory):
        note(words, memory)
        return words.new_empty(*words.shape, 3)

    def __init__(self, **options):
        super().__init__(**options)
        self.embedding = Embedding()


class Follows(Reads):
    """One map for each frame, and a fine one for the head."""

    def extract_feat(self, frames):
        note(frames)
        return frames.new_empty(len(frames), 6, 2, 3), frames.new_empty(len(frames), 4, 8, 12)

    def object_streams(self, *inputs):
        note(*inputs)
        return [inputs[0][:, :2]]

    def head(self, *inputs):
        note(*inputs)


class Detects(Reads):
    """With heads of two stages, which have different features of 5 proposals."""

    def __init__(self, rpn=False, stages=0, **options):
        super().__init__(**options)
        self.bbox_head = self.rpn_head = note
        delattr(self, 'bbox_head' if rpn else 'rpn_head')
        if stages:
            heads = [StageHead(2 + i) for i in range(stages)]
            self.roi_head = SimpleNamespace(bbox_head=nn.ModuleList(heads) if stages > 1 else heads[0])
            self.test_cfg = SimpleNamespace(rpn=SimpleNamespace(max_per_img=5))

    def extract_feat(self, x):
        note(x)
        return x[:, :2]


class StageHead(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.in_channels, self.roi_feat_size = channels, (3, 4)

    def forward(self, x):
        note(x)


REGIONS = dict(features=(1, 7, 6), boxes=(1, 7, 4), sizes=(1, 2))
CAPTION = dict(attributes=(1, 20), captions=(1, 1, 9))


@pytest.mark.parametrize(
    ('kind', 'options', 'given'),
    [
        (Reads, dict(scorer=1, num_features=6), [(dict(REGIONS, caption=(1, 9), phrases=(1, 4)),)]),
        (Reads, dict(num_answers=2, num_features=6), [(dict(REGIONS, question=(1, 9)),)]),
        (Reads, dict(num_answers=2, num_features=None), [(dict(image=(1, 3, 64, 64), question=(1, 9)),)]),
        (Reads, dict(describe=1, num_features=6), [(REGIONS | CAPTION,)]),
        (Reads, dict(describe=1), [(REGIONS | CAPTION | dict(features=(1, 7, 2048)),)]),
        (Reads, {}, [((1, 3, 7, 9),)]),
        (Translates, dict(vocab_size=8), [((1, 7),), ((1, 9),), ((1, 9), (1, 7, 2)), ((1, 9, 3),)]),
        (Detects, {}, [((1, 3, 7, 9),), ((1, 2, 7, 9),)]),
        (Detects, dict(rpn=True, stages=1), [((1, 3, 7, 9),), ((1, 2, 7, 9),), ((5, 2, 3, 4),)]),
        (
            Detects,
            dict(rpn=True, stages=2),
            [((1, 3, 7, 9),), ((1, 2, 7, 9),), ((5, 2, 3, 4),), ((5, 3, 3, 4),)],
        ),
        (
            Follows,
            {},
            [
                ((8, 3, 7, 9),),
                ((1, 8, 6, 2, 3), (1, 8), (1, 6, 2, 3), (1, 6, 2), (1,)),
                ((1, 2, 6, 2, 3), (8, 4, 8, 12), (7, 9)),
            ],
        ),
    ],
    ids=[
        'phrases',
        'question',
        'its pixels',
        'caption',
        'usual features',
        'image',
        'sentence',
        'boxes',
        'proposals',
        'stages',
        'clip',
    ],
)
def test_what_a_model_is_given(kind, options, given):
    """One image, clip or sentence: 7 regions or source words, 9 words. What is computed is counted once."""
    GIVEN.clear()
    assert count(Config(dict(default_scope='mmengine', model=dict(type=kind, **options))), (3, 7, 9)) == (
        4 * 5 + 5,
        len(given) * 3 * 4 * 5,
    )
    assert given == GIVEN


def test_each_member_of_an_ensemble_is_given_its_own_features():
    class Ensemble(Reads):
        def __init__(self, members):
            super().__init__(describe=1)
            self.members = nn.ModuleList(Reads(**member) for member in members)

    GIVEN.clear()
    members = [dict(num_features=6), dict(num_features=5)]
    count(Config(dict(default_scope='mmengine', model=dict(type=Ensemble, members=members))), (3, 7, 9))
    assert [inputs['features'] for (inputs,) in GIVEN] == [(1, 7, 6), (1, 7, 5)]


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Sequential(nn.Conv2d(3, 50, 1)), nn.Conv2d(50, 100, 1, bias=False))

    def forward(self, x):
        return self.first(x)


def test_a_table_has_modules_down_to_a_depth():
    """Of 10⁷ positions: 1.5 and 50 G."""
    cfg = Config(dict(default_scope='mmengine', model=dict(type=Nested)))
    rows = {'Nested': '51.50', 'Nested.first': '51.50', 'Nested.first.0': '1.50', 'Nested.first.1': '50.00'}
    for depth, count_of_rows in ((2, 2), (3, 4)):
        lines = table_by_module(cfg, (3, 2500, 4000), depth=depth).splitlines()
        found = dict([[cell.strip() for cell in line.split('|')[1:3]] for line in lines if '.' in line and '|' in line])
        assert found == dict([*rows.items()][:count_of_rows])
        assert '2500×4000: 51.50 G' in lines[-1]
        assert '0.01 M' in lines[-1]  # 150 + 50 + 5000
    assert table_by_module(cfg, (3, 2500, 4000)).count('Nested') == 4
    assert count(cfg, (3, 2500, 4000), module='first.0') == (200, 1.5e9)


def test_a_table_is_of_a_clip_of_eight_frames_unless_told():
    for options, frames in (({}, 8), (dict(frames=3), 3)):
        GIVEN.clear()
        table_by_module(Config(dict(default_scope='mmengine', model=dict(type=Follows))), (3, 7, 9), **options)
        assert GIVEN[0] == ((frames, 3, 7, 9),)


def test_figures_of_a_paper_beside_ours(tmp_path):
    """With a base, ours is the paper's figure of the base and what is added; with options, a row of its own.

    At 10⁶ positions: 0.6 G for the base, 1.2 G for the wider one, and 1.5 G with the option.
    """
    for name, channels in (('base', 200), ('wide', 400)):
        model = dict(type='Conv2d', in_channels=3, out_channels=channels, kernel_size=1)
        write_text(tmp_path / f'{name}.py', f"default_scope = 'mmengine'\nmodel = {model}")
    common, base = dict(Module='', Input=[3, 500, 2000]), {'Config': 'base.py', 'MACs (G)': 0.5}
    entries = {
        'wide': [
            {'Row': 'c', 'MACs (G)': 1.0, 'Parameters (K)': 1.5, 'Base': base, **common},
            {'Row': 'b', 'MACs (G)': 1.25, 'Options': {'model.out_channels': 500}, **common},
            {'Row': 'd', 'MACs (G)': 0.5, 'Base': base, **common},
        ],
        'base': [{'Row': 'a', **common}],
    }
    models = [dict(Name=name, Config=f'x/{name}.py', Complexity=rows) for name, rows in entries.items()]
    dump(dict(Models=[*models, dict(Name='none', Config='x/none.py')]), tmp_path / 'metafile.yml')
    rows = [
        ['a', '0.80', '-', '0.60', '-', '-', '-'],
        ['b', '2.00', '-', '1.50', '1.25', '+20.00%', '-'],
        ['c', '1.60', 1.5, '1.10', '1.00', '+10.00%', '+20.00%'],
        ['d', '1.60', '-', '1.10', '0.50', '+120.00%', '-'],
    ]
    assert table_with_paper(tmp_path / 'metafile.yml').rows == rows
    for name, options, found in (('wide', None, rows[2:]), ('wide', {'model.out_channels': 500}, rows[1:2])):
        found = sorted(found)
        assert table_with_paper(tmp_path / 'metafile.yml', name, options).rows == found
    assert table_with_paper(tmp_path / 'metafile.yml', 'none') is None


@requires('mmcv operators')
@pytest.mark.parametrize(('kind', 'offsets'), [('DCN', 2), ('DCNv2', 3)])
def test_a_deformable_convolution_counts_with_that_of_its_offsets(kind, offsets):
    """Two, or with weights three numbers per tap of 3×3, by a convolution of the same taps."""
    layer = dict(type=kind, in_channels=4, out_channels=5, kernel_size=3, padding=1)
    macs = count(Config(dict(default_scope='mmengine', model=layer)), (4, 6, 7))[1]
    assert macs == 6 * 7 * 4 * 9 * (5 + offsets * 9)


@requires('mmcv operators')
def test_each_stage_of_a_cascade_counts():
    """60 proposals, two layers of 16 features; boxes are regressed once per class (3), or once in a cascade."""
    layers, classes = 16 * 7 * 7 * 16 + 16 * 16, 16 * 4
    macs = {
        name: count(Config(dict(default_scope='mmdet', model=detector(name))), (3, 64, 96))[1]
        for name in ('faster', 'cascade')
    }
    expected = 2 * (layers + classes + 16 * 4) - (layers + classes + 16 * 12)
    assert macs['cascade'] - macs['faster'] == 60 * expected
