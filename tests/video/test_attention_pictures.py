"""Attention of SST on frames, against a softmax in NumPy over the axes of a voxel; the tool's picture and errors."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from mmattn.video.attention_pictures import ClipAttention, clip_attention, draw_clip_attention
from mmattn.video.session import ClipSession, Frame
from mmattn.visualization.panels import coloured

from ..forked_tools import run_command, tool
from . import clips
from .clips import SIZE, squares
from .test_sst import GRID, STRIDED, build


def frames_of(numbers=(0, 2, 5)):
    mask, rng = squares(0, 5, 9), np.random.default_rng(0)
    return [Frame(n, rng.integers(0, 256, (*mask.shape, 3), np.uint8), None if n else mask) for n in numbers]


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def test_weights_of_the_first_object_over_the_axes_of_the_query():
    """The frame is padded to whole cells, and the query at (0.6, 0.4) of frame 2 is a cell of the padded map."""
    model = build(attention=dict(GRID, spatial_position='none', temporal_position='none'))
    frames, inputs = frames_of(), []
    layer = model.decoder[-1].attention
    with layer.register_forward_pre_hook(lambda module, args: inputs.append(args)):
        expected_ids = [ids for _, ids in ClipSession(model).segment(frames)]
    assert len(inputs) == 2  # two objects
    found = clip_attention(model, frames, (1, 0.6, 0.4))
    assert not layer._forward_pre_hooks  # the layer is as it was
    assert found.layer == 'decoder.1.attention'
    assert list(found.weights) == ['content']  # without positions
    assert all(map(np.array_equal, found.ids, expected_ids))

    query, key, _ = (x[0].detach().numpy() for x in inputs[0])  # (T, h, w, C)
    height, width = frames[0].image.shape[:2]
    pad = model.data_preprocessor.pad_size_divisor
    sides = height + -height % pad, width + -width % pad
    assert found.extent == (sides[1] / width, sides[0] / height)
    cell = sides[0] // query.shape[1]
    p = 1, int(0.4 * height / cell), int(0.6 * width / cell)
    w = {name: x.detach().numpy() for name, x in layer.named_parameters()}
    q = w['query_proj.weight'] @ query[p] + w['query_proj.bias']
    there = [r for r in np.ndindex(query.shape[:3]) if sum(a != b for a, b in zip(p, r)) < 2]
    k = np.stack([w['key_proj.weight'] @ key[r] + w['key_proj.bias'] for r in there])
    expected = np.zeros(query.shape[:3])
    for part in np.split(np.arange(16), 2):  # the heads
        for r, weight in zip(there, softmax(k[:, part] @ q[part])):
            expected[r] += weight / 2
    np.testing.assert_allclose(found.weights['content'].numpy(), expected, atol=1e-5)
    assert {tuple(r) for r in found.reached[0].nonzero().tolist()} == set(there)
    assert [bool(step.all()) for step in found.reached] == [False, False, True]


def test_both_attentions_of_strided_layers():
    model = build(attention=dict(STRIDED, step=2))
    frames = frames_of()
    found = clip_attention(model, frames, (2, 0.0, 0.99), 'encoder.0.attention')
    assert list(found.weights) == ['local', 'strided']
    shape = found.reached[0].shape
    local, strided = (weights > 0 for weights in found.weights.values())
    at = 2, int(0.99 * shape[1] / found.extent[1]), 0
    for r in np.ndindex(*shape):
        assert local[r] == all(a // 2 == b // 2 for a, b in zip(at, r))
        assert strided[r] == all((a - b) % 2 == 0 for a, b in zip(at, r))
    assert len(found.reached) == 1  # one layer connects all voxels
    assert found.reached[0].all()
    only = clip_attention(model, frames, (2, 0.0, 0.99), 'encoder.0.attention', ['strided'])
    assert torch.equal(only.weights['strided'], found.weights['strided'])
    assert draw_clip_attention(frames, (2, 0.0, 0.99), found).ndim == 3


def test_rows_and_columns_of_the_picture(drawn_panels):
    frames = [Frame(n, np.zeros((60, 68, 3), np.uint8), None if n else np.zeros((60, 68), np.uint8)) for n in (0, 2, 5)]
    weights = dict(zip('ab', torch.rand(2, 3, 2, 3, generator=torch.Generator().manual_seed(0)) * 0.5))
    reached = [torch.arange(18).view(3, 2, 3) < count for count in (4, 18)]
    attention = ClipAttention('decoder.1', weights, reached, [frames[0].mask] * 3, (1.0, 1.0))
    draw_clip_attention(frames, (1, 0.5, 0.25), attention, 0.1)
    rows, bar = np.reshape(drawn_panels[1:16], (5, 3)), drawn_panels[-1]
    assert [panel.title for panel in rows[0]] == ['frame 0, given', 'frame 2', 'frame 5']
    objects, *kinds, first, second = (row[0].rows[0] for row in rows)
    assert objects == 'objects'
    for (kind, values), label in zip(weights.items(), kinds, strict=True):
        assert label.split() == [kind, 'weights', 'largest', f'{values.max():.2g}']
    assert [re.search(r'\d', label).group() for label in (first, second)] == ['1', '2']
    shares = [values / values.max() * (values >= 0.1 * values.max()) for values in weights.values()]
    for row, values in zip(rows[1:], [*shares, *(step.float() for step in reached)]):
        for panel, value in zip(row, values.numpy()):  # 170 × 150 pixels
            np.testing.assert_array_equal(panel.picture[70::75, 10::57], colours_on_black(value))
    red = [[(panel.picture == (255, 0, 0)).all(-1).any() for panel in row] for row in rows]
    assert red == [[False, True, False]] * 5  # the dot
    assert '0.1 ' in bar.side


def colours_on_black(shares):
    return np.where(shares[..., None] > 0, np.rint(0.65 * coloured(shares)), 0)


@pytest.fixture
def call(tmp_path, small_sst):
    """``call(options)`` draws a clip of 9 frames with the small SST."""
    clips.clip(tmp_path, 'a', [squares(p, 5, 9) for p in range(9)], masked=(0,))
    inputs = tmp_path / 'JPEGImages/a', '--mask', tmp_path / 'Annotations/a/00000.png', '--device', 'cpu'

    def call(options):
        words = *small_sst, *inputs, '--out', tmp_path / 'clip.png', *options.split()
        return run_command(tool('visualization/attention_maps.py', *words))

    return call


def test_the_tool_draws_a_column_per_frame(call, tmp_path):
    widths = []
    for count in (2, 4):
        done = call(f'--query 10,8@3 --frames {count}')
        assert done.returncode == 0, done.stderr
        widths.append(Image.open(tmp_path / 'clip.png').width)
    assert widths[1] - widths[0] == 2 * (170 + 10)


@pytest.mark.parametrize(
    ('options', 'said'),
    [
        ('--query 10,8', 'x,y@frame'),
        ('--query 10,8@9', 'no frame 9'),
        (f'--query {SIZE[1]},0@1', f'{SIZE[1]},0'),
        ('--query 1,1@1 --kinds local', 'content, position, bilateral; got local'),
    ],
)
def test_the_tool_says_what_is_wrong(call, options, said):
    assert said in call(options).stderr
