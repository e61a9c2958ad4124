"""What tests of several files look at."""

from pathlib import Path

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope

from .test_attention_maps import load


@pytest.fixture
def data_root(tiny_data, monkeypatch):
    for name, value in tiny_data.items():
        monkeypatch.setenv(name, value)
    return Path(tiny_data['BUILDINGS_ROOT'])


@pytest.fixture
def command(data_root, tmp_path):
    """``command(name)``: a tool's arguments for a model with random weights and a validation image."""

    def command(name):
        cfg = load(name)
        init_default_scope('mmseg')
        torch.save({'state_dict': MODELS.build(cfg.model).state_dict()}, tmp_path / 'model.pth')
        cfg.dump(tmp_path / 'small.py')
        image = data_root / 'img_dir/val/tile_0.png'
        return [tmp_path / 'small.py', tmp_path / 'model.pth', image, '--device', 'cpu']

    return command
