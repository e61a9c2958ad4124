"""Losses that are NaN, checkpoints that do not fit and options that are wrong, in hooks and as a user meets them."""

import ast
import re
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmengine.model import BaseModel, BaseTTAModel
from mmengine.structures import BaseDataElement
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.data import DataLoader

from mmattn.engine import CheckpointKeysHook, InvalidLossHook
from mmattn.layers import BilateralCrissCrossAttention

from ...forked_tools import tool
from ..test_tools import CONFIG, SMALL


class Net(BaseModel):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, inputs, data_samples=None, mode='tensor'):
        raise NotImplementedError


class Wrapped(BaseTTAModel):
    def merge_preds(self, data_samples_list):
        raise NotImplementedError


def runner_of(model, iteration=0):
    return SimpleNamespace(model=model, iter=iteration, _load_from='some.pth')


def load(hook, model, state_dict):
    hook.after_load_checkpoint(runner_of(model), dict(state_dict=state_dict))


@pytest.fixture
def state_dict():
    return Net().state_dict()


@pytest.mark.parametrize('wrap', [lambda net: net, Wrapped, lambda net: Wrapped(Wrapped(net))])
@pytest.mark.parametrize('prefix', ['', 'module.'])
def test_keys_that_fit_are_loaded(state_dict, wrap, prefix):
    """A bare state dict is a checkpoint, too."""
    net = Net()
    load(CheckpointKeysHook(), wrap(net), type(state_dict)((prefix + key, x) for key, x in state_dict.items()))
    assert all(torch.equal(tensor, state_dict[name]) for name, tensor in net.state_dict().items())
    CheckpointKeysHook().after_load_checkpoint(runner_of(wrap(Net())), state_dict)


def faulty(state_dict):
    state_dict['head.weight'] = torch.zeros(3, 4, 1, 1)
    state_dict['neck.weight'] = state_dict.pop('conv.weight')
    state_dict['neck.bias'] = state_dict.pop('conv.bias')
    return state_dict


def test_allowed_keys_may_differ_and_the_rest_is_still_checked(state_dict):
    load(CheckpointKeysHook(enabled=False), Net(), faulty(state_dict))
    said, _ = refused(CheckpointKeysHook(allow=r'^(conv|neck)\.'), Net(), state_dict)
    assert not re.search('conv|neck', said)


def refused(hook, model, state_dict):
    """The message about a checkpoint, and the patterns in it that allow what differs."""
    with pytest.raises(RuntimeError, match=r'some\.pth') as caught:
        load(hook, model, state_dict)
    said = str(caught.value)
    return said, ast.literal_eval(said.rpartition('allow=')[2])


@pytest.mark.parametrize('wrap', [lambda net: net, Wrapped])
def test_the_error_names_all_keys_that_do_not_fit_and_allows_them(monkeypatch, state_dict, wrap):
    """Its patterns name whole modules that are new or unknown, and weights of another shape; so does the log then."""
    logged = []
    monkeypatch.setattr('mmattn.engine.hooks.checkpoint_keys.print_log', lambda text, *_: logged.append(text))
    checkpoint, net = faulty(state_dict), Net()
    said, allow = refused(CheckpointKeysHook(), wrap(net), checkpoint)
    assert re.search(r'Missing.*"conv\.weight", "conv\.bias"(?s:.)*Unexpected.*"neck\.weight", "neck\.bias"', said)
    assert re.search(r'head\.weight.*\[3, 4, 1, 1\].*\[2, 4, 1, 1\]', said)
    assert not re.search(r'norm|head\.bias', said)
    assert allow == [r'^conv\.', r'^head\.weight', r'^neck\.']
    before = net.conv.weight.clone()
    assert logged == []
    load(CheckpointKeysHook(allow=allow), net, checkpoint)
    assert [re.findall(r'some\.pth|conv\.|head\.weight|neck\.', text) for text in logged] == [
        ['some.pth', 'conv.', 'head.weight'],
        ['some.pth', 'head.weight', 'neck.'],
    ]
    torch.testing.assert_close(net.conv.weight, before)
    torch.testing.assert_close(net.head.bias, checkpoint['head.bias'])


def test_the_patterns_of_the_error_keep_what_modules_convert():
    """γ of mmcv's criss-cross attention has another shape, and is loaded when positions are added to it."""
    stock = BilateralCrissCrossAttention(8, position='none').state_dict()
    stock['gamma.scale'] = torch.tensor(0.7)
    layer = BilateralCrissCrossAttention(8, window_size=3)
    _, allow = refused(CheckpointKeysHook(), layer, stock)
    assert allow == [r'^window_position\.']
    load(CheckpointKeysHook(allow=allow), layer, stock)
    layer.load_state_dict(stock, strict=False)  # as the Runner does next
    assert layer.gamma.scale.item() == pytest.approx(0.7)


def test_what_modules_convert_fits(state_dict):
    """A scale saved as () where (1,) is wanted, and the counters that old batch norms lack."""
    layer = BilateralCrissCrossAttention(8, window_size=3)
    old = layer.state_dict()
    old['gamma.scale'] = old['gamma.scale'].reshape(())
    load(CheckpointKeysHook(), layer, old)
    del state_dict['norm.num_batches_tracked']
    load(CheckpointKeysHook(), Net(), state_dict)


