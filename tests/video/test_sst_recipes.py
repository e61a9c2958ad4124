"""The shipped configs of SST: what a stage trains, the next stage and a test read."""

from functools import cache
from itertools import pairwise
from math import ceil

import pytest
import torch
from mmengine.config import Config
from mmengine.fileio import load

from mmattn.registry import MODELS
from mmattn.utils import config_path
from mmattn.utils.component_type import dicts

CONFIGS = sorted(path.stem for path in config_path('sst').glob('*.py'))
MODELS_BY_NAME = {model['Name']: model for model in load(config_path('sst/metafile.yml'))['Models']}
TABLE_ROWS = [(name, row) for name, model in MODELS_BY_NAME.items() for row in model.get('Tables', ())]
STAGES = sorted({(*row['Stages'], name) for name, row in TABLE_ROWS if 'Stages' in row})


@cache
def config(name):
    return Config.fromfile(config_path(f'sst/{name}.py'))


def steps(name, key):
    """The values of a setting in the training's pipelines, which are the same in all of them."""
    (value,) = {step[key] for step in dicts(config(name).train_dataloader.dataset) if key in step}
    return value


def training_map(name):
    return tuple(ceil(side / 8) for side in steps(name, 'crop_size'))


def map_in_a_test(name):
    return tuple(ceil(side / 8) for side in config(name).model.test_cfg.scale[::-1])


@cache
def rows_read(name, size):
    """The offsets whose relative vectors have gradients from a map of this size, by table."""
    torch.manual_seed(0)
    layer = MODELS.build(dict(config(name).model.attention, embed_dims=4, num_heads=1))
    frames = steps(name, 'num_frames')
    layer(torch.randn(1, frames, *size, 4), frame_numbers=torch.arange(frames)[None]).square().sum().backward()
    tables = {key: p.grad.abs().sum(1) for key, p in layer.named_parameters() if 'relative_position' in key}
    return {key: {i - len(rows) // 2 for i in rows.nonzero().flatten().tolist()} for key, rows in tables.items()}


@pytest.mark.slow
@pytest.mark.parametrize('stages', STAGES, ids=lambda stages: stages[-1])
def test_a_stage_reads_the_relative_vectors_that_the_stage_before_trained(stages):
    """A larger map adds offsets; among those of the smaller map, it reads exactly the trained ones."""
    for first, second in pairwise(stages):
        trained, read = rows_read(first, training_map(first)), rows_read(second, training_map(second))
        assert trained.keys() == read.keys()
        for key, offsets in trained.items():
            assert len(offsets) > 1
            assert {i for i in read[key] if abs(i) <= max(offsets)} == offsets, key


@pytest.mark.parametrize('stages', STAGES, ids=lambda stages: stages[-1])
def test_stages_have_one_network_and_the_thesis_s_frames(stages):
    """The appearance model is part of all stages, also of the rows that leave it out."""
    networks = [{**config(name).model, 'test_cfg': None} for name in stages]
    assert all(network == networks[0] for network in networks)
    assert networks[0]['appearance']
    assert {steps(name, 'num_frames') for name in stages} == {8}  # "T ≈ 8", section 5.3


@pytest.mark.slow
@pytest.mark.parametrize('name', CONFIGS)
def test_a_test_reads_the_relative_vectors_that_training_trained(name):
    trained, read = rows_read(name, training_map(name)), rows_read(name, map_in_a_test(name))
    assert all(read[key] <= trained[key] for key in trained)


@pytest.mark.parametrize('name', CONFIGS)
def test_offsets_are_not_shared_in_training(name):
    assert config(name).model.attention.get('max_offset', 96) >= max(training_map(name)) - 1


def test_every_row_has_one_without_the_appearance_model_beside_it():
    rows = {(row['Table'], row['Name']): (name, row) for name, row in TABLE_ROWS}
    bare = {key: value for key, value in rows.items() if value[1].get('Options', {}).get('model.appearance') is False}
    assert {table for table, _ in rows} == {table for table, _ in bare}
    for (table, _), (name, row) in bare.items():
        other, full = rows[table, row['Baseline']]
        assert other == name
        assert row['Options'] == {**full.get('Options', {}), 'model.appearance': False}
        assert row.get('Stages') == full.get('Stages')
        assert 'Metrics' not in row  # the thesis's figures are inferred to be those of the full model


def test_sparse_evaluation_has_the_frames_of_the_training():
    for name, row in TABLE_ROWS:
        if row['Table'] == '5.4' and row['Setting'] == 'sparse':
            assert row['Options']['model.test_cfg.sampling'] == 'sparse'
            assert row['Options']['model.test_cfg.max_frames'] == steps(name, 'num_frames')
