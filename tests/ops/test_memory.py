"""The extra memory of global and local attention is bounded and grows at most as the number of positions."""

import functools

import pytest
import torch

from mmattn.ops import dispatch, library, local_attention
from mmattn.utils.profiling import extra_memory

from .zscored import global_attention


@functools.cache
def of_global(length, normalize, kernel):
    """Extra MiB of the forward pass, and of forward and backward pass, of 1×1×length×length×256 in float32."""
    generator = torch.Generator().manual_seed(0)

    def randn(*channels):
        return torch.randn(1, 1, length, length, *channels, generator=generator).requires_grad_()

    query, key, value, window_bias, outside_bias = inputs = randn(256), randn(256), randn(256), randn(31**2), randn()
    cotangent = randn(256).detach()
    with dispatch.backend('native' if kernel else 'reference'):
        out, forward = extra_memory(
            lambda: global_attention(
                query,
                key,
                value,
                window_bias=window_bias,
                window_size=31,
                outside_bias=outside_bias,
                normalize=normalize,
            )
        )
        grads, backward = extra_memory(lambda: torch.autograd.grad(out, inputs, cotangent))
    assert [x.shape for x in grads] == [x.shape for x in inputs]
    return forward, max(forward, backward)


KERNEL = pytest.param(
    True,
    marks=pytest.mark.skipif(not library.has_kernel('global_attention'), reason=str(library.UNAVAILABLE_REASON)),
    id='kernel',
)


@pytest.mark.parametrize('normalize', [False, True], ids=['plain', 'zscore'])
@pytest.mark.parametrize('kernel', [pytest.param(False, id='reference'), KERNEL])
def test_extra_memory(kernel, normalize):
    """A table of all pairs would be 338 MiB; the window's logits are 35, a map is 9. A thread has its own scratch.

    The kernel packs two maps, keys and values, in the forward pass, and three in the backward pass. A z-score keeps the
    normalised biases, and in the backward pass their gradients.
    """
    forward, both = of_global(97, normalize, kernel)
    print(f'extra at 97×97: {forward:.0f} MiB forward, {both:.0f} MiB forward and backward')
    threads = torch.get_num_threads()
    zscore = 37 if normalize else 0
    assert 1 < forward < (18 + 4 * threads if kernel else 120) + zscore
    assert 1 < both < (51 + 4 * threads if kernel else 120) + 2 * zscore


@pytest.mark.parametrize('normalize', [False, True], ids=['plain', 'zscore'])
@pytest.mark.parametrize('kernel', [pytest.param(False, id='reference'), KERNEL])
def test_extra_memory_grows_with_the_positions(kernel, normalize):
    """3.9 times the positions; a table of all pairs would be 15.4 times as large."""
    for small, large in zip(of_global(49, normalize, kernel), of_global(97, normalize, kernel)):
        print(f'extra {small:.0f} MiB at 49×49, {large:.0f} MiB at 97×97')
        assert large < 4.5 * small


@functools.cache
def local(length, iterations):
    """As above, of 256 channels in 8 heads, each with its 3×3 geometric logits: local_attention."""
    generator = torch.Generator().manual_seed(0)
    inputs = query, key, value, window_bias = [
        torch.randn(1, 8, length, length, channels, generator=generator).requires_grad_()
        for channels in (32, 32, 32, 9)
    ]
    cotangent = torch.ones(value.shape)
    out, forward = extra_memory(
        lambda: local_attention(query, key, value, window_bias=window_bias, iterations=iterations)
    )
    grads, backward = extra_memory(lambda: torch.autograd.grad(out, inputs, cotangent))
    assert [x.shape for x in grads] == [x.shape for x in inputs]
    return forward, max(forward, backward)


@pytest.mark.parametrize(('iterations', 'most', 'most_of_both'), [(1, 27, 65), (3, 45, 105)])
def test_extra_memory_of_local_attention(iterations, most, most_of_both):
    """The unfolded keys and values alone are 2·9 copies of a map of 9 MiB: 162."""
    with dispatch.backend('reference'):
        forward, both = local(96, iterations)
    print(f'extra at 96×96, T={iterations}: {forward:.0f} MiB forward, {both:.0f} MiB forward and backward')
    assert 1 < forward < most
    assert 1 < both < most_of_both


@pytest.mark.parametrize('iterations', [1, 3])
@pytest.mark.parametrize('length', [48, 96])
def test_extra_memory_of_local_attention_grows_with_the_positions(length, iterations):
    """At most; heads are worked on a few at a time where all of them would take more than a slice may."""
    with dispatch.backend('reference'):
        measured = zip(local(length, iterations), local(2 * length, iterations))
    for small, large in measured:
        print(f'extra {small:.0f} MiB at {length}×{length}, {large:.0f} MiB at {2 * length}×{2 * length}')
        assert large < 4.5 * small


@pytest.mark.skipif(not library.has_kernel('local_attention'), reason=str(library.UNAVAILABLE_REASON))
@pytest.mark.parametrize('iterations', [1, 3])
def test_extra_memory_of_native_local_attention(iterations):
    """Some rows of keys, values and what belongs to their queries, whatever the map's height."""
    for small, large in zip(local.__wrapped__(24, iterations), local.__wrapped__(96, iterations)):
        print(f'extra {small:.2f} MiB at 24×24, {large:.2f} MiB at 96×96')
        assert 0 < small < large < 4.5 * small
        assert large < torch.get_num_threads()
