"""Folded norms and channels last against the networks as they are, in float64, where rounding hides nothing."""

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from mmcv.cnn import ConvModule
from mmcv.cnn.bricks import ConvWS2d
from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.hooks import EMAHook
from mmengine.model import BaseModel
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

from mmattn.engine import CPUConvolutionsHook, fold_norms, prepare_for_inference
from mmattn.engine.hooks import cpu_convolutions
from mmattn.registry import MODELS
from mmattn.utils.paths import config_path

from ...requirements import required_by, requires


def with_random_norms(model):
    """The model in evaluation mode and float64, with statistics that matter."""
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for x in filter(lambda x: x is not None, (module.weight, module.running_var)):
                nn.init.uniform_(x, 0.5, 2)
            for x in filter(lambda x: x is not None, (module.bias, module.running_mean)):
                nn.init.normal_(x)
    return model.double().eval()


def norms(model):
    return sum(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def maps(outputs):
    return [outputs] if isinstance(outputs, torch.Tensor) else [x for output in outputs for x in maps(output)]


NARROW = {
    'model.backbone.base_channels': 8,
    'model.decode_head': dict(channels=16, in_channels=64),
    'model.auxiliary_head': dict(channels=8, in_channels=32),
}


FOLDED = {
    'bi_cc/bi-cc_r18-d8-half_1xb8-50_buildings-256x256.py': True,
    'unet_ba/unet-ba_r18-d8-half_1xb8-480_fasseg-192x160.py': False,
    'attended_residual/faster-rcnn_r50-w16-attn0010-dcn_fpn_1xb8-150_bccd-320x240.py': False,  # after deformable ones
}


@pytest.mark.parametrize('name', [pytest.param(name, marks=required_by(name)) for name in FOLDED])
def test_networks(name):
    """All norms are folded in one of them."""
    cfg = Config.fromfile(config_path(name))
    if 'bi_cc' in name:
        cfg.merge_from_dict(NARROW)
    cfg.model.backbone.init_cfg = None
    init_default_scope(cfg.default_scope)
    model = with_random_norms(MODELS.build(cfg.model))
    images = torch.rand(1, 3, 160, 128, dtype=torch.float64)
    forward = model.extract_feat if cfg.default_scope == 'mmdet' else model.__call__
    seen, before = [], norms(model)
    with torch.no_grad():
        expected = maps(forward(images))
        prepare_for_inference(model, channels_last=cfg.default_scope != 'mmdet')
        model.backbone.register_forward_pre_hook(lambda module, args: seen.append(args[0].stride(1)))
        forward(images)  # the hook below is after those that fold
        actual = maps(forward(images))
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    assert (set(seen) == {1}) == (cfg.default_scope != 'mmdet')  # channels are last
    left = norms(model) - norms(getattr(model, 'auxiliary_head', nn.Identity()))  # which is not called
    assert (left == 0) == FOLDED[name]
    assert norms(model) < before / 2


@requires('mmcv operators')
def test_operators_of_mmcv_cannot_read_channels_last():
    """RoIAlign reads the memory as if it had the other layout, without an error."""
    from mmcv.ops import RoIAlign

    with pytest.raises(ValueError, match='RoIAlign'):
        prepare_for_inference(nn.Sequential(nn.Conv2d(3, 4, 3), RoIAlign(3)), channels_last=True)


class NormFirst(nn.Module):
    """It runs its modules in another order than it lists them."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.conv(self.norm(x))


def shared():
    conv = nn.Conv2d(4, 4, 3, padding=1)
    return nn.Sequential(conv, nn.BatchNorm2d(4), nn.Sequential(conv, nn.BatchNorm2d(4)))


def conv_module(**options):
    return ConvModule(4, 4, 3, padding=1, **{'norm_cfg': dict(type='BN'), **options})


class Skipping(nn.Sequential):
    def forward(self, x):
        c = self[0](x)
        return self[1](c) + c


class Block(nn.Module):
    """A block as ResNet's, by the names of its modules."""

    norm1_name = 'norm'

    def __init__(self, forward):
        super().__init__()
        self.conv, self.norm, self.run = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), forward

    def forward(self, x):
        return self.run(self, x)


class DoublingNorm(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(2 * x)


def pair():
    return nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))


