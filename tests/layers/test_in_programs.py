"""Layers in the wrappers, dtypes and sizes that programs put them in. Each gives what the plain layer gives."""

import copy
import io
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from mmengine.model import ExponentialMovingAverage
from mmengine.registry import MODELS
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh

from .test_every_layer import COMPILED, LAYERS, made

NAMES = [*COMPILED, 'BAConv2d']
every_layer = pytest.mark.parametrize('name', NAMES)


def results(layer, inputs, call):
    """The output, and the gradients of the input and of all parameters."""
    x = inputs[0].requires_grad_()
    x.grad = None
    layer.zero_grad()
    y = call(layer)
    y.square().sum().backward()
    return [y, x.grad, *(p.grad.clone() for p in layer.parameters() if p.grad is not None)]


def pickled(layer):
    return pickle.loads(pickle.dumps(layer))


def loaded(layer):
    """Through a checkpoint into a layer that was built without memory."""
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    empty = copy.deepcopy(layer).to('meta')
    empty.load_state_dict(torch.load(file, weights_only=True), assign=True)
    assert not [name for name, x in empty.named_buffers() if x.is_meta]
    return empty


def hooked(layer):
    layer.register_full_backward_hook(lambda module, grad_in, grad_out: None)
    layer.register_forward_pre_hook(lambda module, inputs: tuple(x.clone() for x in inputs))
    return layer


@pytest.mark.parametrize('wrap', [copy.deepcopy, pickled, loaded, hooked])
@every_layer
def test_copies_and_hooks(name, wrap):
    layer, inputs, call = made(name)
    expected = results(layer, inputs, call)
    torch.testing.assert_close(results(wrap(layer), inputs, call), expected)


@pytest.mark.parametrize('name', ['BilateralNonLocal2d', 'GridAttention3d', 'LocalBilateralAttention'])
def test_sharded_by_itself(name, tmp_path):
    """FSDP2 of one process."""
    from torch.distributed.fsdp import fully_shard

    layer, inputs, call = made(name)
    expected = results(layer, inputs, call)[:2]
    distributed.init_process_group('gloo', f'file://{tmp_path}/group', rank=0, world_size=1)
    try:
        sharded = fully_shard(copy.deepcopy(layer), mesh=init_device_mesh('cpu', (1,)))
        torch.testing.assert_close(results(sharded, inputs, call)[:2], expected)
    finally:
        distributed.destroy_process_group()


class First(nn.Module):
    """The first output alone: tracing takes no None."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *inputs):
        y = self.layer(*inputs)
        return y[0] if isinstance(y, tuple) else y


def traced(layer, inputs, call):
    return torch.jit.trace(First(layer), tuple(inputs), check_trace=False)(*inputs)


def averaged(layer, inputs, call):
    average = ExponentialMovingAverage(layer, momentum=0.5)
    average.update_parameters(layer)
    return call(average)


def synchronised(layer, inputs, call):
    return call(nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(layer)))


@torch.no_grad()
def in_threads(layer, inputs, call):
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda _: call(layer), range(4)))[-1]


@pytest.mark.filterwarnings('ignore::torch.jit.TracerWarning', 'ignore:.*torch.jit.trace:DeprecationWarning')
@pytest.mark.parametrize('run', [traced, averaged, synchronised, in_threads])
@every_layer
def test_outputs(name, run):
    layer, inputs, call = made(name)
    torch.testing.assert_close(run(layer, inputs, call), call(layer))


@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16, torch.float16], ids=str)
@every_layer
def test_dtypes(name, dtype):
    """Near the result of float32 on the rounded values."""
    layer, inputs, _ = made(name)
    low, x = First(layer).to(dtype), inputs[0].to(dtype)
    y = low(*[x] * len(inputs))
    expected = copy.deepcopy(low).float()(*[x.float()] * len(inputs))
    tolerance = 1e-4 if dtype == torch.float64 else 0.06
    torch.testing.assert_close(y.float(), expected, rtol=tolerance, atol=tolerance)


@every_layer
def test_without_data(name):
    """On the meta device."""
    layer, inputs, call = made(name)
    with torch.device('meta'):
        empty = First(MODELS.build(dict(LAYERS[name][0], type=f'mmattn.{name}'))).eval()
        y = empty(*[torch.empty_like(x, device='meta') for x in inputs])
    assert y.shape == call(layer).shape


@every_layer
def test_samples_do_not_mix(name):
    """Also if one of them is NaN."""
    layer, inputs, _ = made(name)
    layer, x = First(layer), torch.cat([inputs[0]] * 2)[:2]
    expected = layer(*[x[:1]] * len(inputs))
    torch.testing.assert_close(layer(*[x] * len(inputs))[:1], expected)
    x[1] = torch.nan
    torch.testing.assert_close(layer(*[x] * len(inputs))[:1], expected)


@pytest.mark.parametrize('name', ['BilateralNonLocal2d', 'BilateralMultiheadAttention', 'TransformerAttention2d'])
def test_gradients_of_each_sample(name):
    """By vmap, as differential privacy needs them; their sum is the gradient of the batch."""
    layer, inputs, _ = made(name)
    layer, x, count = First(layer), inputs[0].detach(), len(inputs)
    values = {key: p.detach() for key, p in layer.named_parameters()}

    def loss(values, batch):
        return torch.func.functional_call(layer, values, (batch,) * count).square().sum()

    grad = torch.func.grad(loss)
    found = torch.func.vmap(grad, (None, 0))(values, x[:, None])
    expected = [grad(values, sample[None]) for sample in x]
    for key, whole in grad(values, x).items():
        torch.testing.assert_close(found[key], torch.stack([each[key] for each in expected]), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found[key].sum(0), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ('name', 'shape'),
    [
        ('BilateralNonLocal2d', (1, 8, 1, 1)),
        ('BilateralCrissCrossAttention', (1, 8, 1, 9)),
        ('BilateralCrissCrossAttention', (0, 8, 6, 9)),
        ('LocalBilateralAttention', (1, 8, 9, 1)),
        ('LocalBilateralAttention', (0, 8, 6, 9)),
        ('GridAttention3d', (1, 1, 4, 5, 8)),
        ('StridedAttention3d', (1, 1, 1, 1, 8)),  # fewer frames than the step
        ('BilateralMultiheadAttention', (1, 1, 8)),
        ('BilateralMultiheadAttention', (0, 7, 8)),
        ('DynamicConv2d', (2, 8, 1, 1)),  # smaller than the kernel
    ],
)
def test_the_smallest_inputs(name, shape):
    layer, inputs, _ = made(name)
    y = First(layer)(*[torch.randn(shape)] * len(inputs))
    assert y.shape == shape
    assert y.isfinite().all()


@pytest.mark.parametrize('name', ['BilateralMultiheadAttention', 'GridAttention3d'])
def test_dynamic_quantization_of_linear_layers(name):
    layer, _, call = made(name)
    quantized = torch.ao.quantization.quantize_dynamic(copy.deepcopy(layer), {nn.Linear}, torch.qint8)
    torch.testing.assert_close(call(quantized), call(layer), rtol=0.2, atol=0.2)
