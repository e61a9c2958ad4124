"""What the tests of reproduction share: data sets of small images, and weights of another backbone."""

from pathlib import Path

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope

from reproduction.backbone import read_backbone
from reproduction.protocol import data_sets

NAME = 'mobilenet-v2-d8'


@pytest.fixture
def data(tiny_data, monkeypatch):
    """Folders of the data sets by name; the environment names them, too."""
    for name, value in tiny_data.items():
        monkeypatch.setenv(name, value)
    return {name: Path(tiny_data[variable]) for name, variable in data_sets().items()}


@pytest.fixture(scope='session')
def weights(tmp_path_factory):
    """A file with weights of the backbone, whose norms have statistics."""
    init_default_scope('mmseg')
    torch.manual_seed(0)
    backbone = MODELS.build(read_backbone(NAME).model.backbone)
    backbone.init_weights()
    for module in backbone.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    backbone(torch.randn(4, 3, 36, 48))  # otherwise all units are off, and the maps the same for all images
    path = tmp_path_factory.mktemp('weights') / 'weights.pth'
    torch.save(dict(state_dict=backbone.state_dict()), path)
    return path
