"""Rows of the thesis that are figures of MMSegmentation's model zoo: its weights compute the same in our configs."""

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.fileio import load
from mmengine.registry import MODELS, TRANSFORMS, init_default_scope

from mmattn.utils import config_path

from ..requirements import requires

ZOO = Path(find_spec('mmseg').origin).parent / '.mim'
OURS = {
    model['Name']: model
    for folder in ('bi_nl', 'bi_cc')
    for model in load(config_path(f'{folder}/metafile.yml'))['Models']
    if 'Weights' in model
}
NAMES = [
    'nl_r101-d8_4xb2-80k_cityscapes-769x769',
    pytest.param('cc_r101-d8_4xb2-80k_cityscapes-769x769', marks=requires('mmcv operators')),
]


def in_zoo(weights):
    """The model of the zoo with the file of these weights, whichever host has it."""
    models = [model for path in ZOO.glob('configs/*/metafile.yaml') for model in load(path)['Models']]
    (found,) = (model for model in models if Path(model.get('Weights', '')).name == Path(weights).name)
    return found


def built(cfg):
    cfg.model.pretrained = None
    for part in (cfg.model.backbone, cfg.model.decode_head, cfg.model.auxiliary_head):
        part.norm_cfg = dict(type='BN')
    init_default_scope('mmseg')
    return MODELS.build(cfg.model).eval()


def test_the_configs_with_weights_are_those_of_the_readmes():
    assert sorted(OURS) == ['cc_r101-d8_4xb2-80k_cityscapes-769x769', 'nl_r101-d8_4xb2-80k_cityscapes-769x769']


@pytest.mark.parametrize('name', NAMES)
def test_figures_and_test_are_those_of_the_zoo(name):
    figures = in_zoo(OURS[name]['Weights'])['Results']['Metrics']
    printed = {row['Table']: row['Metrics']['mIoU'] for row in OURS[name]['Tables']}
    assert printed['3.2'] == figures['mIoU']
    # Multi-scale, only NL.
    assert (printed['3.1'] == figures['mIoU(ms+flip)']) == name.startswith('nl_')
    ours = Config.fromfile(config_path(OURS[name]['Config'].removeprefix('configs/')))
    zoo = Config.fromfile(ZOO / in_zoo(OURS[name]['Weights'])['Config'])
    assert ours.model.test_cfg == zoo.model.test_cfg
    assert ours.model.data_preprocessor == zoo.model.data_preprocessor
    # The option on the page is the size of the zoo's test.
    page = config_path(OURS[name]['Config'].removeprefix('configs/')).with_name('README.md').read_text()
    key, value = re.search(r"--cfg-options '(test_dataloader\S+)=(\S+)'", page).groups()
    ours.merge_from_dict({key: ast.literal_eval(value)})
    steps = [{step.type: step.get('scale') for step in cfg.test_dataloader.dataset.pipeline} for cfg in (ours, zoo)]
    assert steps[0] == steps[1]
    assert ours.tta_pipeline[1].transforms[:2] == [
        [dict(type='Resize', scale_factor=r, keep_ratio=True) for r in (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)],
        [dict(type='RandomFlip', prob=p, direction='horizontal') for p in (0.0, 1.0)],
    ]
    assert zoo.tta_pipeline[1].transforms[:2] == ours.tta_pipeline[1].transforms[:2]


@pytest.mark.parametrize(('size', 'scaled'), [((512, 683), 1), ((1536, 1536), 1 / 3), ((300, 2400), 2048 / 2400)])
def test_scales_on_ade20k_are_multiples_of_the_size_of_a_test(size, scaled):
    """As in MMSegmentation of 2020: a test's image, of at most 2048×512, is scaled by 0.5 to 1.75."""
    steps = Config.fromfile(config_path('_base_/datasets/ade20k.py')).tta_pipeline[1].transforms[0]
    for ratio, step in zip((0.5, 0.75, 1.0, 1.25, 1.5, 1.75), steps, strict=True):
        image = TRANSFORMS.build(dict(step, type='mmcv.Resize'))(dict(img=np.zeros((*size, 3), np.uint8)))['img']
        assert image.shape[:2] == pytest.approx([side * scaled * ratio for side in size], abs=1)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize('name', NAMES)
def test_a_checkpoint_of_the_zoo_computes_the_same_in_our_config(name, tmp_path):
    """With random weights under the names of the zoo's own config."""
    torch.manual_seed(0)
    stock = built(Config.fromfile(ZOO / in_zoo(OURS[name]['Weights'])['Config']))
    for module in stock.decode_head.modules():
        if isinstance(module, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(module.weight)
    for scale in (p for n, p in stock.decode_head.named_parameters() if n.endswith(('gamma', '.scale'))):
        scale.fill_(0.5)  # 0 at the start would hide the attention
    torch.save(dict(state_dict=stock.state_dict()), tmp_path / 'zoo.pth')
    ours = built(Config.fromfile(config_path(OURS[name]['Config'].removeprefix('configs/'))))
    ours.load_state_dict(torch.load(tmp_path / 'zoo.pth')['state_dict'])  # strict
    x = torch.randn(1, 3, 49, 65)
    expected = stock.encode_decode(x, [dict(img_shape=(49, 65))])
    assert expected.std() > 1e-3
    torch.testing.assert_close(ours.encode_decode(x, [dict(img_shape=(49, 65))]), expected)
