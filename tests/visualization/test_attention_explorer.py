"""The attention explorer: its page has the operators' own values, a bounded size, and works in a browser."""

import json
import os
import re
import zlib
from base64 import b64decode
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from mmattn.layers import BilateralNonLocal2d, LocalBilateralAttention, TransformerAttention2d
from mmattn.visualization import AttentionRun, attention_explorer, attention_maps, attention_runs

from ..forked_tools import run_command, tool
from .browser import Browser
from .test_attention_maps import LAYERS, build

CLASSES, PALETTE = ('road', '</script>'), [[128, 64, 128], [0, 200, 0]]
IMAGE = np.random.default_rng(0).integers(0, 256, (40, 48, 3), np.uint8)
LABELS = np.repeat([[0], [1]], 20, 0).repeat(48, 1)


def layer_run(layer, channels=8, size=(5, 6), extent=(1.0, 1.0)):
    torch.manual_seed(0)
    for parameter in layer.parameters():
        parameter.data.normal_(std=0.5)
    return AttentionRun('layer', 1, layer.eval(), torch.randn(1, channels, *size), extent)


def page_of(runs, **options):
    return attention_explorer(IMAGE, LABELS, CLASSES, PALETTE, runs, **options)


def data_of(page):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(text)


def maps_of(data, run=0):
    """The weights in a page, ``(heads, Q, H, W)`` of each kind, and the error that their 8 bits make."""
    entry = data['runs'][run]
    shape = (data['rows'] * data['columns'], entry['height'], entry['width'])
    found = {}
    for kind, heads in entry['maps'].items():
        levels = [np.frombuffer(zlib.decompress(b64decode(head['levels'])), np.uint8).reshape(shape) for head in heads]
        largest = np.array([head['largest'] for head in heads])[..., None, None]
        found[kind] = torch.from_numpy(np.stack(levels) / 255 * largest), largest.max() * (0.5 / 255 + 2e-6)
    return found


def points_of(data):
    return [
        ((x + 0.5) / data['columns'], (y + 0.5) / data['rows'])
        for y in range(data['rows'])
        for x in range(data['columns'])
    ]


# The values.


@pytest.mark.parametrize(
    'layer',
    [
        BilateralNonLocal2d(8, window_size=5),
        BilateralNonLocal2d(8, position='none'),
        LocalBilateralAttention(8, num_heads=2),
        TransformerAttention2d(8, num_heads=2),
        TransformerAttention2d(8, num_heads=4, terms='0010'),
        TransformerAttention2d(8, num_heads=1, spatial_range=3),
    ],
    ids=['bi-nl', 'nl', 'ba', '1111', '0010', 'range'],
)
def test_the_values_are_the_layers_own(layer):
    run = layer_run(layer)
    data = data_of(page_of([run], grid=4))
    found = maps_of(data)
    queries = torch.tensor([[int(y * 5), int(x * 6)] for x, y in points_of(data)])
    assert tuple(found) == layer.attention_kinds
    for kind, (weights, tolerance) in found.items():
        expected = layer.attention_weights(run.feature, queries=queries, kind=kind)[0]
        torch.testing.assert_close(expected.sum((2, 3)), torch.ones(expected.shape[:2]))
        if len(expected) > 1:
            expected = torch.cat([expected.mean(0, keepdim=True), expected])
        torch.testing.assert_close(weights, expected.double(), rtol=0, atol=tolerance)


@pytest.mark.parametrize(('name', 'runs'), [('nl', 1), ('cc', 2)])
def test_the_values_are_the_models_own(data_root, name, runs):
    model, data = build(name, **{'model.data_preprocessor.test_cfg': dict(size_divisor=32)})
    page = data_of(page_of(attention_runs(model, data), grid=6))
    assert [run['name'] for run in page['runs']] == [LAYERS[name], f'{LAYERS[name]}, pass 2'][:runs]
    for run, expected in enumerate(attention_maps(model, data, points_of(page))):
        assert page['runs'][run]['extent'] == list(expected.extent) == [64 / 48, 64 / 40]
        for kind, (weights, tolerance) in maps_of(page, run).items():
            torch.testing.assert_close(weights[0], expected.weights[kind].double(), rtol=0, atol=tolerance)


