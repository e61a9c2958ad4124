"""Attention maps of a shipped config's model: captured, drawn, by the tool and during training."""

import itertools
from argparse import ArgumentParser
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import HOOKS, MODELS, init_default_scope
from mmengine.runner import Runner
from PIL import Image

import mmattn.registry  # noqa: F401
from mmattn.engine.command_line import add_config_options
from mmattn.language.layers import BilateralMultiheadAttention
from mmattn.layers import BilateralNonLocal2d, TransformerAttention2d
from mmattn.visualization import (
    AttentionMaps,
    attention_layers,
    attention_maps,
    capture_attention,
    draw_attention_maps,
)
from mmattn.visualization.panels import coloured

from ..engine.test_tools import SMALL
from ..forked_tools import run_command, tool

ROOT = Path(__file__).parents[2]
CONFIGS = {
    'cc': ROOT / 'configs/bi_cc/bi-cc_r18-d8-half_1xb8-50_buildings-256x256.py',
    'nl': ROOT / 'configs/bi_nl/bi-nl_r18-d8-half_1xb8-50_buildings-256x256.py',
    'stock': ROOT / 'configs/bi_nl/nl_r18-d8-half_1xb8-50_buildings-256x256.py',
}
LAYERS = {'cc': 'decode_head.cca', 'nl': 'decode_head.nl_block'}
POINTS = [(0.1, 0.3), (0.6, 0.9)]  # in a map of 5 rows and 6 columns: (1, 0) and (4, 3)


def load(name, **options):
    """A small model's config."""
    cfg = Config.fromfile(CONFIGS[name])
    parser = ArgumentParser()
    add_config_options(parser)
    cfg.merge_from_dict({**parser.parse_args(['--cfg-options', *SMALL]).cfg_options, **options})
    return cfg


def build(name, **options):
    """A model in evaluation mode with weights that make attention sharp, and one image as a data loader gives it."""
    cfg = load(name, **options)
    init_default_scope('mmseg')
    torch.manual_seed(0)
    model = MODELS.build(cfg.model).eval()
    for parameter in model.decode_head.parameters():
        parameter.data.normal_(std=0.3)
    cfg.test_dataloader.update(num_workers=0, persistent_workers=False)
    return model, next(iter(Runner.build_dataloader(cfg.test_dataloader)))


def test_a_layer_may_be_called_with_keywords():
    """An image is captured. A batch without any is not."""
    layer, x = BilateralNonLocal2d(8, window_size=3), torch.randn(1, 8, 6, 9)
    with capture_attention(layer, POINTS) as maps:
        layer(x)
        layer(x=x)
        layer(x=x[:0])
    assert len(maps) == 2
    assert all(torch.equal(weights, maps[1].weights[kind]) for kind, weights in maps[0].weights.items())


@pytest.mark.parametrize(('name', 'runs'), [('nl', 1), ('cc', 2)])
def test_each_run_of_a_layer_is_captured(data_root, name, runs):
    model, data = build(name)
    inputs = model.data_preprocessor(data)['inputs']
    with torch.no_grad():
        expected = model(inputs, mode='tensor')
        with capture_attention(model, POINTS) as maps:
            assert torch.equal(model(inputs, mode='tensor'), expected)
        model(inputs, mode='tensor')  # no longer looked at
    assert [(entry.layer, entry.run) for entry in maps] == [(LAYERS[name], run + 1) for run in range(runs)]
    for entry in maps:
        assert entry.extent == (1, 1)
        assert list(entry.weights) == ['content', 'position', 'bilateral']
        for weights in entry.weights.values():
            assert weights.shape == (2, 5, 6)
            torch.testing.assert_close(weights.sum((1, 2)), torch.ones(2))
            assert not torch.allclose(weights[0], weights[1])  # another query, another map
    if runs == 2:
        assert not torch.allclose(maps[0].weights['bilateral'], maps[1].weights['bilateral'])


