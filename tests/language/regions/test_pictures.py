"""Pictures: numbers of boxes, geometric weights φ¹ pair by pair in NumPy (Eq. 8, 9 and 11), pictures by their ids."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from common.region_extraction import find_images
from mmattn.language import Regions, RegionStore, RegionWriter
from mmattn.language.layers import RegionAttention
from mmattn.language.regions.geometry_pictures import draw_geometric_weights, geometric_weights, geometry_layers
from mmattn.language.regions.image_inputs import picture_paths
from mmattn.visualization.panels import coloured

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


def test_what_is_drawn(drawn_panels):
    """Each panel: the mean over the heads at the place or the ratio of its axes; one colour scale for all."""
    attention = layer()
    draw_geometric_weights({'encoder.0': attention})
    panels, points = drawn_panels[1:7], [(0, 0), (60, 60), (12, 45), (60, 7), (20, 29)]
    values = []
    for number in range(6):
        for row, column in points:
            x, y = column / 30 - 1, row / 30 - 1
            if number < 3:
                ratio = (4.0, 1.0, 0.25)[number]
                other = 3 * x, 3 * y, 1 / ratio, 1 / ratio
            else:
                far = (0.0, 1.0, 3.0)[number - 3]
                other = far, far, 8**-x, 8**-y
            values.append(literal(attention, (0.0, 0.0, 1.0, 1.0), other).mean())
    largest = float(next(label for label in drawn_panels[-1].rows if label))
    shown = []
    for number, panel in enumerate(panels):  # 4 pixels per value
        picture = panel.picture[2::4, 2::4][:: -1 if number > 2 else 1]  # the ratios grow upwards
        shown += [picture[point].astype(int) for point in points]
    assert np.abs(shown - coloured(np.array(values) / largest).astype(int)).max() < 12  # of 255: the label is rounded
    bar = {row: float(label) for row, label in enumerate(drawn_panels[-1].rows) if label}
    np.testing.assert_allclose([*bar], np.arange(5) / 4 * (len(drawn_panels[-1].rows) - 1), atol=1)
    np.testing.assert_allclose([*bar.values()], largest * np.arange(4, -1, -1) / 4, rtol=0.06)  # two digits
    titles = [re.findall(r'\d+|smaller|larger|coincide', panel.title) for panel in panels]
    assert titles == [['4', 'smaller'], [], ['4', 'larger'], ['coincide'], ['1', '1'], ['3', '3']]
    assert [*filter(None, panels[0].rows)] == ['-3', '0', '3']
    assert [*filter(None, panels[3].rows)] == ['8', '1', '0.125']
    assert [*filter(None, panels[3].columns)] == ['0.125', '1', '8']


def test_layers_whose_geometry_depends_on_boxes_alone():
    first, last = layer(), layer()
    model = nn.ModuleDict(dict(a=first, b=RegionAttention(8, HEADS, geometry='query_dependent'), c=last))
    assert geometry_layers(model) == dict(a=first, c=last)
    assert geometry_layers(model, 'a') == dict(a=first)
    with pytest.raises(ValueError, match='layer must be one of a, c; got b'):
        geometry_layers(model, 'b')
    with pytest.raises(ValueError, match=r"Linear has no mmattn\.RegionAttention with geometry='content_independent'"):
        geometry_layers(nn.Linear(1, 1))


COMPOSED, DECOMPOSED = '\u00c4rger', 'A\u0308rger'  # as typed, and as macOS writes names of files


@pytest.mark.parametrize(('name', 'asked'), [(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED)])
def test_ids_in_another_form_of_unicode(name, asked, tmp_path):
    path = tmp_path / f'{name}.jpg'
    path.touch()
    for each in (name, asked):
        assert picture_paths(tmp_path)[each] == path
    assert find_images([tmp_path]) == {COMPOSED: path}
    with RegionWriter(tmp_path / 'regions') as writer:
        writer.write(name, Regions(torch.ones(1, 3), torch.tensor([[0.0, 0, 4, 5]]), (6, 5)))
    store = RegionStore(tmp_path / 'regions')
    assert asked in store
    assert store[asked].size == store[name].size == (6, 5)
    store.check([asked, name])
    assert store.image_ids == [name]


def test_pictures_by_names_and_numbers(tmp_path):
    names = 'dog.jpg', 'COCO_val2014_000000000042.jpg', '._COCO_val2014_000000000043.jpg', 'a_1.jpg', 'b_1.jpg', '7.png'
    for name in (*names, 'x_7.jpg', 'notes.txt'):
        (tmp_path / name).touch()
    found = picture_paths(tmp_path)
    named = ['dog', 'COCO_val2014_000000000042', 'a_1', 'b_1', '7', 'x_7']
    assert {key: path.name for key, path in found.items()} == {
        **{key: next(name for name in (*names, 'x_7.jpg') if name.startswith(key)) for key in named},
        '42': 'COCO_val2014_000000000042.jpg',
    }
    (tmp_path / 'dog.png').touch()
    with pytest.raises(ValueError, match=r'several pictures of one image: dog\.jpg and dog\.png'):
        picture_paths(tmp_path)