def test_many_queries_at_once_are_as_few(monkeypatch):
    run = layer_run(LocalBilateralAttention(8, num_heads=2))
    whole = page_of([run], grid=5)
    monkeypatch.setattr('mmattn.ops.chunks.CHUNK_BYTES', 1000)
    assert page_of([run], grid=5) == whole


def test_the_image_and_the_prediction_are_in_the_page():
    data = data_of(page_of([layer_run(BilateralNonLocal2d(8))], title='</script><script>', grid=5))
    image, prediction = (
        Image.open(BytesIO(b64decode(data[name].partition('base64,')[2]))) for name in ('image', 'prediction')
    )
    assert image.size == prediction.size == (data['width'], data['height']) == (48, 40)
    assert np.array_equal(np.asarray(prediction.convert('RGB')), np.array(PALETTE, np.uint8)[LABELS])
    assert (data['columns'], data['rows']) == (5, 4)
    assert data['labels'] == [0] * 10 + [1] * 10
    assert data['title'] == '</script><script>'
    assert data['classes'] == {'0': ['road', 128, 64, 128], '1': ['</script>', 0, 200, 0]}


# The size.


@pytest.mark.parametrize('max_bytes', [50_000, 100_000])
def test_the_size_is_bounded(max_bytes):
    run = layer_run(BilateralNonLocal2d(8, window_size=5), size=(20, 24))
    page = page_of([run], grid=20, max_bytes=max_bytes)
    assert 0.6 * max_bytes < len(page.encode()) <= max_bytes
    assert 1 < data_of(page)['columns'] < 20


@pytest.mark.parametrize(
    ('height', 'width', 'grid', 'shape'), [(40, 48, 1, (1, 1)), (3, 60, 4, (4, 1)), (60, 3, 4, (1, 4))]
)
def test_a_page_has_at_least_one_query_along_each_side(height, width, grid, shape):
    image = np.zeros((height, width, 3), np.uint8)
    run = layer_run(BilateralNonLocal2d(8))
    data = data_of(attention_explorer(image, image[..., 0], CLASSES, PALETTE, [run], grid=grid))
    assert (data['columns'], data['rows']) == shape


class Noise(AttentionRun):
    """Weights that cannot be compressed, of one head and one kind."""

    kinds = ('content',)

    def weights(self, points, kind):
        return torch.rand(1, len(points), *self.feature.shape[-2:])


def noisy(side):
    return Noise('layer', 1, None, torch.zeros(1, 1, side, side))


def test_by_default_a_page_has_24_queries_along_the_longer_side_in_4_mib(capsys):
    data = data_of(page_of([noisy(2)]))
    assert (data['columns'], data['rows'], data['title']) == (24, 20, '')
    page = page_of([noisy(200)])  # 52 KiB a query
    assert 3.5 * 2**20 < len(page.encode()) <= 4 * 2**20
    assert capsys.readouterr().out == ''


def test_a_large_image_is_made_smaller():
    image = np.zeros((1500, 3000, 3), np.uint8)
    run = layer_run(BilateralNonLocal2d(8))
    data = data_of(attention_explorer(image, image[..., 0], CLASSES, PALETTE, [run], grid=2))
    assert (data['width'], data['height']) == (3000, 1500)
    assert Image.open(BytesIO(b64decode(data['image'].partition('base64,')[2]))).size == (1024, 512)


# What is wrong is said.


@pytest.mark.parametrize(
    ('labels', 'feature', 'options', 'name'),
    [
        (LABELS, 0, dict(grid=0), 'grid'),
        (LABELS[:3, :3], 0, {}, 'labels'),
        (LABELS, torch.nan, {}, 'content .*layer'),
        (LABELS, 0, dict(max_bytes=10_000), '10000 bytes'),
    ],
)
def test_wrong_arguments_are_named(labels, feature, options, name):
    run = layer_run(BilateralNonLocal2d(8))
    run.feature[:] += feature
    with pytest.raises(ValueError, match=name):
        attention_explorer(IMAGE, labels, CLASSES, PALETTE, [run], **options)


