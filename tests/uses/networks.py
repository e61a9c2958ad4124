"""Layers in wrappers, dtypes, layouts and sizes that people put them in. Each gives what the plain layer gives."""

import copy
import io
import pickle
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
from mmengine.model import ExponentialMovingAverage
from torch import distributed, nn
from torch.utils.checkpoint import checkpoint

from mmattn.registry import MODELS

from . import error, later, works

NORM = dict(type='BN')
LAYERS = {  # name: config, shape of the input
    'Bi-NL': (dict(type='mmattn.BilateralNonLocal2d', in_channels=8, window_size=5), (2, 8, 6, 9)),
    'Bi-CC': (dict(type='mmattn.BilateralCrissCrossAttention', in_channels=8, window_size=5), (2, 8, 6, 9)),
    'BA': (dict(type='mmattn.LocalBilateralAttention', in_channels=8, num_heads=2, norm_cfg=NORM), (2, 8, 6, 9)),
    'BAConv': (
        dict(type='mmattn.BAConv2d', in_channels=8, out_channels=8, kernel_size=3, padding=1, num_heads=2),
        (2, 8, 6, 9),
    ),
    'dynamic': (dict(type='mmattn.DynamicConv2d', in_channels=8, kernel_size=3, groups=2), (2, 8, 6, 9)),
    'terms': (dict(type='mmattn.TransformerAttention2d', in_channels=8, num_heads=2), (2, 8, 6, 9)),
    'grid': (
        dict(type='mmattn.GridAttention3d', embed_dims=8, num_heads=2, temporal_position='relative'),
        (2, 3, 4, 5, 8),
    ),
    'strided': (
        dict(type='mmattn.StridedAttention3d', embed_dims=8, num_heads=2, step=2, temporal_position='relative'),
        (2, 3, 4, 5, 8),
    ),
    'sentence': (dict(type='mmattn.BilateralMultiheadAttention', embed_dim=8, num_heads=2), (2, 7, 8)),
    'sentence terms': (dict(type='mmattn.TransformerAttention1d', embed_dim=8, num_heads=2), (2, 7, 8)),
    'sentence conv': (dict(type='mmattn.DynamicConv1d', embed_dim=8, num_heads=2, kernel_size=3), (2, 7, 8)),
}


def build(name, dtype=torch.float32):
    """A layer whose parameters are random, in evaluation mode, and an input."""
    cfg, shape = LAYERS[name]
    torch.manual_seed(0)
    layer = MODELS.build(dict(cfg)).eval().to(dtype)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer, torch.randn(shape, dtype=dtype)


def operands(x):
    """A sentence is query, key and value of its attention."""
    return (x,) * 3 if x.ndim == 3 else (x,)


def call(layer, x):
    y = layer(*operands(x))
    return y[0] if isinstance(y, tuple) else y


def gradients(layer, x):
    """Output, and the gradients of the input and of all parameters."""
    x = x.detach().requires_grad_()
    layer.zero_grad()
    y = call(layer, x)
    y.square().sum().backward()
    return [y, x.grad, *(None if p.grad is None else p.grad.clone() for p in layer.parameters())]


def same(found, expected, tolerance=1e-5):
    for a, b in zip(found, expected, strict=True):
        if a is None or b is None:
            assert a is b
        else:
            torch.testing.assert_close(a.float(), b.float(), rtol=tolerance, atol=tolerance)
    return True


def agrees(wrap, name, tolerance=1e-5, dtype=torch.float32):
    layer, x = build(name, dtype)
    expected = gradients(layer, x)
    return same(gradients(wrap(copy.deepcopy(layer)), x), expected, tolerance)


def output_agrees(run, name, tolerance=1e-5):
    layer, x = build(name)
    return same([run(layer, x)], [call(layer, x)], tolerance)


class Group:
    """A process group of one process."""

    def __enter__(self):
        self.file = NamedTemporaryFile()
        distributed.init_process_group('gloo', f'file://{self.file.name}_group', rank=0, world_size=1)

    def __exit__(self, *_):
        distributed.destroy_process_group()
        Path(f'{self.file.name}_group').unlink(missing_ok=True)


def in_group(wrap, name):
    with Group():
        return agrees(wrap, name)


def ddp(layer):
    return nn.parallel.DistributedDataParallel(layer, find_unused_parameters=True)


