"""Shipped configs of phrase grounding take a training step and score regions, through the stock Runner, small."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import PARAM_SCHEDULERS
from mmengine.runner import Runner

from mmattn.language.grounding.entities import rank_words, read_entities
from mmattn.utils import config_path
from mmattn.utils.complexity import count

from ...test_configs import GROUNDING
from ...tiny_data import FEATURES


@pytest.fixture
def config(request, tiny_data, tmp_path, monkeypatch):
    for name, value in tiny_data.items():
        monkeypatch.setenv(name, value)
    cfg = Config.fromfile(config_path(request.param))
    data = cfg.train_dataloader.dataset
    symbols = rank_words(read_entities(f'{data.data_root}/{data.ann_file}'))
    cfg.model.update(vocab_size=4 + len(symbols), num_features=FEATURES, embed_dim=8)
    cfg.model.scorer.embed_dim = 24
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.update(num_workers=0, persistent_workers=False, batch_size=3)
    cfg.train_cfg.update(max_epochs=1)
    cfg.default_hooks.checkpoint.update(interval=1000)
    cfg.work_dir, cfg.log_level, cfg.experiment_name = str(tmp_path), 'ERROR', request.param
    cfg.randomness = dict(seed=0)
    assert bool(cfg.get('custom_hooks')) == ('flickr30k' in request.param)  # published word vectors
    cfg.custom_hooks = []
    return cfg


@pytest.mark.parametrize('config', GROUNDING, indirect=True)
def test_config_trains_and_scores(config, tmp_path):
    runner = Runner.from_cfg(config)
    before = {name: p.detach().clone() for name, p in runner.model.named_parameters()}
    runner.train()
    assert 0 <= runner.message_hub.get_scalar('val/R@1').current() <= 100
    assert [path.name for path in tmp_path.glob('best*')] == ['best_R@1_epoch_1.pth']
    assert all(
        not torch.equal(p, before[name]) or 'glimpses.bias' in name for name, p in runner.model.named_parameters()
    )
    for sample in runner.model.test_step(next(iter(runner.test_dataloader))):
        assert sample.pred_scores.shape == (2, len(sample.regions))
        assert torch.isfinite(sample.pred_scores).all()


@pytest.mark.parametrize('name', GROUNDING)
def test_rates_are_those_of_the_paper(name):
    """1e-3·min(i, 4) in epoch i, a quarter in 11 and 12, a sixteenth in 13; half of it with batch 256 and less."""
    cfg = Config.fromfile(config_path(name))
    optimizer = torch.optim.Adamax([torch.nn.Parameter(torch.zeros(1))], lr=cfg.optim_wrapper.optimizer.lr)
    schedulers = [PARAM_SCHEDULERS.build(dict(each, optimizer=optimizer)) for each in cfg.param_scheduler]
    rates = []
    for _ in range(cfg.train_cfg.max_epochs):
        rates.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    peak = 4e-3 if '1xb512' in name else 2e-3
    expected = [peak / 4, peak / 2, peak * 3 / 4, *[peak] * 7, peak / 4, peak / 4, peak / 16]
    assert rates == pytest.approx(expected, rel=1e-12)
    assert f'_1xb{cfg.train_dataloader.batch_size}-{cfg.train_cfg.max_epochs}e_' in name


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