def test_the_tool_writes_one_file(command, tmp_path):
    out = tmp_path / 'new' / 'page.html'
    done = run_command(tool('visualization/attention_explorer.py', *command('cc'), '--grid', '3', '--out', out))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rf'{out}: 0\.\d\d MiB', done.stdout.splitlines()[-1])
    assert [path.name for path in out.parent.iterdir()] == ['page.html']
    data = data_of(out.read_text(encoding='utf-8'))
    assert data['title'] == 'small · tile_0.png'
    assert (data['columns'], data['rows']) == (3, 2)


# The page in a browser.


@pytest.fixture
def browser(tmp_path):
    if os.environ.get('MMATTN_BROWSER_TESTS') != '1':
        pytest.skip('set MMATTN_BROWSER_TESTS=1 to drive Chromium')
    with Browser(tmp_path / 'profile') as browser:
        yield browser


PIXELS = "return document.querySelector('#stage canvas').toDataURL()"
SAID = "return document.querySelector('#said').textContent"
SHOWN = f"{SAID}.startsWith('Query')"


def open_page(browser, path, *layers):
    """Open the page of layers; return its text."""
    path.write_text(page_of([layer_run(layer) for layer in layers], grid=6), encoding='utf-8')
    browser.open(path.as_uri())
    browser.wait_for(SHOWN)
    return path.read_text(encoding='utf-8')


def test_a_browser_shows_the_maps(browser, tmp_path):
    page = tmp_path / 'page.html'
    open_page(browser, page, BilateralNonLocal2d(8, window_size=5), TransformerAttention2d(8, num_heads=2))
    seen = [browser.run(PIXELS)]

    def changed():
        seen.append(browser.run(PIXELS))
        return seen[-1] != seen[-2]

    browser.hover('#stage', 0.1, 0.1)
    assert changed()
    assert browser.run(SAID).startswith('Query at x 4, y 4: predicted road. Largest bilateral')
    browser.hover('#stage', 0.9, 0.7)
    assert changed()
    assert browser.run(SAID).startswith('Query at x 44, y 28: predicted </script>.')
    browser.press('#stage', 'ArrowLeft')
    assert changed()
    assert browser.run(SAID).startswith('Query at x 36, y 28:')
    browser.press('#stage', '1')
    assert changed()
    assert 'Largest content weight' in browser.run(SAID)
    assert browser.run("return document.querySelector('[name=kind]:checked').value") == 'content'
    browser.press('#stage', 'h')
    browser.wait_for(f"return ({PIXELS.removeprefix('return ')}) !== '{seen[-1]}'")
    assert browser.run("return document.querySelector('#head').selectedOptions[0].text") == '1'
    screenshot = np.asarray(Image.open(BytesIO(browser.screenshot())).convert('RGB'))
    assert screenshot.std() > 10
    assert browser.console() == []
    assert browser.requests() == [page.as_uri()]


def test_the_canvas_holds_the_weights(browser, tmp_path):
    """With nothing hidden and opaque, a pixel of the canvas is the colour of its weight."""
    data = data_of(open_page(browser, tmp_path / 'page.html', BilateralNonLocal2d(8, window_size=5)))
    browser.run(
        "for (const [id, value] of [['opacity', 100], ['threshold', 0]]) {"
        'document.getElementById(id).value = value;'
        "document.getElementById(id).dispatchEvent(new Event('input')); }"
    )
    browser.hover('#stage', 0.01, 0.01)
    url = browser.run(PIXELS)
    pixels = np.asarray(Image.open(BytesIO(b64decode(url.partition('base64,')[2]))))
    (head,) = data['runs'][0]['maps']['bilateral']
    levels = np.frombuffer(zlib.decompress(b64decode(head['levels'])), np.uint8)[:30].reshape(5, 6)
    colours = np.frombuffer(b64decode(data['colours']), np.uint8).reshape(256, 3)
    assert np.array_equal(pixels[..., :3], colours[levels])
    assert (pixels[..., 3] == 255).all()
