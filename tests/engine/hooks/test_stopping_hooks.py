"""Losses that are NaN, checkpoints that do not fit and options that are wrong, in hooks and as a user meets them."""

import ast
import os
import re
from argparse import ArgumentParser
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmengine.model import BaseModel, BaseTTAModel
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import BaseDataElement
from torch import nn
from torch.utils.data import DataLoader

from mmattn.engine import CheckpointKeysHook, InvalidLossHook, add_common_arguments, config_from, load_config
from mmattn.layers import BilateralCrissCrossAttention

from ...forked_tools import run_command, tool
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


@pytest.mark.parametrize('wrap', [lambda net: net, Wrapped])
def test_all_keys_that_do_not_fit_are_named(state_dict, wrap):
    with pytest.raises(RuntimeError, match=r'some\.pth') as caught:
        load(CheckpointKeysHook(), wrap(Net()), faulty(state_dict))
    said = str(caught.value)
    assert re.search(r'Missing.*"conv\.weight", "conv\.bias"(?s:.)*Unexpected.*"neck\.weight", "neck\.bias"', said)
    assert re.search(r'head\.weight.*\[3, 4, 1, 1\].*\[2, 4, 1, 1\]', said)
    assert 'norm' not in said
    assert 'head.bias' not in said


def test_allowed_keys_may_differ_and_the_rest_is_still_checked(state_dict):
    load(CheckpointKeysHook(enabled=False), Net(), faulty(state_dict))
    load(CheckpointKeysHook(allow=[r'^(conv|neck)\.', r'head\.weight']), Net(), state_dict)
    with pytest.raises(RuntimeError) as caught:
        load(CheckpointKeysHook(allow=r'^(conv|neck)\.'), Net(), state_dict)
    assert not re.search('conv|neck', str(caught.value))


def test_the_patterns_of_the_error_allow_what_differs(state_dict):
    """They name whole modules that are new or unknown, and weights of another shape."""
    checkpoint = faulty(state_dict)
    with pytest.raises(RuntimeError) as caught:
        load(CheckpointKeysHook(), Net(), checkpoint)
    allow = ast.literal_eval(str(caught.value).rpartition('allow=')[2])
    assert allow == [r'^conv\.', r'^head\.weight', r'^neck\.']
    net = Net()
    before = net.conv.weight.clone()
    load(CheckpointKeysHook(allow=allow), net, checkpoint)
    torch.testing.assert_close(net.conv.weight, before)
    torch.testing.assert_close(net.head.bias, checkpoint['head.bias'])


def test_the_patterns_of_the_error_keep_what_modules_convert():
    """γ of mmcv's criss-cross attention has another shape, and is loaded when positions are added to it."""
    stock = BilateralCrissCrossAttention(8, position='none').state_dict()
    stock['gamma.scale'] = torch.tensor(0.7)
    layer = BilateralCrissCrossAttention(8, window_size=3)
    with pytest.raises(RuntimeError) as caught:
        load(CheckpointKeysHook(), layer, stock)
    allow = ast.literal_eval(str(caught.value).rpartition('allow=')[2])
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
    with (
        nullcontext() if trains else pytest.raises(ValueError, match='batch_size is 7, and this process has 6 of the 6')
    ):
        InvalidLossHook().before_train(SimpleNamespace(train_dataloader=loader))


SLIDING = dict(mode='slide', crop_size=(16, 16))
CROP = 'train_dataloader.dataset.pipeline.3'


