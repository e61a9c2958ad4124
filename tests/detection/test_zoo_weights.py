"""Checkpoints of the empirical study in MMDetection's zoo are of our configs with the options of the page."""

import ast
import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from mmcv.cnn.bricks import GeneralizedAttention
from mmengine.config import Config
from mmengine.fileio import load
from mmengine.registry import MODELS, init_default_scope

from mmattn.layers import TransformerAttention2d
from mmattn.utils import config_path

from ..requirements import requires

ZOO = Path(find_spec('mmdet').origin).parent / '.mim'
OURS = {model['Name']: model for model in load(config_path('attended_residual/metafile.yml'))['Models']}
PAGE = config_path('attended_residual/README.md').read_text(encoding='utf-8')
ROWS = re.findall(r'^\| (attn\d+(?:-dcn)?) \| (\S+) \| (\S+) \| `(.+)` \|$', PAGE, re.M)
NAMES = [row[0] for row in ROWS]


def read(name):
    """Our config with the options of the page, the zoo's, and the zoo's entry with the same weights."""
    (row,) = (row for row in ROWS if row[0] == name)
    model = OURS[f'faster-rcnn_r50-{name}_fpn_8xb2-1x_coco']
    entries = load(ZOO / 'configs/empirical_attention/metafile.yml')['Models']
    (entry,) = (entry for entry in entries if entry['Weights'] == model['Weights'])
    ours = Config.fromfile(config_path(model['Config'].removeprefix('configs/')))
    pairs = (option.split('=') for option in shlex.split(row[3]))
    ours.merge_from_dict({key: ast.literal_eval(value) for key, value in pairs})
    return row, model, ours, Config.fromfile(ZOO / entry['Config']), entry


def flat(value, path=''):
    if not isinstance(value, dict | list):
        return {path: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {key: leaf for name, part in items for key, leaf in flat(part, f'{path}.{name}').items()}


def test_weights_are_those_of_the_page():
    assert {f'faster-rcnn_r50-{name}_fpn_8xb2-1x_coco' for name in NAMES} == {
        name for name, model in OURS.items() if 'Weights' in model
    }
    for name, figure in ('faster_rcnn/faster-rcnn_r50', 37.4), ('dcn/faster-rcnn_r50-dconv-c3-c5', 41.3):
        models = load(ZOO / f'configs/{name.partition("/")[0]}/metafile.yml')['Models']
        (model,) = (model for model in models if model['Config'] == f'configs/{name}_fpn_1x_coco.py')
        assert model['Results'][0]['Metrics']['box AP'] == figure
        assert f' {figure} ' in PAGE


@pytest.mark.parametrize('name', NAMES)
def test_figures_and_models_are_the_zoos(name):
    """All but the class of the attention, whose weights have the same names, shapes and values."""
    row, model, ours, zoo, entry = read(name)
    assert float(row[1]) == entry['Results'][0]['Metrics']['box AP']
    figure = next(table for table in model['Tables'] if not table.get('Options')).get('Metrics', {}).get('mAP')
    assert row[2] == (f'{figure:.1f}' if figure else '–')
    our_model, zoo_model = (json.loads(json.dumps(cfg.model.to_dict())) for cfg in (ours, zoo))
    attention, stock = (model['backbone']['plugins'][0].pop('cfg') for model in (our_model, zoo_model))
    numbers = [model['train_cfg']['rpn_proposal'].pop('max_per_img') for model in (our_model, zoo_model)]
    assert (our_model, numbers) == (zoo_model, [2000, 1000])  # section 4.1: 2k
    sizes = [[step.scale for step in cfg.test_dataloader.dataset.pipeline if 'scale' in step] for cfg in (ours, zoo)]
    assert sizes[0] == sizes[1] == [(1333, 800)]
    assert (attention.pop('type'), stock.pop('type')) == ('mmattn.TransformerAttention2d', 'GeneralizedAttention')
    torch.manual_seed(0)
    theirs = GeneralizedAttention(256, **stock).eval()
    mine = TransformerAttention2d(256, **attention).eval()
    mine.load_state_dict(theirs.state_dict())  # strict
    for layer in (mine, theirs):
        torch.nn.init.constant_(layer.gamma, 0.5)  # 0 at the start would hide the attention
    x = torch.randn(1, 256, 6, 9)
    assert (theirs(x) - x).std() > 1e-4
    torch.testing.assert_close(mine(x), theirs(x))


@requires('mmcv operators')
@pytest.mark.parametrize('name', NAMES)
def test_a_checkpoint_of_the_zoo_has_the_keys_of_our_config(name):
    _, _, *configs, _ = read(name)
    init_default_scope('mmdet')
    with torch.device('meta'):
        ours, zoo = (MODELS.build(cfg.model).state_dict() for cfg in configs)
    assert {key: value.shape for key, value in ours.items()} == {key: value.shape for key, value in zoo.items()}


def test_the_recipe_of_2018_changes_nothing_else():
    """The command of the page: mmdet's losses, clipping, anchors, samples and warm-up of 2018, and the stages."""
    command = PAGE.partition('tools/reproduce.py 2 --dataset coco_detection --cfg-options ')[2].partition('```')[0]
    settings = dict(option.split('=') for option in shlex.split(command.replace('\\\n', ' ')))
    settings = {key: value if value == 'SmoothL1Loss' else ast.literal_eval(value) for key, value in settings.items()}
    cfg = Config.fromfile(config_path('attended_residual/faster-rcnn_r50-dcn_fpn_8xb2-1x_coco.py'))
    before = flat(cfg.to_dict())
    cfg.merge_from_dict(settings)
    after = flat(cfg.to_dict())
    assert before.keys() <= after.keys()
    assert {key[1:]: value for key, value in after.items() if key not in before or before[key] != value} == {
        'model.backbone.stage_with_dcn': (False, True, True, True),
        'model.rpn_head.loss_bbox.type': 'SmoothL1Loss',
        'model.rpn_head.loss_bbox.beta': pytest.approx(1 / 9),
        'model.roi_head.bbox_head.loss_bbox.type': 'SmoothL1Loss',
        'model.roi_head.bbox_head.loss_bbox.beta': 1.0,
        'model.roi_head.bbox_roi_extractor.roi_layer.sampling_ratio': 2,
        'model.train_cfg.rpn.allowed_border': 0,
        'optim_wrapper.clip_grad.max_norm': 35,
        'param_scheduler.0.start_factor': pytest.approx(1 / 3),
    }
