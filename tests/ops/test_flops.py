"""PyTorch's FLOP counter counts the products of the operators; with all keys, they equal those of dense attention."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmattn.ops import (
    dynamic_conv,
    global_attention,
    grid_attention,
    local_attention,
    strided_attention,
    strided_support,
)
from mmattn.ops.patterns import PATTERNS

from .literal import randn, with_logits
from .test_equations import OTHER_KEYS


def flops(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def test_global_attention_counts_what_the_dense_products_count():
    q, k, v = randn(2, 3, 4, 5, 8), randn(2, 3, 6, 7, 8), randn(2, 3, 6, 7, 16)
    dense = flops(lambda: q.flatten(2, 3) @ k.flatten(2, 3).transpose(-1, -2) @ v.flatten(2, 3))
    assert flops(lambda: global_attention(q, k, v)) == dense == 2 * 2 * 3 * 20 * 42 * (8 + 16)


def test_grid_attention_counts_the_keys_of_the_cross():
    q, v = randn(2, 3, 4, 5, 8), randn(2, 3, 4, 5, 16)
    assert flops(lambda: grid_attention(q, q, v)) == 2 * 2 * 3 * 20 * (4 + 5 - 1) * (8 + 16)


def test_backward_counts_the_logits_again_and_four_gradients():
    for op, keys in ((global_attention, 20), (grid_attention, 8)):
        q, k, v = (randn(1, 1, 4, 5, c).requires_grad_() for c in (8, 8, 16))
        out = op(q, k, v)
        counted = flops(lambda out=out, inputs=(q, k, v): torch.autograd.grad(out.sum(), inputs))
        # Per pair: the logit, its gradients at q and k (8 each); that of the weight, and of v (16 each).
        assert counted == 2 * 20 * keys * (3 * 8 + 2 * 16)


def test_local_attention_counts_what_products_with_k2_copies_count():
    """Border and dilation alike."""
    q, v, window_bias = randn(2, 3, 4, 5, 8), randn(2, 3, 4, 5, 16), randn(2, 3, 4, 5, 15)
    pairs = 2 * 3 * 20 * 15
    key, value = randn(2 * 3 * 20, 8, 15), randn(2 * 3 * 20, 15, 16)
    copies = flops(lambda: q.reshape(-1, 1, 8) @ key @ value)
    for settings in ({}, {'window_bias': window_bias}, {'dilation': 2}, {'scale': 1.0}):
        assert (
            flops(lambda settings=settings: local_attention(q, q, v, kernel_size=(3, 5), **settings))
            == copies
            == 2 * pairs * (8 + 16)
        )
    # Geometric logits alone cost no product.
    assert flops(lambda: local_attention(None, None, v, kernel_size=(3, 5), window_bias=window_bias)) == 2 * pairs * 16


@pytest.mark.parametrize('iterations', [1, 2, 3])
def test_refinement_counts_a_sum_of_keys_and_a_product_with_them_a_round(iterations):
    q, k, v = (randn(2, 3, 4, 5, c).requires_grad_() for c in (8, 8, 16))
    pairs, rounds = 2 * 3 * 20 * 9, iterations - 1
    assert flops(lambda: local_attention(q, k, v, iterations=iterations)) == 2 * pairs * (8 + rounds * 2 * 8 + 16)
    # Per pair and round: both again, and the gradients at both factors of both.
    out = local_attention(q, k, v, iterations=iterations)
    counted = flops(lambda: torch.autograd.grad(out.sum(), (q, k, v)))
    assert counted == 2 * pairs * (3 * 8 + rounds * 6 * 8 + 2 * 16)


def test_backward_of_geometric_logits_alone():
    """The gradients of the weights and of the values."""
    v, window_bias = randn(1, 1, 4, 5, 16).requires_grad_(), randn(1, 1, 4, 5, 9).requires_grad_()
    out = local_attention(None, None, v, window_bias=window_bias)
    assert flops(lambda: torch.autograd.grad(out.sum(), (v, window_bias))) == 2 * 20 * 9 * 2 * 16


@pytest.mark.parametrize(('heads', 'iterations'), [(1, 1), (8, 1), (16, 1), (8, 3)])
def test_spatial_summation_of_the_thesis(heads, iterations):
    """Table 4.1, per position: 2·k²·d FLOPs for each of T affinities and T summations, whatever the heads.

    On the 96×96 map of 256 channels of Table 4.2; on the meta device, so that nothing is computed.
    """
    x = torch.empty(1, heads, 96, 96, 256 // heads, device='meta')
    counted = flops(lambda: local_attention(x, x, x, iterations=iterations))
    assert counted == iterations * 2 * (2 * 9 * 256) * 96 * 96


@pytest.mark.parametrize('dilation', [1, 2])
def test_dynamic_conv(dilation):
    """N·C·k² multiply-accumulates, of two FLOPs each; backward, as many for each gradient."""
    tensors, settings = with_logits((4, 5), (3, 5), dilation=dilation)
    leaves = [x.requires_grad_() for x in tensors.values()]
    forward = 2 * 2 * (4 * 5) * (2 * 3) * 15
    assert flops(lambda: dynamic_conv(**tensors, **settings)) == forward
    out = dynamic_conv(**tensors, **settings)
    assert flops(lambda: torch.autograd.grad(out.sum(), leaves)) == 2 * forward


@pytest.mark.parametrize('pattern', PATTERNS)
@pytest.mark.parametrize(('size', 'key_size', 'step'), [((3, 4, 5), (3, 4, 5), 2), *OTHER_KEYS.values()], ids=str)
def test_flops_of_the_pairs(size, key_size, step, pattern):
    """Per pair: its logit and its share of the sum; backward: logit, gradients at q, k; weight's gradient and v's."""
    pairs = 2 * 3 * strided_support(size, step, pattern, key_size=key_size).sum().item()
    query, key, value = (randn(2, 3, *s, c).requires_grad_() for s, c in ((size, 8), (key_size, 8), (key_size, 16)))
    settings = {'pattern': pattern, 'step': step}
    assert flops(lambda: strided_attention(query, key, value, **settings)) == 2 * pairs * (8 + 16)
    out = strided_attention(query, key, value, **settings)
    assert flops(lambda: torch.autograd.grad(out.sum(), (query, key, value))) == 2 * pairs * (3 * 8 + 2 * 16)