@pytest.mark.parametrize(
    ('change', 'names'),
    [
        ({'train_cfg.max_iters': 0}, 'train_cfg.max_iters .* 0'),
        ({'train_cfg.val_interval': -1}, 'train_cfg.val_interval .* -1'),
        ({'train_cfg': dict(by_epoch=True, max_epochs=1)}, 'InfiniteSampler'),
        ({'model.test_cfg': dict(SLIDING, stride=(24, 8))}, r'stride \(24, 8\), crop_size \(16'),
        ({'model.test_cfg': dict(SLIDING, stride=(0, 8))}, r'stride \(0, 8\)'),
        ({'model.test_cfg': SLIDING}, 'stride None'),
        ({'model.test_cfg': dict(mode='slide', stride=8, crop_size=16)}, 'stride 8, crop_size 16'),
        ({'model.test_cfg': dict(SLIDING, stride=(16, 8))}, None),
        ({f'{CROP}.crop_size': (24.0, 24.0)}, r'pipeline\.3\.crop_size'),
        ({f'{CROP}.crop_size': 24.0}, r'pipeline\.3\.crop_size'),
        ({f'{CROP}.crop_size': 24}, None),
        ({CROP: dict(type='RandomCrop', crop_type='relative', crop_size=(0.5, 0.5))}, None),
        ({'randomness': dict(seed='abc')}, r"randomness\.seed .*'abc'"),
    ],
)
def test_lengths_without_which_a_run_is_none(change, names):
    with nullcontext() if names is None else pytest.raises(ValueError, match=names):
        load_config(CONFIG, change)


@pytest.fixture(scope='module')
def renamed(tiny_data, tmp_path_factory):
    """A checkpoint of the small model with one weight under another name."""
    parser = ArgumentParser()
    parser.add_argument('config')
    add_common_arguments(parser)
    cfg = config_from(parser.parse_args([str(CONFIG), '--cfg-options', *SMALL]))
    init_default_scope('mmseg')
    state_dict = MODELS.build(cfg.model).state_dict()
    state_dict['decode_head.other.weight'] = state_dict.pop('decode_head.conv_seg.weight')
    path = tmp_path_factory.mktemp('checkpoint') / 'renamed.pth'
    torch.save(dict(state_dict=state_dict, meta={}), path)
    return path


@pytest.fixture(scope='module')
def fails(tiny_data):
    """Run a tool that must fail; return its message and all that it said."""

    def fails(*command, options=()):
        words = [*tool(*command), '--cfg-options', *SMALL, *options]
        done = run_command(words, {**os.environ, **tiny_data, 'OMP_NUM_THREADS': '1'}, merged=True)
        assert done.returncode != 0, done.stdout
        return done.stdout.rpartition('.py: error: ')[2], done.stdout

    return fails


@pytest.mark.e2e
@pytest.mark.parametrize('flags', [[], ['--tta']])
def test_a_checkpoint_that_does_not_fit_stops_test(fails, renamed, tmp_path, flags):
    error, log = fails('test.py', CONFIG, renamed, '--work-dir', tmp_path, *flags)
    assert 'renamed.pth' in error
    assert re.findall(r'decode_head\.[\w.]+', error) == ['decode_head.conv_seg.weight', 'decode_head.other.weight']
    assert 'Iter(test)' not in log


@pytest.mark.e2e
@pytest.mark.parametrize('option', ['window_size=4', 'no_such_option=1'])
def test_a_wrong_option_stops_train_before_data_are_read(fails, tmp_path, option):
    options = f'model.decode_head.{option}', 'train_dataloader.dataset.data_root=/no/such/folder'
    error, log = fails('train.py', CONFIG, '--work-dir', tmp_path, options=options)
    assert option.partition('=')[0] in error.splitlines()[0]
    assert 'FileNotFoundError' not in log


@pytest.mark.e2e
def test_a_nan_loss_stops_train(fails, tmp_path):
    options = 'train_cfg.max_iters=9', 'default_hooks.checkpoint.interval=1', 'optim_wrapper.optimizer.lr=1e30'
    error, log = fails('train.py', CONFIG, '--work-dir', tmp_path, options=options)
    found = re.search(r'^Iteration (\d): loss = nan', error)
    assert found, log
    assert len(re.findall(r'img_dir/train/tile_\d\.png$', error, re.MULTILINE)) == 2
    assert not (tmp_path / f'iter_{found[1]}.pth').exists()