def fsdp2(name):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with Group():
        layer, x = build(name)
        expected = gradients(layer, x)[:2]
        sharded = fully_shard(copy.deepcopy(layer), mesh=init_device_mesh('cpu', (1,)))
        x = x.requires_grad_()
        y = call(sharded, x)
        y.square().sum().backward()
        return same([y, x.grad], expected)


def through_file(layer):
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    fresh = copy.deepcopy(layer)
    for parameter in fresh.parameters():
        nn.init.zeros_(parameter)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    return fresh


class Checkpointed(nn.Module):
    def __init__(self, layer, reentrant):
        super().__init__()
        self.layer, self.reentrant = layer, reentrant

    def forward(self, *xs):
        return checkpoint(self.layer, *xs, use_reentrant=self.reentrant)


def compiled(layer):
    torch._dynamo.reset()
    return torch.compile(layer, backend='eager', fullgraph=True)


def exported(layer, x):
    return call(torch.export.export(layer, operands(x)).module(), x)


def hooked(layer):
    layer.register_full_backward_hook(lambda module, grad_in, grad_out: None)
    layer.register_forward_pre_hook(lambda module, inputs: tuple(t.clone() for t in inputs))
    return layer


def frozen(name):
    layer, x = build(name)
    layer.requires_grad_(False)
    (grad,) = torch.autograd.grad(call(layer, x.requires_grad_()).sum(), x)
    return bool(grad.isfinite().all() and grad.abs().sum() > 0)


def in_autocast(layer, x):
    with torch.autocast('cpu', torch.bfloat16):
        return call(layer, x)


def in_double(layer, x):
    return call(copy.deepcopy(layer).double(), x.double())


def averaged(layer, x):
    average = ExponentialMovingAverage(layer, momentum=0.5)
    average.update_parameters(layer)
    return call(average, x)


def with_sync_norm(layer, x):
    return call(nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(layer)), x)


def quantized(layer, x):
    return call(torch.ao.quantization.quantize_dynamic(copy.deepcopy(layer), {nn.Linear}, torch.qint8), x)


def reduced(dtype, name):
    """In 16 bit, near the result of float32 on the rounded values."""
    layer, x = build(name)
    low = copy.deepcopy(layer).to(dtype)
    rounded = copy.deepcopy(low).float()
    return same([call(low, x.to(dtype))], [call(rounded, x.to(dtype).float())], 0.06)


def on_meta(name):
    layer, x = build(name)
    with torch.device('meta'):
        y = call(MODELS.build(dict(LAYERS[name][0])).eval(), torch.empty_like(x, device='meta'))
    return y.shape == call(layer, x).shape


def from_meta(name):
    """Built without memory, filled from a checkpoint."""
    layer, x = build(name)
    with torch.device('meta'):
        empty = MODELS.build(dict(LAYERS[name][0])).eval()
    empty.load_state_dict(layer.state_dict(), assign=True)
    missing = [n for n, tensor in empty.named_buffers() if tensor.is_meta]
    return missing == [] and same([call(empty, x)], [call(layer, x)])


def strides(change, name):
    layer, x = build(name)
    other = change(x)
    assert torch.equal(other, x)
    return same(gradients(layer, other), gradients(layer, x))


def channels_last(x):
    return x.to(memory_format=torch.channels_last)


def every_other(x):
    wide = x.new_zeros(*x.shape[:-1], 2 * x.shape[-1])
    wide[..., ::2] = x
    return wide[..., ::2]


@later
def with_shape(_, name, *shape):
    layer, _ = build(name)
    y = call(layer, torch.randn(shape))
    return y.shape == shape and bool(y.isfinite().all())


def batch_is_independent(name):
    layer, x = build(name)
    return same([call(layer, x)[:1]], [call(layer, x[:1])])


def one_image_of_nan(name):
    """A damaged sample does not reach the others of its batch."""
    layer, x = build(name)
    broken = x.clone()
    broken[1] = torch.nan
    return same([call(layer, broken)[:1]], [call(layer, x)[:1]])


