"""PyTorch's counter sees the products inside the operators: as many as the dense ones where the support is the same."""
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmattn.ops import global_attention, grid_attention

from .literal import randn


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
