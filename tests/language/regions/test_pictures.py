"""Pictures: numbers of boxes, geometric weights φ¹ pair by pair in NumPy (Eq. 8, 9 and 11), pictures by their ids."""

import re

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from torch import nn

from mmattn.language.layers import RegionAttention
from mmattn.language.regions.box_pictures import BOX_COLOURS, _free_place, draw_boxes
from mmattn.language.regions.geometry_pictures import geometric_weights, geometry_figure, geometry_layers
from mmattn.language.regions.image_inputs import picture_paths

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


def test_what_is_drawn():
    """Each panel: the mean over the heads at the place or the ratio of its axes; one colour scale for all."""
    attention = layer()
    panels = geometry_figure({'encoder.0': attention}).axes[:6]
    meshes = [axis.collections[0] for axis in panels]
    for number, mesh in enumerate(meshes):
        values = mesh.get_array().reshape(61, 61)
        for row, column in ((0, 0), (30, 30), (12, 45), (60, 7)):
            x, y = column / 30 - 1, row / 30 - 1
            if number < 3:
                ratio = (4.0, 1.0, 0.25)[number]
                other = 3 * x, 3 * y, 1 / ratio, 1 / ratio
            else:
                far = (0.0, 1.0, 3.0)[number - 3]
                other = far, far, 8**-x, 8**-y
            expected = literal(attention, (0.0, 0.0, 1.0, 1.0), other).mean()
            assert values[row, column] == pytest.approx(expected, rel=1e-5, abs=1e-9)
    titles = [re.findall(r'\d+|smaller|larger|coincide', axis.get_title()) for axis in panels]
    assert titles == [['4', 'smaller'], [], ['4', 'larger'], ['coincide'], ['1', '1'], ['3', '3']]
    assert {mesh.get_clim() for mesh in meshes} == {(0, max(mesh.get_array().max() for mesh in meshes))}


def test_layers_whose_geometry_depends_on_boxes_alone():
    first, last = layer(), layer()
    model = nn.ModuleDict(dict(a=first, b=RegionAttention(8, HEADS, geometry='query_dependent'), c=last))
    assert geometry_layers(model) == dict(a=first, c=last)
    assert geometry_layers(model, 'a') == dict(a=first)
    with pytest.raises(ValueError, match='layer must be one of a, c; got b'):
        geometry_layers(model, 'b')
    with pytest.raises(ValueError, match=r"Linear has no mmattn\.RegionAttention with geometry='content_independent'"):
        geometry_layers(nn.Linear(1, 1))


PICTURE = (60, 40)


def test_numbers_of_equal_boxes_do_not_cover_each_other():
    placed = []
    for _ in range(6):
        placed.append(_free_place((10, 10, 40, 30), PICTURE, 3.0, placed))
    for i, (x, y) in enumerate(placed):
        assert 0 <= x <= PICTURE[0] - 3
        assert 0 <= y <= PICTURE[1] - 3
        assert all(max(abs(x - a), abs(y - b)) > 3 for a, b in placed[:i])


def test_numbers_are_at_their_boxes_in_their_colours():
    axis = Figure().subplots()
    boxes = [(5, 10, 15, 20), (30, 10, 50, 30), (20, 30, 40, 40)]
    draw_boxes(axis, None, PICTURE, boxes)
    numbers = {text.get_text(): text for text in axis.texts}
    assert {*numbers} == {'1', '2', '3'}
    for number, ((left, top, right, bottom), colour) in enumerate(zip(boxes, BOX_COLOURS), 1):
        text = numbers[str(number)]
        x, y = text.get_position()
        assert left <= x <= right
        assert top - 4 <= y <= bottom
        assert text.get_bbox_patch().get_facecolor() == to_rgba(colour)


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
