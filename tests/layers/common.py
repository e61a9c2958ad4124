"""What the tests of the layers share."""

import torch
from torch.nn import functional as F

from ..ops import literal


def randomised(module, std=0.5):
    """Draw every parameter and statistic, in float64 and evaluation: at initialisation, many layers are identities."""
    module.double().eval()
    generator = torch.Generator().manual_seed(0)
    for name, x in [*module.named_parameters(), *module.named_buffers()]:
        if x.is_floating_point():
            x.data.normal_(0, std, generator=generator)
        if name.endswith('running_var'):
            x.abs_().add_(0.5)
    return module


def pointwise(module, x):
    """Write out a 1×1 convolution of ``(B, H, W, C)``, and its norm in evaluation."""
    x = F.linear(x, module.conv.weight.flatten(1), module.conv.bias)
    if getattr(module, 'norm', None) is not None:
        norm = module.norm
        x = (x - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
    return x


def assert_equal_with_gradients(ours, expected, x, layer, tolerance=1e-10, of_expected=None):
    """Compare values, and gradients of ``x`` and of all parameters; ``of_expected`` has those of another module."""
    torch.testing.assert_close(ours, expected, atol=tolerance, rtol=tolerance)
    names = ['x', *dict(layer.named_parameters())]
    if len(names) == 1:
        return
    cotangent = literal.randn(*ours.shape, seed=7)
    actual = torch.autograd.grad(ours, [x, *layer.parameters()], cotangent)
    wanted = torch.autograd.grad(expected, [x, *(of_expected or layer).parameters()], cotangent)
    for name, a, b in zip(names, actual, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance, msg=lambda text, name=name: f'{name}: {text}')
