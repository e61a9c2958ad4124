"""The loss against torch's, updates that do not depend on how their tokens are divided, and the learning rate."""

from itertools import count

import mmengine.runner
import pytest
import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn
from torch.nn import functional as F

from mmattn.engine import enable_amp, prepare_for_cpu
from mmattn.language import (
    AmpTokenOptimWrapper,
    CPUAmpTokenOptimWrapper,
    InverseRootLR,
    SequenceModel,
    TextDataPreprocessor,
    TokenOptimWrapper,
    label_smoothed_loss,
)
from mmattn.language.models import training
from mmattn.language.text.vocabulary import PAD

from ..failing import failing


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize('label_smoothing', [0.0, 0.1, 0.5])
@pytest.mark.parametrize('tokens', [1, 7])
def test_loss_is_that_of_torch(label_smoothing, tokens):
    logits = (3 * randn(tokens, 11)).requires_grad_()
    targets = torch.arange(tokens) + 2
    found = label_smoothed_loss(logits, targets, label_smoothing)
    expected = F.cross_entropy(logits, targets, label_smoothing=label_smoothing)
    torch.testing.assert_close(found['loss'], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found['nll'], F.cross_entropy(logits, targets), rtol=1e-12, atol=1e-12)
    assert found['num_tokens'] == tokens
    gradients = (torch.autograd.grad(loss, logits)[0] for loss in (found['loss'], expected))
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


class Model(SequenceModel):
    """The loss of tokens that are in no order, so that sentences may be joined."""

    def __init__(self, dtype=torch.float64):
        super().__init__(TextDataPreprocessor())
        self.embedding, self.output = nn.Embedding(12, 4, dtype=dtype), nn.Linear(4, 12, dtype=dtype)
        for seed, parameter in enumerate(self.parameters()):
            parameter.data = randn(*parameter.shape, seed=seed).to(dtype)

    def forward(self, inputs, mode):
        tokens = inputs['source']
        tokens = tokens[tokens != PAD]
        return label_smoothed_loss(self.output(self.embedding(tokens)), (tokens + 3) % 12, 0.1)


def sentences(*lengths):
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randint(2, 12, (length,), generator=generator) for length in lengths]


def batch(*sources):
    return dict(inputs=dict(source=list(sources)))


def trained(batches, wrapper=TokenOptimWrapper, dtype=torch.float64, make=Model, **options):
    model = make(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    wrapper = wrapper(optimizer=optimizer, **options)
    wrapper.initialize_count_status(model, 0, len(batches))
    logs = [model.train_step(each, wrapper) for each in batches]
    return model, logs


def assert_same(first, second, tolerance=1e-10):
    for ours, theirs in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize('clip_grad', [None, dict(max_norm=0.05)], ids=['', 'clipped'])
@pytest.mark.parametrize('wrapper', [TokenOptimWrapper, CPUAmpTokenOptimWrapper])
def test_accumulated_batches_are_one_large_batch(wrapper, clip_grad, monkeypatch):
    """Also in a second update, and in a last one of fewer iterations. Clipping sees the corrected gradient."""
    # float64, which autocast would leave for bfloat16 in the linear layer
    monkeypatch.setattr(torch, 'autocast', lambda *args: torch.autograd.profiler.record_function('none'))
    a, b, c, d, e, f, g = sentences(9, 2, 1, 14, 3, 3, 5)
    parts = [batch(a, b), batch(c), batch(d), batch(e), batch(f), batch(g), batch(a)]
    joined, _ = trained([batch(a, b, c, d), batch(e, f, g), batch(a)], wrapper, clip_grad=clip_grad)
    divided, _ = trained(parts, wrapper, accumulative_counts=3, clip_grad=clip_grad)
    assert_same(divided, joined)
    stock, _ = trained(parts, mmengine.optim.OptimWrapper, accumulative_counts=3, clip_grad=clip_grad)
    with pytest.raises(AssertionError):  # the mean of unequal means
        assert_same(stock, joined, 1e-4)


def test_without_accumulation_it_is_the_stock_wrapper():
    """The logged loss is the mean over the tokens of the iteration."""
    batches = [batch(*sentences(3, 8)), batch(*sentences(2))]
    ours, logs = trained(batches)
    stock, stock_logs = trained(batches, mmengine.optim.OptimWrapper)
    assert_same(ours, stock)
    assert [set(log) for log in logs] == [{'loss', 'nll'}] * 2
    assert logs == stock_logs


def test_the_mean_over_processes_is_the_mean_over_their_tokens(monkeypatch):
    """DDP averages the gradients of two processes, of 3 and of 5 tokens, whatever their numbers."""
    monkeypatch.setattr(training, 'get_world_size', lambda: 2)
    monkeypatch.setattr(training, 'all_reduce', lambda count: count.fill_(3 + 5))
    scaled = []
    for mean, tokens in ((0.7, 3), (0.2, 5)):
        loss = torch.tensor(mean, dtype=torch.float64)
        loss.num_tokens = torch.tensor(tokens)
        wrapper = TokenOptimWrapper(optimizer=torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0))
        scaled.append(wrapper.scale_loss(loss))
    assert sum(scaled).item() / 2 == pytest.approx((3 * 0.7 + 5 * 0.2) / 8, abs=1e-15)


