"""Geometric weights φ¹ of pairs of boxes, in NumPy, pair by pair (Eq. 8, 9 and 11); the layers that have them."""

import numpy as np
import pytest
import torch
from torch import nn

from mmattn.language.layers import RegionAttention
from mmattn.language.regions import geometry_pictures
from mmattn.language.regions.geometry_pictures import draw_geometric_weights, geometric_weights, geometry_layers

HEADS = 2


def layer():
    torch.manual_seed(0)
    attention = RegionAttention(8, HEADS, geometry=['query_dependent', 'content_independent'], geometry_dim=6).double()
    for parameter in attention.parameters():
        parameter.data.normal_()
    return attention


def literal(attention, box, other):
    """φ¹ of each head for two boxes (x, y, w, h) with centres x and y."""
    w = {name: x.detach().numpy() for name, x in attention.named_parameters()}
    (x, y, width, height), (x2, y2, width2, height2) = box, other
    distance = max(abs(x - x2) / width, 1e-3), max(abs(y - y2) / height, 1e-3)
    f = np.log([*distance, width / width2, height / height2])
    g = np.maximum(w['geometry_proj.weight'] @ f + w['geometry_proj.bias'], 0)
    return np.maximum(w['geometry_weight.weight'] @ g, 0)


def test_weights_of_pairs_of_boxes():
    attention, box = layer(), (7.0, 5.0, 4.0, 2.0)
    others = [(x, y, w, h) for x in (7.0, 9.5, -3.0) for y in (5.0, 4.0) for w in (1.0, 4.0) for h in (2.0, 16.0)]
    distance = torch.tensor([[(x - 7) / 4, (y - 5) / 2] for x, y, _, _ in others], dtype=torch.float64)
    ratio = torch.tensor([[4 / w, 2 / h] for _, _, w, h in others], dtype=torch.float64)
    found = geometric_weights(attention, distance.view(4, 6, 2), ratio.view(4, 6, 2))
    expected = np.stack([literal(attention, box, other) for other in others], 1).reshape(HEADS, 4, 6)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    assert 0 < (expected > 0).mean() < 1


def test_what_is_drawn(monkeypatch):
    """Each panel: the mean over the heads at the place or the ratio of its axes; one colour scale for all."""
    attention, drawn, limits = layer(), [], []
    plot = geometry_pictures.Figure

    class Recorded(plot):
        def subplots(self, *args, **kwargs):
            axes = super().subplots(*args, **kwargs)
            for axis in axes.flat:
                original = axis.pcolormesh

                def record(x, y, values, original=original, **options):
                    drawn.append((x, y, values))
                    limits.append((options['vmin'], options['vmax']))
                    return original(x, y, values, **options)

                axis.pcolormesh = record
            return axes

    monkeypatch.setattr(geometry_pictures, 'Figure', Recorded)
    draw_geometric_weights({'encoder.0': attention})
    assert len(drawn) == 6
    for number, (xs, ys, values) in enumerate(drawn):
        for row, column in ((0, 0), (30, 30), (12, 45), (60, 7)):
            x, y = xs[column].item(), ys[row].item()
            if number < 3:
                ratio = (4.0, 1.0, 0.25)[number]
                other = x, y, 1 / ratio, 1 / ratio
            else:
                far = (0.0, 1.0, 3.0)[number - 3]
                other = far, far, 1 / x, 1 / y
            expected = literal(attention, (0.0, 0.0, 1.0, 1.0), other).mean()
            assert values[row, column].item() == pytest.approx(expected, rel=1e-5, abs=1e-9)
    assert set(limits) == {(0, max(values.max().item() for _, _, values in drawn))}


def test_layers_whose_geometry_depends_on_boxes_alone():
    first, last = layer(), layer()
    model = nn.ModuleDict(dict(a=first, b=RegionAttention(8, HEADS, geometry='query_dependent'), c=last))
    assert geometry_layers(model) == dict(a=first, c=last)
    assert geometry_layers(model, 'a') == dict(a=first)
    with pytest.raises(ValueError, match='layer must be one of a, c; got b'):
        geometry_layers(model, 'b')
    with pytest.raises(ValueError, match=r"Linear has no mmattn\.RegionAttention with geometry='content_independent'"):
        geometry_layers(nn.Linear(1, 1))
