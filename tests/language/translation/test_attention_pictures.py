"""Attention of a sentence: the weights of the layers for their inputs; tables with their labels."""

import numpy as np
import torch
from torch.nn import functional as F

from mmattn.language.translation.attention_pictures import (
    SentenceAttention,
    attention_figure,
    attention_parts,
    draw_sentence_attention,
    sentence_attention,
)
from mmattn.language.translation.inferencer import TranslationInferencer
from mmattn.language.translation.transformer import TranslationTransformer

from ..failing import failing
from .conftest import random_model

SOURCE = torch.tensor([4, 9, 30, 11, 8, 40, 2])
TARGET = torch.tensor([17, 5, 60, 33, 2])


def rows(attention, x, kind, memory=None):
    """The weights of all queries of a sequence, by the layer, whose weights are tested with the layers."""
    keys = x if memory is None else memory
    return attention.attention_weights(x, keys, keys, queries=torch.arange(x.shape[1])[:, None], kind=kind)[0]


@torch.no_grad()
def test_weights_are_those_of_the_layers_for_their_inputs():
    model = random_model().double()
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
        encoder_attention=[dict(type='mmattn.DynamicConv1d'), dict(type='mmattn.TransformerAttention1d')],
        decoder_attention=None,
    )
    found = sentence_attention(model, SOURCE, TARGET)
    assert [(each.part, [*each.weights]) for each in found] == [
        ('encoder self-attention', ['content', 'position', 'bilateral']),
        ('cross-attention', ['content']),
    ]
    for each in found:
        for weights in each.weights.values():
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))


def test_the_figure_has_the_weights_and_the_pieces():
    attention = sentence_attention(random_model(), SOURCE, TARGET)
    source = ['$x$', 'do@@', 'g', 'ä', '_', '中', '</s>']
    target = ['ein', 'hu@@', 'nd', '.', '</s>']
    figure = attention_figure(attention, source, target)
    tables = [table for each in attention for weights in each.weights.values() for table in weights]
    assert len(figure.axes) == len(tables) == 4 * 7
    for axis, table in zip(figure.axes, tables):
        shown = axis.images[0].get_array().data
        np.testing.assert_allclose(shown * table.amax(1, keepdim=True).numpy(), table.numpy(), rtol=1e-6)
        assert axis.get_title().endswith(f'largest {table.max().item():.2g}')

    def labels(row, of):
        return [text.get_text() for text in getattr(figure.axes[4 * row], f'get_{of}ticklabels')()]

    assert [labels(row, 'y') for row in (0, 3, 6)] == [source, target, target]
    assert [labels(row, 'x') for row in (2, 5, 6)] == [source, ['</s>', *target[:-1]], source]
    assert [labels(row, 'x') for row in (0, 1, 3, 4)] == [[]] * 4
    layers, *names = figure.texts
    assert layers.get_text() == '; '.join(each.layer for each in attention)
    expected = [(each.part, kind) for each in attention for kind in each.weights]
    assert [(*text.get_text().split('\n'),) for text in names] == expected
    for text, axis in zip(names, figure.axes[::4]):
        assert axis.get_position().y0 < text.get_position()[1] < axis.get_position().y1


def test_the_inferencer_draws_its_own_pieces(trained, monkeypatch):
    inferencer, drawn = TranslationInferencer(trained.config, trained.checkpoint, 'cpu'), []
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


test_failures = failing(
    (lambda: sentence_attention(random_model(), SOURCE, TARGET, 5), 'layer'),
    (lambda: sentence_attention(TranslationTransformer(65, 'tiny', stack='Torch'), SOURCE, TARGET), 'attention'),
    (lambda: draw_sentence_attention(WRONG, ['a', '</s>'], ['c', '</s>']), 'decoder'),
    (lambda trained: TranslationInferencer(trained.config, trained.checkpoint).visualize('  ', ['a']), 'inputs'),
)