def test_mixed_precision_on_a_cpu():
    """Layers compute in bfloat16, the loss in float32; weights are those of the ordinary wrapper, but for rounding."""
    batches = [batch(*sentences(9, 2, 14)), batch(*sentences(3))] * 10
    dtypes = []

    class Watched(Model):
        def __init__(self, dtype):
            super().__init__(dtype)
            self.output.register_forward_hook(lambda module, inputs, output: dtypes.append(output.dtype))

    model, logs = trained(batches, CPUAmpTokenOptimWrapper, torch.float32, Watched, accumulative_counts=2)
    assert set(dtypes) == {torch.bfloat16}
    assert {log['loss'].dtype for log in logs} == {torch.float32}
    assert logs[-2]['loss'] < 0.8 * logs[0]['loss']
    exact, _ = trained(batches, TokenOptimWrapper, torch.float32, accumulative_counts=2)
    assert_same(model, exact, 0.05)


@pytest.mark.parametrize('wrapper', ['mmattn.TokenOptimWrapper', 'mmattn.AmpTokenOptimWrapper'])
def test_mixed_precision_of_a_config_on_a_cpu(monkeypatch, wrapper):
    """What ``tools/train.py --amp`` makes of it; on a GPU, see tests/engine."""
    assert issubclass(AmpTokenOptimWrapper, mmengine.optim.AmpOptimWrapper)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    cfg = Config(dict(optim_wrapper=dict(type=wrapper), model={}))
    enable_amp(cfg.optim_wrapper)
    prepare_for_cpu(cfg)
    assert cfg.optim_wrapper == dict(type='mmattn.CPUAmpTokenOptimWrapper', dtype='bfloat16')


names = count()


def optimizer(*rates):
    groups = [dict(params=[nn.Parameter(torch.zeros(1))], lr=rate) for rate in rates]
    return torch.optim.SGD(groups)


def rates(schedule, iterations):
    """The rates of the next iterations, the first of which the schedule has set."""
    found = []
    for _ in range(iterations):
        found.append([group['lr'] for group in schedule.optimizer.param_groups])
        schedule.step()
    return found


@pytest.mark.parametrize('warmup', [1, 3, 10])
@pytest.mark.parametrize('start', [0, 0.01])
def test_equation(warmup, start):
    """Of each group of parameters with its own rate."""
    found = rates(InverseRootLR(optimizer(1.0, 0.5), warmup, start, by_epoch=False), 25)
    for n, each in enumerate(found, 1):
        for lr, rate in zip((1.0, 0.5), each, strict=True):
            expected = start + (lr - start) * n / warmup if n <= warmup else lr * (warmup / n) ** 0.5
            assert rate == pytest.approx(expected, rel=1e-12)


class OneWeight(BaseModel):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.rates = []

    def forward(self, inputs, mode):
        return dict(loss=self.weight.sum())

    def train_step(self, data, optim_wrapper):
        self.rates += optim_wrapper.get_lr()['lr']
        return super().train_step(data, optim_wrapper)


def run(folder, schedule, iterations=20, **options):
    model = OneWeight()
    runner = Runner(
        model,
        str(folder),
        train_dataloader=dict(dataset=[dict(inputs=1)], sampler=dict(type='InfiniteSampler'), batch_size=1),
        train_cfg=dict(by_epoch=False, max_iters=iterations),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.5)),
        param_scheduler=schedule,
        default_hooks=dict(checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=5)),
        experiment_name=f'schedule {next(names)}',
        log_level='ERROR',
        **options,
    )
    runner.train()
    return model.rates


def test_runner(tmp_path):
    """From a config, in the whole run; a second, longer run resumes the first one."""
    schedule = dict(type='mmattn.InverseRootLR', warmup=4, warmup_start=0.1, by_epoch=False)
    expected = [0.1 + 0.4 * n / 4 if n <= 4 else 0.5 * (4 / n) ** 0.5 for n in range(1, 21)]
    assert run(tmp_path, schedule, 10) == pytest.approx(expected[:10], rel=1e-12)
    assert run(tmp_path, schedule, 20, resume=True) == pytest.approx(expected[10:], rel=1e-12)


test_failures = failing(
    (lambda: OneWeight().train_step(dict(inputs=1), TokenOptimWrapper(optimizer=optimizer(0.1))), 'SequenceModel'),
    (lambda: enable_amp(dict(type='mmattn.OtherWrapper')), 'OtherWrapper'),
    # the Runner would end the schedule at the number of epochs, 1, so the rate would stay at its first value
    (lambda tmp_path: run(tmp_path, dict(type='mmattn.InverseRootLR', warmup=4)), 'by_epoch'),
    error=(SystemExit, TypeError, ValueError),
)