def changed(change):
    module = pair()
    change(module)
    return module


def patched(module):
    module.forward = lambda x: module[1](module[0](x).relu())


class Inner(nn.Module):
    """It calls a module of a Sequential by itself, or reads it in turn."""

    def __init__(self, forward):
        super().__init__()
        self.inner, self.run = pair(), forward

    def forward(self, x):
        return self.run(self, x)


@pytest.mark.parametrize(
    ('build', 'left'),
    [
        (conv_module, 0),
        (lambda: conv_module(bias=True, norm_cfg=dict(type='BN', affine=False)), 0),
        (lambda: nn.Sequential(nn.Conv2d(4, 4, 1, groups=2), nn.SyncBatchNorm(4)), 0),
        (lambda: nn.Sequential(pair(), nn.ReLU(inplace=True), pair()), 0),
        (lambda: Block(lambda self, x: self.norm(self.conv(x)) + x), 0),
        (lambda: changed(lambda m: m.register_forward_pre_hook(lambda m, args: (args[0] * 2,))), 0),
        (lambda: changed(lambda m: m.register_forward_hook(lambda m, args, out: out * 2)), 0),
        (lambda: Inner(lambda self, x: self.inner(x)), 0),
        (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.BatchNorm2d(4)), 1),
        (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, track_running_stats=False)), 1),
        (lambda: nn.Sequential(nn.Conv2d(4, 3, 1), nn.ConvTranspose2d(3, 4, 2), nn.BatchNorm2d(4)), 1),
        (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), DoublingNorm(4)), 1),
        (lambda: nn.Sequential(ConvWS2d(4, 4, 3), nn.BatchNorm2d(4)), 1),
        (lambda: nn.Sequential(spectral_norm(nn.Conv2d(4, 4, 3)), nn.BatchNorm2d(4)), 1),
        (lambda: changed(lambda m: parametrizations.weight_norm(m[0])), 1),
        (lambda: changed(lambda m: m[0].register_forward_hook(lambda m, args, out: out * 2)), 1),
        (lambda: changed(lambda m: m[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))), 1),
        (lambda: changed(lambda m: m[1].register_forward_pre_hook(lambda m, args: (args[0].relu(),))), 1),
        (lambda: changed(patched), 1),
        (lambda: Skipping(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)), 1),
        (lambda: Inner(lambda self, x: self.inner[0](x)), 1),
        (lambda: Inner(lambda self, x: self.inner[1](self.inner[0](x).relu())), 1),
        (lambda: conv_module(order=('norm', 'conv', 'act')), 1),
        (shared, 2),
        (NormFirst, 1),
    ],
)
@pytest.mark.parametrize('last_hook', [0, 1])
def test_norms_that_can_be_folded(build, left, last_hook):
    model = with_random_norms(build())
    x = torch.randn(2, 4, 6, 5, dtype=torch.float64)
    with torch.no_grad():
        expected = model(x.clone())
        folded = fold_norms(model)
        if last_hook:  # of the user, and after those that fold
            model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
            expected = model(x.clone() - 1)
        for _ in range(3):
            torch.testing.assert_close(model(x.clone() - last_hook), expected)
    assert norms(model) == left
    folded.restore()
    torch.testing.assert_close(model(x.clone() - last_hook), expected, rtol=0, atol=1e-12)
    assert norms(model) > 0


def assert_two_norms_stay(model, x):
    """Folding keeps the results, in every call, and two norms."""
    with torch.no_grad():
        expected = model(x)
        fold_norms(model)
        for _ in range(2):
            torch.testing.assert_close(model(x), expected)
    assert norms(model) == 2


@pytest.mark.parametrize(
    'forward',
    [
        lambda self, x: self.norm(self.conv(x)) + self.conv(x),
        lambda self, x: self.norm(self.conv(x).relu()),
        lambda self, x: self.norm(self.norm(self.conv(x))),
        lambda self, x: self.conv(self.norm(x)),
        lambda self, x: [self.norm(self.conv(x)), dict(a=self.conv(x))],
        lambda self, x: [self.norm(self.conv(x))] * (1 + isinstance(self.norm, nn.BatchNorm2d)),
        lambda self, x: self.norm(self.conv(x))[:, :, isinstance(self.norm, nn.BatchNorm2d) :],
    ],
)
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32])
def test_a_module_that_uses_a_convolution_otherwise_is_named(monkeypatch, forward, dtype):
    """All results are right, also of modules that had been folded before."""
    told = []
    monkeypatch.setattr(cpu_convolutions, 'print_log', lambda text, *_: told.append(text))
    model = with_random_norms(nn.Sequential(pair(), nn.ReLU(), Block(forward))).to(dtype)
    assert_two_norms_stay(model, torch.randn(2, 4, 6, 5, dtype=dtype))
    assert len(told) == 1
    assert told[0].startswith('2 (Block)')