@pytest.mark.parametrize(('divisor', 'size'), [(1, (48, 40)), (32, (64, 64))])
def test_image_coordinates_find_their_position(data_root, divisor, size):
    """A criss-cross map is zero off the row and the column of its query. Padding is below the image and right of it."""
    model, data = build('cc', **{'model.data_preprocessor.test_cfg': dict(size_divisor=divisor)})
    maps = attention_maps(model, data, POINTS, LAYERS['cc'])[-1]
    assert maps.extent == (size[0] / 48, size[1] / 40)
    for weights in maps.weights.values():
        for (row, column), nonzero in zip([(1, 0), (4, 3)], weights > 0):
            expected = torch.zeros(size[1] // 8, size[0] // 8, dtype=torch.bool)
            expected[row], expected[:, column] = True, True
            assert torch.equal(nonzero, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('options', 'kinds'),
    [
        (
            {'model.test_cfg': dict(mode='slide', crop_size=(24, 24), stride=(16, 16))},
            ['content', 'position', 'bilateral'],
        ),
        ({'model.decode_head.position': 'none'}, ['content']),
    ],
    ids=['sliding', 'no position'],
)
def test_kinds_of_weights_of_the_whole_image(data_root, options, kinds):
    model, data = build('nl', **options)
    (maps,) = attention_maps(model, data, POINTS)
    assert {kind: weights.shape for kind, weights in maps.weights.items()} == dict.fromkeys(kinds, (2, 5, 6))
    draw_attention_maps(np.zeros((40, 48, 3), np.uint8), POINTS, maps)


def test_layers_without_maps_are_named(data_root):
    model, _ = build('cc')
    assert list(attention_layers(model)) == ['decode_head.cca']
    stock = BilateralNonLocal2d(8, position='none', mode='dot_product')  # without a softmax
    for layers, names in (((model, 'cca'), r'decode_head\.cca; got cca'), ((stock,), 'BilateralNonLocal2d')):
        with pytest.raises(ValueError, match=names):
            attention_layers(*layers)
    hook = HOOKS.build(dict(type='mmattn.AttentionMapHook', layer='cca'))
    with pytest.raises(ValueError, match=r'decode_head\.cca; got cca'):
        hook.before_run(SimpleNamespace(model=model))


def softmax(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def test_single_terms_are_the_softmax_of_eq_2_and_8():
    """Of Transformer attention, in NumPy, key by key: E1 to E4 of one query, the mean over the heads."""
    torch.manual_seed(0)
    layer = TransformerAttention2d(8, num_heads=2, wavelength=50).double()
    for parameter in layer.parameters():
        parameter.data.normal_(std=0.5)
    x, (row, column) = torch.randn(1, 8, 5, 6, dtype=torch.float64), (4, 3)
    with capture_attention(layer, POINTS[1:], kinds=['E4', 'E1', 'E2', 'E3']) as maps:
        layer(x)
    assert list(maps[0].weights) == ['E4', 'E1', 'E2', 'E3']
    p = {name: value.detach().numpy().squeeze() for name, value in layer.named_parameters()}
    z = x[0].numpy().transpose(1, 2, 0)  # (H, W, C)

    def encoding(offset):
        angles = [offset / 50 ** (i / 2) for i in range(2)]  # 4 = C/2 sines and cosines
        return np.array([*np.sin(angles), *np.cos(angles)])

    expected = {f'E{term}': np.zeros((2, 5, 6)) for term in range(1, 5)}
    for head, (i, j) in itertools.product(range(2), itertools.product(range(5), range(6))):
        part = slice(4 * head, 4 * head + 4)
        query, key = (p['query_conv.weight'] @ z[row, column])[part], (p['key_conv.weight'] @ z[i, j])[part]
        place = p['appr_geom_fc_y.weight'] @ encoding(row - i) + p['appr_geom_fc_x.weight'] @ encoding(column - j)
        place = place[part] / np.sqrt(2)
        expected['E1'][head, i, j] = query @ key
        expected['E2'][head, i, j] = query @ place
        expected['E3'][head, i, j] = p['appr_bias'][part] @ key
        expected['E4'][head, i, j] = p['geom_bias'][part] @ place
    for kind, logits in expected.items():
        weights = softmax(logits.reshape(2, 30)).mean(0).reshape(5, 6)
        np.testing.assert_allclose(maps[0].weights[kind][0].numpy(), weights, rtol=1e-5)


@pytest.mark.parametrize(('layer', 'kind'), [('0', 'E2'), ('1', 'E1')])
def test_kinds_that_a_layer_does_not_have(layer, kind):
    model = torch.nn.Sequential(TransformerAttention2d(8, terms='1010'), BilateralNonLocal2d(8))
    with pytest.raises(ValueError, match=f'kinds of {layer} .*{kind}'):
        attention_layers(model, layer, [kind])


def test_sequences_have_no_image_coordinates():
    layer, x = BilateralMultiheadAttention(8, 2), torch.randn(1, 6, 8)
    with capture_attention(layer, POINTS) as maps:
        layer(x, x, x)
    assert not maps


# The figure.


def colourful(picture):
    """Pixels that are not grey."""
    return np.ptp(picture.astype(int), axis=-1) > 20


@pytest.mark.parametrize('options', [{}, dict(threshold=0.6)], ids=str)
def test_rows_are_queries_and_columns_are_kinds(drawn_panels, options):
    """With the largest weight of each map, the query as a dot and in pixels, the layer and the pass."""
    weights = torch.rand(2, 2, 3, 4, generator=torch.Generator().manual_seed(0))  # of two kinds, for two queries
    maps = AttentionMaps('neck.1', 2, dict(zip(('content', 'position'), weights)), (2.0, 1.0))
    draw_attention_maps(np.zeros((60, 80, 3), np.uint8), POINTS, maps, **options)
    threshold = options.get('threshold', 0.02)
    rows, bar = np.reshape(drawn_panels[1:7], (2, 3)), drawn_panels[-1]  # after the title
    assert [panel.title for panel in rows[0]] == ['query', 'content', 'position']
    assert [row[0].caption for row in rows] == ['(8, 18)', '(48, 54)']
    assert f' {threshold} ' in bar.side
    for query, (row, (x, y)) in enumerate(zip(rows, POINTS)):
        for panel in row:  # 220 × 165 pixels
            red = np.argwhere((panel.picture[..., 0] > 230) & (panel.picture[..., 1] < 30))
            np.testing.assert_allclose(red.mean(0), [165 * y, 220 * x], atol=2)
        for kind, panel in enumerate(row[1:]):
            largest = weights[kind, query].max()
            assert f'{largest:.2g}' in panel.caption
            share = (weights[kind, query] / largest).numpy()[:, :2]  # the rest is padding
            expected = np.rint(0.65 * coloured(share)) * (share > threshold)[..., None]
            np.testing.assert_array_equal(panel.picture[27::55, 55::110], expected)


def figure(points, weights, threshold=0.02, boxes=()):
    kinds = ('content', 'position', 'bilateral')
    maps = AttentionMaps('layer', 1, dict.fromkeys(kinds, weights))
    return draw_attention_maps(np.zeros((60, 80, 3), np.uint8), points, maps, threshold, boxes)


def test_a_box_marks_its_area_on_the_maps_alone():
    def yellow(*boxes):
        picture = figure([(0.1, 0.1)], torch.tensor([[[1.0, 0, 0, 0]]]), 0.5, boxes).astype(int)
        return (picture[..., :2].min(-1) > 200) & (picture[..., 2] < 60)

    drawn = np.argwhere(yellow((40, 20, 60, 35)) & ~yellow())  # without the bar of the colours
    columns = np.unique(drawn[:, 1])
    starts = columns[np.diff(columns, prepend=-100) > 40]
    assert len(starts) == 3  # maps
    across = np.ptp(columns[columns < starts[1]])
    assert np.ptp(drawn[:, 0]) == pytest.approx(0.75 * across, abs=4)


# The tool.


def test_the_tool_writes_one_picture(command, tmp_path):
    out = tmp_path / 'new' / 'maps.png'
    queries = '--query', '5,12', '--query', '47,39'
    boxes = '--box', '10,5,40,30'
    done = run_command(tool('visualization/attention_maps.py', *command('cc'), *queries, *boxes, '--out', out))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(out)
    assert [path.name for path in out.parent.iterdir()] == ['maps.png']
    picture = np.asarray(Image.open(out).convert('RGB'))
    assert picture.shape[1] > picture.shape[0] > 300
    assert colourful(picture).sum() > 1000


# The hook.

BACKENDS = ['LocalVisBackend', *(['TensorboardVisBackend'] if find_spec('tensorboard') else [])]


def test_the_hook_draws_in_training(data_root, tmp_path):
    cfg = load('cc', **{'train_cfg.max_iters': 3, 'train_cfg.val_interval': 1})
    cfg.work_dir, cfg.experiment_name, cfg.log_level = str(tmp_path), 'attention_maps', 'ERROR'
    # A name of its own: mmengine hands out the visualizer that an earlier test made under the same name.
    cfg.visualizer.update(name='attention_maps', vis_backends=[dict(type=name) for name in BACKENDS])
    cfg.custom_hooks = [dict(type='mmattn.AttentionMapHook', points=POINTS, interval=2, num_images=1)]
    for loader in (cfg.val_dataloader, cfg.test_dataloader):
        loader.update(num_workers=0, persistent_workers=False)
    Runner.from_cfg(cfg).train()
    pictures = {path.name: np.asarray(Image.open(path)) for path in tmp_path.rglob('attention_maps_*.png')}
    assert sorted(pictures) == ['attention_maps_tile_0_1.png', 'attention_maps_tile_0_3.png']
    assert all(colourful(picture).sum() > 1000 for picture in pictures.values())
    if len(BACKENDS) > 1:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        (event,) = tmp_path.rglob('events.*')
        events = EventAccumulator(str(event)).Reload()
        assert [image.step for image in events.Images('attention_maps_tile_0')] == [1, 3]
