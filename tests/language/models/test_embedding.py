"""Embedding and sinusoids against their equations, one number after another; padding of batches."""

import math

import pytest
import torch
from torch.nn import functional as F

from mmattn.language import TextDataPreprocessor, TokenEmbedding, sinusoids
from mmattn.language.text.batching import padding_mask
from mmattn.language.text.vocabulary import PAD


@pytest.mark.parametrize(('channels', 'positions'), [(2, 1), (6, 9), (128, 3)])
def test_sinusoids_are_their_equation(channels, positions):
    """Channels 2c, 2c + 1: sin and cos of t·10000^(−2c/C), t = 0, 1, …; near 10000 as exact as float64."""
    for start in (0, 9990):
        found = sinusoids(torch.arange(start, start + positions, dtype=torch.float64), channels)
        for t in range(positions):
            for c in range(channels // 2):
                angle = (start + t) * 10000 ** (-2 * c / channels)
                assert found[t, 2 * c].item() == pytest.approx(math.sin(angle), abs=1e-9)
                assert found[t, 2 * c + 1].item() == pytest.approx(math.cos(angle), abs=1e-9)


@pytest.mark.parametrize('positions', ['sinusoidal', 'none'])
@pytest.mark.parametrize('start', [0, 5])
def test_embedding_is_its_equation(positions, start):
    layer = TokenEmbedding(11, 6, dropout=0, positions=positions).double()
    tokens = torch.tensor([[4, 10, 2], [5, 2, PAD]])
    found = layer(tokens, start)
    for b in range(2):
        for t in range(3):
            for c in range(6):
                expected = layer.weight[tokens[b, t], c].item() * math.sqrt(6)
                if positions == 'sinusoidal':
                    angle = (start + t) * 10000 ** (-2 * (c // 2) / 6)
                    expected += math.cos(angle) if c % 2 else math.sin(angle)
                assert found[b, t, c].item() == pytest.approx(expected, abs=1e-12)
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    expected = torch.einsum('btc,vc->btv', x, layer.weight)
    torch.testing.assert_close(layer.logits(x), expected, rtol=1e-12, atol=1e-12)


def test_one_matrix_gets_the_gradients_of_both_ends():
    """That of the row of padding only from the output; as input, padding is a constant."""
    layer = TokenEmbedding(7, 4, dropout=0).double()
    tokens = torch.tensor([[4, 5, 4, PAD]])
    weight = layer.weight.detach().clone().requires_grad_()
    x = layer(tokens)
    loss = layer.logits(x.tanh()).square().sum()
    loss.backward()
    rows = torch.stack([weight[token] * 2 for token in (4, 5, 4)] + [weight[PAD].detach() * 2])
    literal = rows + sinusoids(torch.arange(4, dtype=torch.float64), 4)
    (literal.tanh() @ weight.T).square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, weight.grad, rtol=1e-12, atol=1e-12)


def test_initial_weights():
    torch.manual_seed(0)
    weight = TokenEmbedding(4000, 64).weight
    assert not weight[PAD].any()
    others = torch.cat([weight[:PAD], weight[PAD + 1 :]])
    assert others.std().item() == pytest.approx(1 / 8, rel=0.01)
    assert abs(others.mean().item()) < 1e-3


def test_low_precision():
    """Positions are computed in float32: of 1,000 in bfloat16, neighbours would be equal."""
    layer = TokenEmbedding(9, 8, dropout=0)
    tokens = torch.full((1, 1001), 5)
    expected = layer(tokens)
    found = layer.bfloat16()(tokens)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=0.05)


def test_dropout_is_applied_to_the_sum():
    torch.manual_seed(0)
    layer = TokenEmbedding(9, 8, dropout=0.5)
    tokens = torch.randint(4, 9, (3, 50))
    found, expected = layer(tokens), layer.eval()(tokens)
    kept = found != 0
    assert 0.4 < kept.float().mean() < 0.6
    torch.testing.assert_close(found[kept], 2 * expected[kept])


def test_padding_of_a_batch():
    """On the right; what is not a list of sentences is passed on, and nothing of the given batch changes."""
    source = [torch.tensor([4, 5, 2]), torch.tensor([2]), torch.tensor([6, 2])]
    samples = [object()]
    data = dict(inputs=dict(source=source, target=torch.tensor([[4]])), data_samples=samples)
    found = TextDataPreprocessor()(data)
    assert found['inputs']['source'].tolist() == [[4, 5, 2], [2, PAD, PAD], [6, 2, PAD]]
    assert found['inputs']['source'].dtype == torch.int64
    assert found['inputs']['target'].tolist() == [[4]]
    assert found['data_samples'] == samples
    assert data['inputs']['source'] is source
    mask = padding_mask(found['inputs']['source'])
    assert mask.tolist() == [[False] * 3, [False, True, True], [False, False, True]]
    assert padding_mask(torch.tensor([[4, 2]])) is None
    assert F.embedding(found['inputs']['source'], torch.arange(8.0)[:, None]).sum() == 4 + 5 + 2 + 2 + 6 + 2 + 3
