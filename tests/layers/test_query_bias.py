"""The four terms are apart: a query of zeros has no E1 and E2. A bias of the query mixes them, which is said."""

import warnings
from functools import partial

import pytest
import torch

from mmattn.language.layers import TransformerAttention1d
from mmattn.layers import TransformerAttention2d

from ..ops import literal
from .common import randomised

TERMS = [f'{i:04b}' for i in range(16)]
SEQUENCE, MAP = (2, 5, 8), (2, 8, 4, 5)
# A layer, and its input, in which one query has no content.
LAYERS = {
    'sequence': (partial(TransformerAttention1d, 8, 2), SEQUENCE),
    'causal': (partial(TransformerAttention1d, 8, 2, spatial_range=3, is_causal=True), SEQUENCE),
    'map': (partial(TransformerAttention2d, 8, 2, norm_cfg=dict(type='BN')), MAP),
    'range': (partial(TransformerAttention2d, 8, 2, norm_cfg=dict(type='BN'), spatial_range=3), MAP),
}
# The bias of a query, u, and v.
NAMES = {
    SEQUENCE: ('q_proj.bias', 'content_bias', 'position_bias'),
    MAP: ('norms.query_conv.bias', 'appr_bias', 'geom_bias'),
}
# Settings that a bias of the query makes the same model: one with more terms, and one with fewer.
SAME = [('1010', '1000'), ('1011', '1001'), ('0101', '0100'), ('0111', '0110'), ('1111', '1110'), ('1111', '1101')]


@pytest.fixture(params=LAYERS)
def kind(request):
    return request.param


def build(kind, terms, **options):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return randomised(LAYERS[kind][0](terms=terms, **options))


def attend(layer, x):
    out = layer(x)
    return out if torch.is_tensor(out) else out[0]


@pytest.mark.parametrize('terms', TERMS)
def test_a_query_of_zeros_has_the_terms_without_a_query(kind, terms):
    """Whatever the other biases and the statistics of the norms are."""
    layer, without = build(kind, terms), build(kind, f'00{terms[2:]}')
    without.load_state_dict(layer.state_dict(), strict=False)
    size = LAYERS[kind][1]
    x, at = literal.randn(*size), (slice(None), 3) if size == SEQUENCE else (..., 2, 3)
    x[at] = 0
    torch.testing.assert_close(attend(layer, x)[at], attend(without, x)[at], atol=1e-13, rtol=1e-13)
    if '1' in terms[:2] and kind != 'causal':
        assert (attend(layer, x) - attend(without, x)).abs().max() > 1e-3


def folded(state, names, more, fewer):
    """Add u or v, which the setting with fewer terms lacks, to the query's bias, and take it from the other."""
    state = dict(state)
    bias, *vectors = names
    for i, without_query in enumerate((2, 3)):
        if more[without_query] > fewer[without_query]:
            moved = state.pop(vectors[i])
            state[bias] = state[bias] + moved.flatten()
            if fewer[1 - i] == '1':
                state[vectors[1 - i]] = state[vectors[1 - i]] - moved
    return state


@pytest.mark.parametrize(('more', 'fewer'), SAME)
def test_a_bias_of_the_query_makes_two_settings_one_model(kind, more, fewer):
    """In translation by the bias of W_q, in segmentation by the shift of its norm. Without it, they differ."""
    size = LAYERS[kind][1]
    x, names = literal.randn(*size), NAMES[size]
    layer, other = (build(kind, terms, query_bias=True) for terms in (more, fewer))
    expected = attend(layer, x)
    other.load_state_dict(folded(layer.state_dict(), names, more, fewer))
    torch.testing.assert_close(attend(other, x), expected, atol=4e-15, rtol=4e-15)
    layer, other = build(kind, more), build(kind, fewer)
    other.load_state_dict(layer.state_dict(), strict=False)
    assert (attend(other, x) - attend(layer, x)).abs().max() > 1e-3


def test_one_vector_of_1100_is_both_of_1111(kind):
    size = LAYERS[kind][1]
    x, (bias, u, v) = literal.randn(*size), NAMES[size]
    layer, other = build(kind, '1100', query_bias=True), build(kind, '1111', query_bias=True)
    state = layer.state_dict()
    vector = state[bias].view_as(other.state_dict()[u])
    other.load_state_dict({**state, bias: torch.zeros_like(state[bias]), u: vector, v: vector})
    torch.testing.assert_close(attend(other, x), attend(layer, x), atol=4e-15, rtol=4e-15)


@pytest.mark.parametrize('terms', TERMS)
def test_terms_that_a_bias_of_the_query_adds_are_named(kind, terms):
    added = [name for name, i in (('E3', 0), ('E4', 1)) if terms[i] > terms[i + 2]]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        LAYERS[kind][0](terms=terms, query_bias=True)
        assert [all(name in str(each.message) for name in added) for each in said] == [True] * bool(added)
        LAYERS[kind][0](terms=terms)
    assert len(said) == bool(added)


@pytest.mark.parametrize('strict', [True, False])
@pytest.mark.parametrize('terms', ['1111', '0100'])
def test_a_checkpoint_with_a_bias_of_the_query_needs_the_option(kind, terms, strict):
    """Dropping it would be another model. Settings without a query have none."""
    state = build(kind, terms, query_bias=True).state_dict()
    model = torch.nn.Sequential(build(kind, terms))
    with pytest.raises(ValueError, match='query_bias=True'):
        model.load_state_dict({f'0.{name}': x for name, x in state.items()}, strict)
    build(kind, '0011').load_state_dict(state, strict=False)