@pytest.mark.parametrize('by', ['export', 'trace', 'compile'])
def test_a_call_that_is_traced_does_not_fold(by):
    """There are no numbers to compare; the next call folds."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    model[1].running_mean.normal_()
    x = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        expected = model(x)
        fold_norms(model)
        if by == 'export':
            traced = torch.export.export(model, (x,)).module()
        elif by == 'trace':
            traced = torch.jit.trace(model, x, check_trace=False)
        else:
            traced = torch.compile(model, backend='aot_eager')
        torch.testing.assert_close(traced(x), expected)
        assert isinstance(model[1], nn.BatchNorm2d)
        torch.testing.assert_close(model(x), expected)
    assert norms(model) == 0


def test_one_forward_pass_more_of_a_network():
    """Modules in one that is compared are compared with it."""
    calls = []

    def forward(self, x):
        calls.append(len(x))
        return self.inner(self.norm(self.conv(x)))

    block = Block(forward)
    block.inner = nn.Sequential(pair(), Block(lambda self, x: self.norm(self.conv(x)).relu()))
    model = with_random_norms(block)
    x = torch.randn(2, 4, 6, 5, dtype=torch.float64)
    with torch.no_grad():
        expected = model(x)
        fold_norms(model)
        model(x), model(x)
        assert len(calls) == 1 + 3
        assert norms(model) == 0
    assert model(x).allclose(expected)


@pytest.mark.parametrize('failing', [1, 2])
def test_a_call_that_fails_ends_folding(failing):
    """In its first pass, with the norms, or in its second one, without them."""
    passes = []

    def forward(self, x):
        passes.append(len(x))
        y = self.norm(self.conv(x))
        if len(passes) == failing:
            raise RuntimeError('no memory')
        return y

    model = with_random_norms(Block(forward))
    x = torch.randn(2, 4, 6, 5, dtype=torch.float64)
    with torch.no_grad():
        expected = model.norm(model.conv(x))
        fold_norms(model)
        with pytest.raises(RuntimeError, match='no memory'):
            model(x)
        for _ in range(2):
            assert torch.equal(model(x), expected)
    assert norms(model) == 1
    assert len(passes) == failing + 2
    assert not (*model._forward_pre_hooks, *model._forward_hooks)


def test_a_module_that_is_not_called_again_is_not_folded(monkeypatch):
    """It is in the first pass alone, and has the result of the whole in the second one: the norms stay."""
    told = []
    monkeypatch.setattr(cpu_convolutions, 'print_log', lambda text, *_: told.append(text))

    def forward(self, x):
        y = self.norm(self.conv(x))
        return self.inner(y) + 1 if isinstance(self.norm, nn.BatchNorm2d) else self.inner.forward(y)

    block = Block(forward)
    block.inner = pair()
    assert_two_norms_stay(with_random_norms(block), torch.randn(2, 4, 6, 5, dtype=torch.float64))
    assert len(told) == 1


@pytest.mark.parametrize(
    'other',
    [
        lambda pair, x: pair[0](x),
        lambda pair, x: pair[1](x),
        lambda pair, x: pair[1](pair[0](x).relu()),
        lambda pair, x: x * pair[0].weight.mean() + pair[1].running_mean[:, None, None],
        lambda pair, x: pair[0](x) if len(x) > 2 else x,  # not in the first call
    ],
)
@pytest.mark.parametrize('copied', [False, True])
def test_a_convolution_or_norm_that_is_also_used_by_itself(other, copied):
    model = with_random_norms(Inner(lambda self, x: self.inner(x) + other(self.inner, x)))
    small, large = torch.randn(2, 4, 6, 5, dtype=torch.float64), torch.randn(3, 4, 6, 5, dtype=torch.float64)
    with torch.no_grad():
        expected = [model(x) for x in (small, small, large, small)]
        folded = fold_norms(model)
        first = model(small)
        used = copy.deepcopy(model) if copied else model
        actual = [first, *(used(x) for x in (small, large, small))]
        torch.testing.assert_close(actual, expected)
        assert norms(model) == norms(used) == 0
        compiled = torch.compile(used, backend='eager')
        torch.testing.assert_close(compiled(small), expected[0])
        single = copy.deepcopy(used).float()
        for network in (single, torch.compile(single, backend='eager')):
            torch.testing.assert_close(network(small.float()), expected[0].float())
        folded.restore()
        assert torch.equal(model(large), expected[2])
    assert not (*model.inner._forward_pre_hooks, *model.inner._forward_hooks)


def changed_weights(model):
    """The same network with other weights and statistics, not folded."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for x in (*other.parameters(), *other.buffers()):
            x.add_(torch.rand_like(x)) if x.is_floating_point() else None
    return other