def steps(optimizer, name):
    """Training lowers the loss."""
    layer, x = build(name)
    target, optimizer = torch.randn_like(call(layer, x)), optimizer(layer.parameters())
    losses = []
    for _ in range(8):
        loss = (call(layer, x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[-1] < losses[0]


def functional(layer, x):
    values = {k: v.clone() for k, v in {**dict(layer.named_parameters()), **dict(layer.named_buffers())}.items()}
    y = torch.func.functional_call(layer, values, operands(x))
    return y[0] if isinstance(y, tuple) else y


def per_sample(name):
    """Gradients of each sample by vmap, as differential privacy needs them."""
    layer, x = build(name)
    values = {k: v.detach() for k, v in layer.named_parameters()}
    buffers = dict(layer.named_buffers())

    def loss(values, sample):
        y = torch.func.functional_call(layer, {**values, **buffers}, operands(sample[None]))
        return (y[0] if isinstance(y, tuple) else y).square().sum()

    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(values, x)
    expected = [torch.func.grad(loss)(values, sample) for sample in x]
    return all(same([found[k][i]], [expected[i][k]], 1e-4) for k in found for i in range(len(x)))


class First(nn.Module):
    """The first output alone: tracing takes no None."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *xs):
        y = self.layer(*xs)
        return y[0] if isinstance(y, tuple) else y


def traced(layer, x):
    return torch.jit.trace(First(layer), operands(x), check_trace=False)(*operands(x))


def in_threads(layer, x):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool, torch.no_grad():
        return list(pool.map(lambda _: call(layer, x), range(4)))[-1]


def accumulated(name):
    """Two halves of a batch give the gradients of the whole batch."""
    layer, x = build(name)
    whole = gradients(layer, x)[2:]
    halves = [gradients(layer, part)[2:] for part in x.split(1)]
    return same([sum(g) if g[0] is not None else None for g in zip(*halves)], whole, 1e-4)


def twice(name):
    """One layer at two places of a network."""
    layer, x = build(name)
    x = x.requires_grad_()
    y = call(layer, call(layer, x))
    (grad,) = torch.autograd.grad(y.sum(), x)
    return bool(grad.isfinite().all())


@later
def second_order(_, name):
    layer, x = build(name, torch.float64)
    x = x.requires_grad_()
    (first,) = torch.autograd.grad(call(layer, x).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    return bool(second.isfinite().all())


@later
def wrong(_, name, change):
    layer, x = build(name)
    return call(layer, change(x))


@later
def built(_, name, **options):
    return type(MODELS.build(dict(options, type=f'mmattn.{name}'))).__name__


def rows(what, function, *names):
    return [works(f'{name}: {what}', lambda _, name=name: function(name)) for name in names]


def wrapped(what, wrap, *names):
    return rows(what, partial(agrees, wrap), *names)


def outputs(what, run, *names, tolerance=1e-5):
    return rows(what, partial(output_agrees, run, tolerance=tolerance), *names)


USES = {
    'copy': wrapped('deepcopy', copy.deepcopy, 'Bi-CC', 'strided', 'sentence'),
    'pickle': wrapped('pickle and back', lambda m: pickle.loads(pickle.dumps(m)), 'Bi-NL', 'grid', 'sentence terms'),
    'state dict': wrapped('saved, zeroed, loaded', through_file, 'BA', 'dynamic', 'sentence conv'),
    'activation checkpointing': [
        *wrapped('not reentrant', lambda m: Checkpointed(m, False), 'BAConv', 'strided'),
        *wrapped('reentrant', lambda m: Checkpointed(m, True), 'terms', 'sentence'),
    ],
    'DDP, one process': rows(
        'gradients',
        partial(in_group, ddp),
        'Bi-NL',
        'sentence terms',
    ),
    'FSDP2, one process': rows('output and gradient', fsdp2, 'grid', 'sentence', 'BA'),
    'DataParallel': wrapped('on a CPU', nn.DataParallel, 'Bi-CC', 'dynamic'),
    'torch.compile': wrapped('whole graph', compiled, 'Bi-CC', 'strided', 'sentence conv'),
    'torch.export': outputs('output', exported, 'BA', 'terms', 'grid'),
    'torch.jit.trace': outputs('output', traced, 'Bi-NL', 'dynamic', 'sentence'),
    'hooks of modules': wrapped('full backward and pre-forward', hooked, 'strided', 'sentence terms', 'BAConv'),
    'frozen parameters': rows('gradient of the input', frozen, 'Bi-CC', 'grid', 'sentence conv'),
    'bfloat16': rows('output', partial(reduced, torch.bfloat16), 'Bi-NL', 'dynamic', 'strided'),
    'float16': rows('output', partial(reduced, torch.float16), 'BA', 'terms', 'sentence'),
    'autocast': outputs('output', in_autocast, 'Bi-CC', 'grid', 'sentence terms', tolerance=0.06),
    'float64': outputs('output', in_double, 'BAConv', 'dynamic', 'sentence conv', tolerance=1e-4),
    'meta device': [
        *rows('shape of the output', on_meta, 'Bi-CC', 'terms', 'sentence'),
        *rows('filled from a checkpoint', from_meta, 'BA', 'grid', 'sentence terms'),
    ],
    'memory layout': [
        *rows('channels last', partial(strides, channels_last), 'Bi-NL', 'BA', 'terms'),
        *rows('every other column', partial(strides, every_other), 'dynamic', 'strided'),
    ],
    'size': [
        works('Bi-NL: one position', with_shape('Bi-NL', 1, 8, 1, 1)),
        works('Bi-CC: one row', with_shape('Bi-CC', 1, 8, 1, 9)),
        works('BA: one column', with_shape('BA', 1, 8, 9, 1)),
        works('grid: one frame', with_shape('grid', 1, 1, 4, 5, 8)),
        works('strided: fewer frames than the step', with_shape('strided', 1, 1, 1, 1, 8)),
        works('sentence: one word', with_shape('sentence', 1, 1, 8)),
        works('dynamic: smaller than the kernel', with_shape('dynamic', 2, 8, 1, 1)),
    ],
    'empty batch': [
        works('BA', with_shape('BA', 0, 8, 6, 9)),
        works('Bi-CC', with_shape('Bi-CC', 0, 8, 6, 9)),
        works('sentence', with_shape('sentence', 0, 7, 8)),
    ],
    'batch': rows('samples do not mix', batch_is_independent, 'Bi-NL', 'strided', 'sentence conv'),
    'NaN': rows('stays in its sample', one_image_of_nan, 'Bi-CC', 'BA', 'grid', 'sentence'),
    'EMA': outputs('mmengine, with buffers', averaged, 'BA', 'sentence terms'),
    'optimizer': [
        *rows('SGD', partial(steps, partial(torch.optim.SGD, lr=1e-2)), 'Bi-CC', 'dynamic'),
        *rows('AdamW, fused', partial(steps, partial(torch.optim.AdamW, fused=True)), 'grid', 'terms'),
    ],
    'SyncBN': outputs('converted, one process', with_sync_norm, 'BA', 'BAConv'),
    'torch.func': [
        *outputs('functional_call', functional, 'Bi-CC', 'sentence conv'),
        *rows('gradients per sample by vmap', per_sample, 'Bi-NL', 'sentence'),
    ],
    'threads': outputs('two at once', in_threads, 'BA', 'strided'),
    'quantization': outputs(
        'dynamic, of linear layers', quantized, 'sentence', 'sentence terms', 'grid', tolerance=0.2
    ),
    'gradient accumulation': rows('two halves', accumulated, 'terms', 'sentence'),
    'shared layer': rows('applied twice', twice, 'Bi-CC', 'grid', 'sentence terms'),
    'second derivatives': [
        error('terms', second_order('terms'), 'not twice differentiable'),
        error('Bi-NL', second_order('Bi-NL'), 'not twice differentiable'),
    ],
    'wrong input': [
        error('BA: integers', wrong('BA', lambda x: x.long()), 'float|dtype|type'),
        error('Bi-CC: no batch', wrong('Bi-CC', lambda x: x[0]), r'B, C, H, W|4|dimension|shape'),
        error('grid: channels second', wrong('grid', lambda x: x.movedim(-1, 1)), '8|embed_dims'),
        error('sentence: other width', wrong('sentence', lambda x: x[..., :6]), '8|embed_dim'),
        error('terms: other channels', wrong('terms', lambda x: x[:, :6]), '8'),
    ],
    'layer arguments': [
        error('an even window', built('BilateralNonLocal2d', in_channels=8, window_size=4), 'window_size.*odd'),
        error(
            'heads that do not divide',
            built('BilateralMultiheadAttention', embed_dim=8, num_heads=3),
            'num_heads.*divide',
        ),
        error(
            'a misspelt position',
            built('BilateralCrissCrossAttention', in_channels=8, position='bilatral'),
            "position.*'bilatral'",
        ),
        error('terms of three digits', built('TransformerAttention2d', in_channels=8, terms='111'), "terms.*'111'"),
        error('terms as a number', built('TransformerAttention2d', in_channels=8, terms=110), 'terms.*110'),
        works(
            'a strided convolution stays one',
            built('BAConv2d', in_channels=8, out_channels=8, kernel_size=3, padding=1, stride=2),
            'Conv2d',
        ),
        error('float channels', built('BilateralNonLocal2d', in_channels=8.0), 'in_channels.*8.0'),
    ],
}
