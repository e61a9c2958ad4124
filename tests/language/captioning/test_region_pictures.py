"""Attention of words to regions: the weights of the layer for its inputs; the page that shows it."""

import re
from base64 import b64decode
from io import BytesIO

import pytest
import torch
from PIL import Image

from mmattn.language.captioning import CaptionEnsemble
from mmattn.language.captioning.region_pictures import caption_figure, region_attention, region_layers
from mmattn.language.regions.image_regions import Regions
from mmattn.registry import MODELS

from ..failing import failing
from ..translation.test_attention_pictures import rows
from ..world import ETA, SAN, random_model

TOKENS = torch.tensor([9, 4, 17, 9, 2])
STACKED = dict(ETA, entangled=dict(type='mmattn.EntangledAttention', mode='stacked_s'))
PARALLEL = dict(ETA, entangled=dict(type='mmattn.EntangledAttention', mode='parallel'))


def inputs():
    generator = torch.Generator().manual_seed(0)
    corner = torch.rand(1, 5, 2, generator=generator, dtype=torch.float64) * 20
    return dict(
        features=torch.randn(1, 5, 6, generator=generator, dtype=torch.float64),
        boxes=torch.cat([corner, corner + 7], 2),
        attributes=torch.tensor([[6, 11, 20]]),
    )


def queries_of_the_last_layer(model, memory):
    """What the cross-attention of the last layer attends from, layer by layer."""
    previous = torch.cat([torch.tensor([2]), TOKENS[:-1]])[None]
    x = model.embedding(previous)
    for layer in model.decoder.layers[:-1]:
        x = layer(x, memory, None, (None, None) if isinstance(memory, tuple) else None)
    last = model.decoder.layers[-1]
    return last.attention_norm(x + last.self_attention(x))


@torch.no_grad()
@pytest.mark.parametrize(
    ('config', 'guided'),
    [
        (SAN, None),
        (dict(ETA, sources='visual'), None),
        (ETA, 'semantic_guide'),
        (STACKED, 'query'),
        (PARALLEL, 'query'),
    ],
)
def test_weights_are_those_of_the_layer_for_its_inputs(config, guided):
    model = random_model(config).double()
    memory, _ = model.encode(inputs())
    query, regions = queries_of_the_last_layer(model, memory), memory
    ((_, layer),) = region_layers(model)
    if guided is not None:
        regions, attributes = memory
        sublayers = model.decoder.layers[-1].cross_attention.sublayers
        if guided == 'semantic_guide':  # v attends from g_s
            query = sublayers['semantic_guide'](query, attributes, None)
            assert layer is sublayers['visual'].attention
        else:
            assert layer is sublayers['visual_guide'].attention
    found = region_attention(model, inputs(), TOKENS)
    torch.testing.assert_close(found, rows(layer, query, 'content', regions).mean(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.sum(1), torch.ones(5, dtype=torch.float64), rtol=0, atol=1e-12)


def test_weights_of_an_ensemble_are_the_mean_over_the_models_that_read_regions():
    configs = [dict(ETA, sources='semantic'), dict(ETA, sources='visual'), ETA]
    ensemble = CaptionEnsemble(configs).double().eval()
    expected = [region_attention(member, inputs(), TOKENS) for member in ensemble.members[1:]]
    torch.testing.assert_close(region_attention(ensemble, inputs(), TOKENS), sum(expected) / 2, rtol=0, atol=1e-15)


def test_boxes_and_words_of_a_figure():
    """The strongest region of a word comes first; equal weights keep the order of the regions."""
    boxes = torch.tensor([[0.0, 0.0, 10.0, 20.0], [5.0, 6.0, 25.0, 9.5], [1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 60.0, 40.0]])
    weights = torch.tensor([[0.1, 0.6, 0.2, 0.1], [0.25, 0.25, 0.25, 0.25]])
    picture = Image.new('RGBA', (2048, 40), (255, 0, 0, 255))
    regions = Regions(torch.zeros(4, 8), boxes, (4096, 80))
    text = caption_figure(picture, regions, ['<b>', 'dog'], weights, 'A&B', ['a "dog"', 'x < y'])
    rects = re.findall(
        r'<rect class="(.*?)" x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)" style="--share: (.*?)"/>', text
    )
    assert rects == [
        ('w0', '5.0', '6.0', '20.0', '3.5', '1.00'),
        ('w0 further', '1.0', '2.0', '2.0', '2.0', '0.33'),
        ('w0 further', '0.0', '0.0', '10.0', '20.0', '0.17'),
        ('w1', '0.0', '0.0', '10.0', '20.0', '1.00'),
        ('w1 further', '5.0', '6.0', '20.0', '3.5', '1.00'),
        ('w1 further', '1.0', '2.0', '2.0', '2.0', '1.00'),
    ]
    assert '<span class="w0" tabindex="0" title="0.60, 0.20, 0.10">&lt;b&gt;</span>' in text
    assert '<svg viewBox="0 0 4096 80"' in text
    assert '<li>a &quot;dog&quot;</li><li>x &lt; y</li>' in text
    assert '<small>A&amp;B</small>' in text
    (encoded,) = re.findall('<image href="data:image/jpeg;base64,(.*?)"', text)
    with Image.open(BytesIO(b64decode(encoded))) as shown:
        assert (shown.size, shown.mode) == ((512, 10), 'RGB')
    assert '<rect' not in caption_figure(picture, regions, [], weights[:0])


PLAIN = dict(type='mmattn.RegionAttention')
REGIONS = Regions(torch.zeros(4, 8), torch.rand(4, 4), (4096, 80))


test_failures = failing(
    (lambda: region_layers(MODELS.build(dict(ETA, sources='semantic'))), 'no regions'),
    (lambda: region_layers(MODELS.build(dict(SAN, encoder_attention=PLAIN, stack='Torch'))), 'attention_weights'),
    (lambda: caption_figure(Image.new('RGB', (9, 9)), REGIONS, ['dog'], torch.zeros(2, 4)), 'weights'),
)