def test_of_shards_no_key_is_checked(state_dict):
    """FSDP holds parts of the weights, under other names."""
    model, warnings = FullyShardedDataParallel.__new__(FullyShardedDataParallel), []
    nn.Module.__init__(model)
    runner = SimpleNamespace(**vars(runner_of(model)), logger=SimpleNamespace(warning=warnings.append))
    CheckpointKeysHook().after_load_checkpoint(runner, dict(state_dict=faulty(state_dict)))
    assert len(warnings) == 1
    assert 'FSDP' in warnings[0]
    CheckpointKeysHook(enabled=False).after_load_checkpoint(runner, dict(state_dict=state_dict))
    assert len(warnings) == 1


class Versioned(nn.Module):
    _version = 2

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(()))

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
        if local_metadata.get('version', 1) < 2:
            state_dict[f'{prefix}scale'] = state_dict.pop(f'{prefix}gain')
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


def test_modules_see_the_version_that_they_convert_from():
    load(CheckpointKeysHook(), Versioned(), Versioned().state_dict())
    load(CheckpointKeysHook(), Versioned(), dict(gain=torch.zeros(())))


def batch(*paths):
    samples = [BaseDataElement(metainfo=dict(img_path=path)) for path in paths]
    return dict(inputs=[torch.zeros(3, 2, 2)] * len(paths), data_samples=samples)


@pytest.mark.parametrize('value', [float('nan'), float('inf')])
@pytest.mark.parametrize('nested', [lambda batch: batch, lambda batch: dict(sup=batch, unsup=[batch])])
def test_a_loss_that_is_not_finite_names_iteration_and_images(value, nested):
    outputs = dict(loss=torch.tensor(value), loss_ce=torch.tensor(value), loss_aux=torch.tensor(1.0), acc=torch.nan)
    with pytest.raises(FloatingPointError) as caught:
        InvalidLossHook().after_train_iter(runner_of(None, 6), 6, nested(batch('a.png', 'b.png')), outputs)
    assert re.match(f'Iteration 7: loss = {value}, loss_ce = {value},.*\n  a.png\n  b.png', str(caught.value))
    finite = dict(loss=torch.tensor(1.0), acc=torch.nan)  # whatever the metrics
    InvalidLossHook().after_train_iter(runner_of(None), 0, nested(batch('a')), finite)


def test_interval_of_the_loss_check():
    hook, invalid = InvalidLossHook(interval=3), dict(loss=torch.nan)
    for iteration in (0, 1, 3):
        hook.after_train_iter(runner_of(None, iteration), iteration, batch('a'), invalid)
    with pytest.raises(FloatingPointError, match='Iteration 6'):
        hook.after_train_iter(runner_of(None, 5), 5, batch('a'), invalid)


@pytest.mark.parametrize(
    ('sampler', 'batch_size', 'drop_last', 'trains'),
    [
        (DefaultSampler, 7, True, False),
        (DefaultSampler, 7, False, True),
        (DefaultSampler, 6, True, True),
        (InfiniteSampler, 7, True, True),
    ],
)
def test_training_without_a_batch_is_an_error(sampler, batch_size, drop_last, trains):
    images = list(range(6))
    loader = DataLoader(images, batch_size, sampler=sampler(images), drop_last=drop_last)
    with nullcontext() if trains else pytest.raises(ValueError, match='batch_size'):
        InvalidLossHook().before_train(SimpleNamespace(train_dataloader=loader))


def error_and_log(attempt, *command, options=()):
    """The message of a tool that must fail, and all that it said."""
    done = attempt(*tool(*command), '--cfg-options', *SMALL, *options, merged=True)
    assert done.returncode != 0, done.stdout
    return done.stdout.rpartition('.py: error: ')[2], done.stdout


@pytest.mark.e2e
@pytest.mark.parametrize('flags', [[], ['--tta']])
def test_a_checkpoint_that_does_not_fit_stops_test(attempt, tmp_path, flags):
    path = tmp_path / 'other.pth'
    torch.save(dict(state_dict={'decode_head.other.weight': torch.zeros(1)}, meta={}), path)
    error, log = error_and_log(attempt, 'test.py', CONFIG, path, '--work-dir', tmp_path, *flags)
    assert all(name in error for name in ('other.pth', 'decode_head.conv_seg.weight', 'decode_head.other.weight'))
    assert 'Iter(test)' not in log


@pytest.mark.e2e
def test_a_nan_loss_stops_train(attempt, tmp_path):
    options = 'train_cfg.max_iters=9', 'default_hooks.checkpoint.interval=1', 'optim_wrapper.optimizer.lr=1e30'
    error, log = error_and_log(attempt, 'train.py', CONFIG, '--work-dir', tmp_path, options=options)
    found = re.search(r'^Iteration (\d): loss = nan', error)
    assert found, log
    assert len(re.findall(r'img_dir/train/tile_\d\.png$', error, re.MULTILINE)) == 2
    assert not (tmp_path / f'iter_{found[1]}.pth').exists()


@pytest.mark.parametrize('interval', [0, -1])
def test_losses_are_checked_at_intervals_of_1_or_more(interval):
    with pytest.raises(ValueError, match=f'interval .* 1; got {interval}$'):
        InvalidLossHook(interval)
