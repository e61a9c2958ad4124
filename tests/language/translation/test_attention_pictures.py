"""Attention of a sentence: the weights of the layers for their inputs; tables with their labels."""

import numpy as np
import torch
from torch.nn import functional as F

from mmattn.language.translation.attention_pictures import (
    SentenceAttention,
    attention_parts,
    draw_sentence_attention,
    sentence_attention,
)
from mmattn.language.translation.inferencer import TranslationInferencer
from mmattn.language.translation.transformer import TranslationTransformer
from mmattn.visualization.panels import coloured

from ..failing import failing
from ..world import TRANSLATOR, random_model

SOURCE = torch.tensor([4, 9, 30, 11, 8, 40, 2])
TARGET = torch.tensor([17, 5, 60, 33, 2])


def rows(attention, x, kind, memory=None):
    """The weights of all queries of a sequence, by the layer, whose weights are tested with the layers."""
    keys = x if memory is None else memory
    return attention.attention_weights(x, keys, keys, queries=torch.arange(x.shape[1])[:, None], kind=kind)[0]


@torch.no_grad()
def test_weights_are_those_of_the_layers_for_their_inputs():
    model = random_model(TRANSLATOR).double()
    assert [*attention_parts(model, 2)] == [
        'encoder.layers.1.self_attention.0',
        'decoder.layers.1.self_attention.0',
        'decoder.layers.1.cross_attention',
    ]
    found = sentence_attention(model, SOURCE, TARGET, layer=1)
    assert [each.part for each in found] == ['encoder self-attention', 'decoder self-attention', 'cross-attention']
    x = model.embedding(SOURCE[None])
    y = model.embedding(F.pad(TARGET[None, :-1], (1, 0), value=2))
    own, layer = model.encoder.layers[0].self_attention[0], model.decoder.layers[0]
    for kind in ('content', 'position', 'bilateral'):
        torch.testing.assert_close(found[0].weights[kind], rows(own, x, kind), rtol=0, atol=1e-12)
        torch.testing.assert_close(found[1].weights[kind], rows(layer.self_attention[0], y, kind), rtol=0, atol=1e-12)
    memory, _ = model.encode(SOURCE[None])
    z = layer.attention_norm(y + layer.self_attention(y))
    assert [*found[2].weights] == ['content']
    torch.testing.assert_close(
        found[2].weights['content'], rows(layer.cross_attention, z, 'content', memory), rtol=0, atol=1e-12
    )
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert [each.layer[:16] for each in sentence_attention(model, SOURCE, TARGET)] == [
        'encoder.layers.3',
        'decoder.layers.3',
        'decoder.layers.3',
    ]


def test_several_layers_and_none_in_a_sublayer():
    model = random_model(
        dict(
            TRANSLATOR,
            encoder_attention=[dict(type='mmattn.DynamicConv1d'), dict(type='mmattn.TransformerAttention1d')],
            decoder_attention=None,
        )
    )
    found = sentence_attention(model, SOURCE, TARGET)
    assert [(each.part, [*each.weights]) for each in found] == [
        ('encoder self-attention', ['content', 'position', 'bilateral']),
        ('cross-attention', ['content']),
    ]
    for each in found:
        for weights in each.weights.values():
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))


def test_the_picture_has_the_weights_and_the_pieces(drawn_panels):
    attention = sentence_attention(random_model(TRANSLATOR), SOURCE, TARGET)
    source = ['$x$', 'do@@', 'g', 'ä', '_', '中', '</s>']
    target = ['ein', 'hu@@', 'nd', '.', '</s>']
    drawn = draw_sentence_attention(attention, source, target)
    rows = np.reshape(drawn_panels[1:], (7, 4))  # after the heading
    tables = [table.numpy() for entry in attention for weights in entry.weights.values() for table in weights]
    for panel, table in zip(rows.flat, tables, strict=True):
        height, width = panel.picture.shape[0] / table.shape[0], panel.picture.shape[1] / table.shape[1]
        y, x = ((np.arange(count) + 0.5) * side for count, side in zip(table.shape, (height, width)))
        shown = panel.picture[y.astype(int)[:, None], x.astype(int)]
        np.testing.assert_array_equal(shown, coloured(table / table.max(1, keepdims=True)))
        assert panel.title.endswith(f'largest {table.max():.2g}')
    assert [rows[row, 0].rows for row in (0, 3, 6)] == [source, target, target]
    assert [rows[row, 0].columns for row in (2, 5, 6)] == [source, ['</s>', *target[:-1]], source]
    assert not any(rows[row, 0].columns for row in (0, 1, 3, 4))
    below = sum(panel.picture.shape[0] for panel in rows[:, 0])  # the tables of a head, parted by margins
    beside = sum(panel.picture.shape[1] for panel in rows[0])
    assert (drawn.dtype, drawn.shape[2]) == (np.uint8, 3)
    assert below + 7 * 5 < drawn.shape[0]
    assert beside + 4 * 5 < drawn.shape[1]
    expected = [f'{entry.part}\n{kind}' for entry in attention for kind in entry.weights]
    assert [row[0].side for row in rows] == expected


def test_the_inferencer_draws_its_own_pieces(world, monkeypatch):
    inferencer, drawn = TranslationInferencer(world.translator.config, world.translator.checkpoint, 'cpu'), []
    module = 'mmattn.language.translation.attention_pictures'
    monkeypatch.setattr(f'{module}.draw_sentence_attention', lambda *arguments: drawn.append(arguments))
    inferencer.visualize('The dogs.', ['a', 'm@@', '<unk>'], layer=1)
    [(attention, *pieces)] = drawn
    assert pieces == [['the', 'do@@', 'g@@', 's', '.', '</s>'], ['a', 'm@@', '<unk>', '</s>']]
    numbers = [torch.tensor([inferencer.vocabulary.symbols.index(piece) for piece in side]) for side in pieces]
    expected = sentence_attention(inferencer.model, *numbers, 1)
    assert [each.layer for each in attention] == [each.layer for each in expected]
    torch.testing.assert_close(*([each.weights for each in x] for x in (attention, expected)), rtol=0, atol=0)


WRONG = [SentenceAttention('decoder', 'cross-attention', dict(content=torch.ones(1, 2, 3)))]


CONV = dict(type='mmattn.DynamicConv1d')
NAMES = 'encoder.layers.0.self_attention.0, decoder.layers.0.self_attention.0, decoder.layers.0.cross_attention'


def partly():
    """A model whose second layers, the last ones, have no attention weights."""
    changes = dict(
        encoder_layers=dict(self_attention=CONV), decoder_layers=dict(self_attention=CONV, cross_attention=CONV)
    )
    return random_model(TRANSLATOR | {name: [{}, change] for name, change in changes.items()})


test_failures = failing(
    (lambda: attention_parts(partly()), f'layer .*last .*: {NAMES}$'),
    (lambda: attention_parts(partly(), 2), f'layer .* 2 .*: {NAMES}$'),
    (lambda: sentence_attention(random_model(TRANSLATOR), SOURCE, TARGET, 5), 'layer'),
    (lambda: sentence_attention(random_model(TRANSLATOR), SOURCE, TARGET, 0), 'layer must be from 1'),
    (lambda: sentence_attention(TranslationTransformer(65, 'tiny', stack='Torch'), SOURCE, TARGET), 'attention'),
    (lambda: draw_sentence_attention(WRONG, ['a', '</s>'], ['c', '</s>']), 'decoder'),
    (
        lambda world: TranslationInferencer(world.translator.config, world.translator.checkpoint).visualize(
            '  ', ['a']
        ),
        'inputs',
    ),
)
