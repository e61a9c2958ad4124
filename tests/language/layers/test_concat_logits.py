"""Logits of concatenated pairs: the perceptron of each pair; padding; errors. The grounder tests gradients."""

import math

import pytest
import torch

from mmattn.layers import ConcatLogits


def test_logits_are_those_of_the_concatenated_pairs():
    torch.manual_seed(0)
    layer = ConcatLogits(3, 4, embed_dim=5).double().eval()
    words, regions = torch.randn(2, 3, 3, dtype=torch.float64), torch.randn(2, 4, 4, dtype=torch.float64)
    weight = torch.cat([layer.word_proj.weight, layer.region_proj.weight], 1)
    last = layer.output[2]
    found = layer(words, regions)
    assert found.shape == (2, 1, 3, 4)
    for b in range(2):
        for i in range(3):
            for j in range(4):
                hidden = torch.relu(weight @ torch.cat([words[b, i], regions[b, j]]) + layer.word_proj.bias)
                torch.testing.assert_close(found[b, 0, i, j], (last.weight @ hidden + last.bias)[0], rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(layer, (words.requires_grad_(), regions.requires_grad_()))


def test_padding_changes_nothing_and_has_no_gradient():
    torch.manual_seed(0)
    layer = ConcatLogits(3, 4, embed_dim=5).double().eval()
    words, regions = torch.randn(1, 3, 3, dtype=torch.float64), torch.randn(1, 4, 4, dtype=torch.float64)
    padded = regions.clone()
    padded[:, 2:] = math.nan
    padded.requires_grad_()
    mask = torch.tensor([[False, False, True, True]])
    found = layer(words, padded, mask)
    torch.testing.assert_close(found[..., :2], layer(words, regions[:, :2]), rtol=0, atol=1e-12)
    found.sum().backward()
    assert torch.isfinite(padded.grad).all()
    assert not padded.grad[:, 2:].any()
    assert layer(words, regions[:, :0]).shape == (1, 1, 3, 0)


def test_dropout_is_of_inputs_and_of_the_hidden_layer():
    layer = ConcatLogits(3, 4, embed_dim=5, dropout=0.0, hidden_dropout=1.0)
    found = layer(torch.randn(1, 3, 3), torch.randn(1, 4, 4))
    torch.testing.assert_close(found, layer.output[2].bias.expand_as(found))


def test_errors():
    for options, error, name in (
        (dict(embed_dim=0), ValueError, 'embed_dim'),
        (dict(embed_dim=5, dropout=2), ValueError, 'dropout'),
        (dict(embed_dim=5, hidden_dropout='a'), TypeError, 'hidden_dropout'),
    ):
        with pytest.raises(error, match=name):
            ConcatLogits(3, 4, **options)
    layer = ConcatLogits(3, 4, embed_dim=5)
    with pytest.raises(ValueError, match='words'):
        layer(torch.zeros(1, 3, 4), torch.zeros(1, 4, 4))
    with pytest.raises(ValueError, match='region_padding_mask'):
        layer(torch.zeros(1, 3, 3), torch.zeros(1, 4, 4), torch.zeros(1, 3, dtype=torch.bool))