def test_a_folded_network_has_the_parameters_that_it_had(monkeypatch):
    """They are loaded and saved under their names, changed in place, and trained."""
    model, x = with_random_norms(pair()), torch.randn(2, 4, 6, 5, dtype=torch.float64)
    other, names = changed_weights(model), [name for name, _ in model.named_parameters()]
    saved = copy.deepcopy(model.state_dict())
    with torch.inference_mode():
        expected = [network(x) for network in (model, other)]
        fold_norms(model)
        model(x)
        assert norms(model) == 0
        assert [name for name, _ in model.named_parameters()] == names
        assert saved.keys() == model.state_dict().keys()
        assert all(torch.equal(x, saved[name]) for name, x in model.state_dict().items())
        model.load_state_dict(other.state_dict())
        torch.testing.assert_close(model(x), expected[1])
    with torch.no_grad():
        torch._foreach_copy_([*model.parameters()], [saved[name] for name in names])  # as an average of weights does
        for name in ('running_mean', 'running_var'):
            getattr(model[1], name).copy_(saved[f'1.{name}'])
        torch.testing.assert_close(model(x), expected[0])
        monkeypatch.setattr(cpu_convolutions, 'fuse_conv_bn_eval', lambda *_: pytest.fail('nothing changed'))
        torch.testing.assert_close(model(x), expected[0])
    fresh = pair().double()
    fresh.load_state_dict(saved)
    for mode in (False, True):
        for network in (model, fresh):
            network.train(mode).zero_grad()
            network(x).square().sum().backward()
        torch.testing.assert_close([y.grad for y in model.parameters()], [y.grad for y in fresh.parameters()])
    torch.testing.assert_close(model.state_dict(), fresh.state_dict())


def test_a_hook_within_a_network_runs_once_a_call():
    """It is folded when the hook is gone."""
    model, seen = with_random_norms(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU())), []
    handle = model[2].register_forward_hook(lambda *_: seen.append(1))
    x = torch.randn(2, 4, 6, 5, dtype=torch.float64)
    with torch.no_grad():
        expected = model(x)
        fold_norms(model)
        for calls in (2, 3):
            assert torch.equal(model(x), expected)
            assert len(seen) == calls
        handle.remove()
        torch.testing.assert_close(model(x), expected)
    assert norms(model) == 0


def test_threads_call_a_network_for_the_first_time():
    """One compares; the others compute meanwhile, within the call that is compared, too."""
    inside, others = threading.Event(), threading.Event()

    class Waiting(nn.Module):
        def forward(self, x):
            if threading.current_thread() is not threading.main_thread() and not others.is_set():
                inside.set()
                others.wait(60)
            return x

    model = with_random_norms(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), Waiting(), pair()))
    x, y = torch.randn(2, 2, 4, 6, 5, dtype=torch.float64)
    with torch.no_grad():
        expected = model(x), model(y)
    fold_norms(model)

    def call(x):
        with torch.no_grad():
            return model(x)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(call, x)
        inside.wait(60)
        torch.testing.assert_close(call(y), expected[1])
        others.set()
        torch.testing.assert_close(first.result(), expected[0])
    for part, result in zip((x, y), expected):
        torch.testing.assert_close(call(part), result)
    assert norms(model) == 0


