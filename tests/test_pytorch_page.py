"""docs/pytorch.md: its programs run as printed, one after the other."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mmattn.layers import BAConv2d, BilateralCrissCrossAttention

from .requirements import requires

PAGE = Path(__file__).parents[1] / 'docs/pytorch.md'
MODULE, TRAIN, LOAD, EXPORT, RUN, RESNET = re.findall(r'```python\n(.*?)```', PAGE.read_text(encoding='utf-8'), re.S)


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Execute a program of the page in a folder with ``my_network.py``; return its variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, 'my_network', raising=False)
    Path('my_network.py').write_text(MODULE)

    def execute(program):
        variables = {}
        exec(program, variables)
        return variables

    yield execute
    sys.modules.pop('my_network', None)


def layers(network):
    return [type(layer) for layer in network.modules() if isinstance(layer, BAConv2d | BilateralCrissCrossAttention)]


@pytest.mark.slow
@requires('onnx', 'onnxruntime', 'onnxscript')
def test_a_network_is_trained_saved_loaded_and_exported(execute, capsys):
    trained = execute(TRAIN)['network'].eval()
    assert layers(trained) == [BAConv2d, BAConv2d, BilateralCrissCrossAttention]
    assert all(parameter.grad.abs().sum() > 0 for parameter in trained.parameters())
    losses = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert losses[-1] < 0.9 * losses[0]

    loaded = execute(LOAD)
    assert loaded['logits'].shape == (1, 2, 48, 80)
    execute(EXPORT)
    run = execute(RUN)
    assert run['logits'].shape == (1, 2, 48, 80)
    for size in [(1, 3, 48, 80), (3, 3, 65, 37), (2, 3, 16, 16)]:
        x = torch.rand(size, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            expected = trained(x)
            assert torch.equal(loaded['network'](x), expected)
        (found,) = run['session'].run(None, {'x': x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-5)


@requires('torchvision')
def test_the_layers_are_in_torchvisions_resnet(execute):
    """The last one is the identity at first."""
    resnet = execute(RESNET)['resnet'].eval()
    assert layers(resnet) == [BAConv2d, BAConv2d, BilateralCrissCrossAttention]
    x = torch.rand(2, 3, 64, 96)
    y = resnet(x)
    y.square().sum().backward()
    attention = resnet.layer4[-1]
    assert attention.gamma.scale.grad.abs() > 0
    resnet.layer4[-1] = nn.Identity()
    assert torch.equal(resnet(x), y)
