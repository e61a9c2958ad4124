"""Shipped configs of phrase grounding take a training step and score regions, through the stock Runner, small."""

from mmengine.config import Config

from mmattn.utils import config_path
from mmattn.utils.complexity import count


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
