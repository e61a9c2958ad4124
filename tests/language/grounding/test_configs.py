"""Shipped configs of phrase grounding take a training step and score regions, through the stock Runner, small."""

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner

from mmattn.language.grounding.entities import rank_words, read_entities
from mmattn.utils import config_path
from mmattn.utils.complexity import count

from ...test_configs import GROUNDING
from ...tiny_data import FEATURES


@pytest.fixture
def config(request, small):
    cfg = small(request.param)
    data = cfg.train_dataloader.dataset
    symbols = rank_words(read_entities(f'{data.data_root}/{data.ann_file}'))
    cfg.model.update(vocab_size=4 + len(symbols), num_features=FEATURES, embed_dim=8)
    cfg.model.scorer.embed_dim = 24
    assert bool(cfg.get('custom_hooks')) == ('flickr30k' in request.param)  # published word vectors
    cfg.custom_hooks = []
    return cfg


@pytest.mark.parametrize('config', GROUNDING, indirect=True)
def test_config_trains_and_scores(config):
    runner = Runner.from_cfg(config)
    before = {name: p.detach().clone() for name, p in runner.model.named_parameters()}
    runner.train()
    assert 0 <= runner.message_hub.get_scalar('val/R@1').current() <= 100
    assert all(
        not torch.equal(p, before[name]) or 'glimpses.bias' in name for name, p in runner.model.named_parameters()
    )
    for sample in runner.model.test_step(next(iter(runner.test_dataloader))):
        assert sample.pred_scores.shape == (2, len(sample.regions))
        assert torch.isfinite(sample.pred_scores).all()


def test_multiply_accumulates():
    """20 steps of the GRU, both projections, and the logits of 4 phrases and 32 regions."""
    cfg = Config.fromfile(config_path('ban_grounding/ban_1xb512-13e_flickr30k-entities.py'))
    gru = 20 * 3 * (300 + 1280) * 1280
    projections = 4 * 1280 * 3840 + 32 * 2048 * 3840
    parameters, macs = count(cfg, (3, 32, 20))
    assert abs(macs - (gru + projections + 4 * 32 * 3840)) / macs < 0.01
    embedding = 300 * cfg.model.vocab_size
    linear = (1280 + 2048 + 2) * 3840 + 2 + 3840 + 2
    assert parameters == embedding + 3 * 1280 * (300 + 1280 + 2) + linear
