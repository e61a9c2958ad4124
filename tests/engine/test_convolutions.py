"""Folded batch norms and channels last: outputs are as before, or the call is refused."""

import copy

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from torch import nn

from mmattn.engine import fuse_at_first_call, use_channels_last
from mmattn.registry import MODELS
from mmattn.utils.paths import config_path

from ..requirements import requires


def with_random_norms(model):
    """The model in evaluation mode, with statistics that matter."""
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
    return model.eval()


def norms(model):
    return sum(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


@pytest.mark.parametrize(
    'name',
    [
        'unet_ba/unet-ba_r18-d8-half_1xb8-480_fasseg-192x160.py',
        'bi_cc/bi-cc_r18-d8-half_1xb8-160_camvid-180x180.py',
        pytest.param('label_propagation/label-propagation_mobilenet-v2-d8_davis-240p.py', marks=pytest.mark.slow),
        pytest.param('unet_ba/mmseg-unet_s5-d16-w24_1xb8-480_fasseg-192x160.py', marks=pytest.mark.slow),
    ],
)
@torch.no_grad()
def test_shipped_backbones_return_the_same_without_norms(name):
    cfg = Config.fromfile(config_path(name))
    cfg.model.backbone.init_cfg = None
    init_default_scope(cfg.default_scope)
    model = with_random_norms(MODELS.build(cfg.model))
    state, images = copy.deepcopy(model.state_dict()), torch.rand(2, 3, 64, 48)
    expected = model.backbone(images)
    fuse_at_first_call(model)
    model.load_state_dict(state)  # weights may come later
    for _ in range(2):
        for x, y in zip(model.backbone(images), expected, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-4 * y.abs().max().item())
    assert norms(model.backbone) == 0


class NormFirst(nn.Module):
    """It calls its modules in another order than it lists them."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.conv(self.norm(x))


@torch.no_grad()
def test_modules_in_another_order_are_refused_and_remain():
    model = with_random_norms(nn.ModuleDict({'backbone': NormFirst()}))
    x = torch.randn(2, 4, 8, 8)
    expected = model['backbone'](x)
    fuse_at_first_call(model)
    for _ in range(2):
        with pytest.raises(ValueError, match='backbone'):
            model['backbone'](x)
    torch.testing.assert_close(model['backbone'].forward(x), expected)


def test_channels_are_last_in_backbones():
    model = nn.ModuleDict({'backbone': nn.Conv2d(3, 4, 1), 'neck': nn.Conv2d(3, 4, 1)})
    use_channels_last(model)
    x = torch.ones(1, 3, 4, 5)
    assert model['backbone'](x).is_contiguous(memory_format=torch.channels_last)
    assert model['neck'](x).is_contiguous()


@requires('mmcv operators')
def test_operators_of_mmcv_cannot_read_channels_last():
    """RoIAlign reads the memory as if it had the other layout, without an error."""
    from mmcv.ops import RoIAlign

    with pytest.raises(ValueError, match='RoIAlign'):
        use_channels_last(nn.Sequential(nn.Conv2d(3, 4, 3), RoIAlign(3)))
