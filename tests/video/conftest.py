"""A small SST for whole runs: a shipped config, shrunk, with random weights."""

import weakref
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from mmengine.config import Config
from torch import nn

from mmattn.registry import MODELS
from mmattn.video import clip_readers

from . import clips

CONFIG = Path(__file__).parents[2] / 'configs/sst/sst-grid_r18-d8-half_1xb4-400_davis-240p.py'
SMALL = {
    'model.backbone.base_channels': 4,
    'model.in_channels': 8,
    'model.embed_dims': 16,
    'model.attention.num_heads': 2,
    'model.encoder_layers': 1,
    'model.decoder_layers': 1,
}


class SmallSST(NamedTuple):
    config: Path
    checkpoint: Path


def write_small_sst(folder):
    """Its config and checkpoint; it sees background and each object somewhere in every frame."""
    cfg = Config.fromfile(CONFIG)
    cfg.merge_from_dict(SMALL)
    cfg.dump(folder / 'config.py')
    model = MODELS.build(cfg.model)
    torch.manual_seed(2)  # after the layers' own draws: what is random here does not depend on them
    for name, parameter in model.named_parameters():
        if not name.startswith('backbone'):
            nn.init.normal_(parameter, std=0.3)
        elif parameter.ndim == 4:
            nn.init.kaiming_normal_(parameter)
    torch.save(dict(meta={}, state_dict=model.state_dict()), folder / 'checkpoint.pth')
    return SmallSST(folder / 'config.py', folder / 'checkpoint.pth')


@pytest.fixture(scope='session')
def small_sst(tmp_path_factory):
    return write_small_sst(tmp_path_factory.mktemp('small_sst'))


@pytest.fixture
def held_frames(monkeypatch):
    """``held_frames()``: how many of the frames that were read from a folder are still there."""
    read, references = clip_readers.read_frame, []

    def counted(path):
        image = read(path)
        references.append(weakref.ref(image))
        return image

    monkeypatch.setattr(clip_readers, 'read_frame', counted)
    return lambda: sum(reference() is not None for reference in references)


@pytest.fixture(scope='session')
def root(tmp_path_factory):
    """A clip in the layout of the data sets: objects 1 and 5 from the first frame, 9 from frame ``LATE`` on."""
    path = tmp_path_factory.mktemp('clip')
    masks = [clips.squares(p, *((1, 5) if p < clips.LATE else (1, 5, 9))) for p in range(clips.LENGTH)]
    clips.clip(path, '', masks, masked=(0, clips.LATE))
    return path
