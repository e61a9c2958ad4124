"""The order of dimensions in memory."""

import pytest
import torch

from mmattn.ops.layouts import copy_for_inductor


@pytest.mark.parametrize('is_last', [True, False], ids=['channels last', 'contiguous'])
def test_a_map_is_copied_for_the_training_that_is_compiled_alone(monkeypatch, is_last):
    """To the other layout, since a copy of the same layout would be removed."""
    x = torch.arange(120.0).view(2, 3, 4, 5)
    x = x.contiguous(memory_format=torch.channels_last) if is_last else x
    assert copy_for_inductor(x) is x
    monkeypatch.setattr(torch.compiler, 'is_compiling', lambda: True)
    with torch.no_grad():
        assert copy_for_inductor(x) is x
    copied = copy_for_inductor(x)
    assert torch.equal(copied, x)
    assert copied.stride() == ((60, 20, 5, 1) if is_last else (60, 1, 15, 3))