def test_threads_share_a_folded_network():
    """One calls the convolution by itself while the other is within the module."""
    begun, ended = threading.Event(), threading.Event()

    class Waiting(nn.Module):
        def forward(self, x):
            if threading.current_thread() is not threading.main_thread():
                begun.set()
                ended.wait(60)
            return x

    model = with_random_norms(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), Waiting()))
    x = torch.randn(2, 4, 6, 5, dtype=torch.float64)
    with torch.inference_mode():
        expected, alone = model(x), model[0](x)
        fold_norms(model)
        model(x)
        with ThreadPoolExecutor(1) as pool:

            def whole():
                with torch.inference_mode():
                    return model(x)

            inside = pool.submit(whole)
            begun.wait(60)
            assert torch.equal(model[0](x), alone)
            ended.set()
            torch.testing.assert_close(inside.result(), expected)


def test_a_folded_network_is_pickled_for_another_process():
    model, x = with_random_norms(pair()), torch.randn(2, 4, 6, 5, dtype=torch.float64)
    with torch.no_grad():
        alone = model[0](x)
        fold_norms(model)
        expected = model(x)
        loaded = pickle.loads(pickle.dumps(model))
        assert norms(loaded) == 0
        assert torch.equal(loaded(x), expected)
        assert torch.equal(loaded[0](x), alone)


class Network(BaseModel):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 2))
        self.runs = []

    def forward(self, inputs, mode='tensor'):
        outputs = self.backbone(torch.stack(inputs))
        self.runs.append((norms(self), outputs.stride(1)))
        return dict(loss=outputs.square().mean()) if mode == 'loss' else [*outputs]


class Outputs(BaseMetric):
    def process(self, data_batch, data_samples):
        self.results += data_samples

    def compute_metrics(self, results):
        return dict(sum=torch.stack(results).double().sum().item())


def test_a_run_trains_and_tests_with_the_weights_that_it_saves(tmp_path):
    """Beside a run without the hook. Norms are folded in tests alone, and after EMAHook has exchanged the weights."""
    torch.manual_seed(0)
    data = dict(
        batch_size=2, dataset=[dict(inputs=x) for x in torch.randn(6, 3, 7, 6)], sampler=dict(type='DefaultSampler')
    )
    states, metrics, runs = [], [], []
    for hooks in ([], [CPUConvolutionsHook(channels_last=True)]):
        torch.manual_seed(1)
        runner = Runner(
            Network(),
            str(tmp_path / str(len(hooks))),
            train_dataloader=data,
            test_dataloader=data,
            train_cfg=dict(by_epoch=True, max_epochs=2),
            test_cfg=dict(),
            test_evaluator=Outputs(),
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1, momentum=0.9)),
            custom_hooks=[EMAHook(), *hooks],
            randomness=dict(seed=0),
            default_scope='mmengine',
            experiment_name=str(len(hooks)),
        )
        runner.train()
        metrics.append([runner.test()['sum'], runner.test()['sum']])
        states.append(torch.load(tmp_path / str(len(hooks)) / 'epoch_2.pth', weights_only=False))
        runs.append(runner.model.runs)
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-5)
    assert metrics[1][0] == metrics[1][1]
    assert [run[0] for run in runs[1]] == 6 * [1] + 6 * [0]
    assert {run[1] for run in runs[1]} == {1}  # channels are last
    for part in ('state_dict', 'ema_state_dict'):
        assert states[1][part].keys() == states[0][part].keys()
        for name, expected in states[0][part].items():
            actual = states[1][part][name]
            assert actual.stride() == expected.stride(), name
            torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize('wanted', [False, True])
def test_images_have_channels_last_if_that_is_wanted(wanted):
    """Once, if a Runner trains and then tests."""
    model = nn.Sequential()
    model.add_module('backbone', nn.Conv2d(3, 4, 1))
    hook = CPUConvolutionsHook(**dict(channels_last=True) if wanted else {})
    for _ in range(2):
        hook.before_run(SimpleNamespace(model=model))
    assert len(model.backbone._forward_pre_hooks) == wanted
    assert model(torch.ones(1, 3, 4, 5)).is_contiguous(memory_format=torch.channels_last) == wanted
