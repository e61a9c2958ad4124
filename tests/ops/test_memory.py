"""The extra memory of the operators is bounded, and grows at most as the number of positions."""

import functools

import pytest
import torch

from mmattn.ops import dispatch, dynamic_conv, local_attention, strided_attention, strided_offsets
from mmattn.ops.patterns import PATTERNS
from mmattn.utils.profiling import extra_memory

from ..requirements import requires
from .zscored import global_attention

pytestmark = pytest.mark.slow  # each in a process of its own
kernel_or_not = pytest.mark.parametrize('kernel', [False, pytest.param(True, marks=requires('native operators'))])


def measure(call, *shapes):
    """Extra MiB of the forward pass, and of forward and backward pass, of a call with tensors of these shapes."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    out, forward = extra_memory(lambda: call(*inputs))
    cotangent = torch.ones_like(out)
    grads, backward = extra_memory(lambda: torch.autograd.grad(out, inputs, cotangent))
    assert [x.shape for x in grads] == [x.shape for x in inputs]
    return forward, max(forward, backward)


@functools.cache
def of_global(length, normalize, kernel):
    """Of 1×1×length×length×256 in float32."""

    def call(query, key, value, window, outside):
        options = dict(window_bias=window, window_size=31, outside_bias=outside)
        return global_attention(query, key, value, **options, normalize=normalize)

    size = 1, 1, length, length
    with dispatch.backend('native' if kernel else 'reference'):
        return measure(call, *[(*size, 256)] * 3, (*size, 31**2), size)


@pytest.mark.parametrize('normalize', [False, True], ids=['plain', 'zscore'])
@kernel_or_not
def test_global_attention(kernel, normalize):
    """A table of all pairs would be 338 MiB; the window's logits are 35, a map is 9. A thread has its own scratch.

    The kernel packs two maps, keys and values, in the forward pass, and three in the backward pass. A z-score keeps the
    normalised biases, and in the backward pass their gradients. With 3.9 times the positions, a table of all pairs
    would be 15.4 times as large.
    """
    forward, both = of_global(97, normalize, kernel)
    threads, zscore = torch.get_num_threads(), 37 if normalize else 0
    assert 1 < forward < (18 + 4 * threads if kernel else 120) + zscore
    assert 1 < both < (51 + 4 * threads if kernel else 120) + 2 * zscore
    for small, large in zip(of_global(49, normalize, kernel), (forward, both)):
        assert large < 4.5 * small


def of_local(length, iterations):
    """Of 256 channels in 8 heads, each with its 3×3 geometric logits."""

    def call(query, key, value, window):
        return local_attention(query, key, value, window_bias=window, iterations=iterations)

    return measure(call, *((1, 8, length, length, channels) for channels in (32, 32, 32, 9)))


@pytest.mark.parametrize(('iterations', 'most', 'most_of_both'), [(1, 27, 65), (3, 45, 105)])
def test_local_attention(iterations, most, most_of_both):
    """The unfolded keys and values alone are 2·9 copies of a map of 9 MiB: 162.

    Heads are worked on a few at a time where all of them would take more than a slice may.
    """
    with dispatch.backend('reference'):
        small, middle, large = (of_local(length, iterations) for length in (48, 96, 192))
    assert 1 < middle[0] < most
    assert 1 < middle[1] < most_of_both
    for less, more in zip(small + middle, middle + large):
        assert more < 4.5 * less


@requires('native operators')
@pytest.mark.parametrize('iterations', [1, 3])
def test_native_local_attention(iterations):
    """Some rows of keys, values and what belongs to their queries, whatever the map's height."""
    for small, large in zip(of_local(24, iterations), of_local(96, iterations)):
        assert 0 < small < large < 4.5 * small
        assert large < torch.get_num_threads()


@kernel_or_not
def test_dynamic_conv(kernel):
    """The unfolded map would be 13² copies of 4.5 MiB, 761. The logits are 12 MiB."""
    with dispatch.backend('native' if kernel else 'reference'):
        call = functools.partial(dynamic_conv, kernel_size=13)
        forward, both = measure(call, (2, 4, 48, 48, 64), (2, 4, 48, 48, 13**2))
    assert (0 if kernel else 1) < forward < (1 if kernel else 64)
    assert 1 < both < (8 if kernel else 64)


@pytest.mark.parametrize('pattern', PATTERNS)
def test_strided_attention(pattern):
    """Beyond the slices; a table of all pairs grows 16-fold, and of the larger map alone would take 256 MiB."""

    def call(query, key, value, *logits):
        return strided_attention(query, key, value, pattern=pattern, offset_bias=logits)

    extra = []
    for size in ((4, 15, 17), (4, 30, 34)):  # with steps of ⌈√side⌉
        channels = 16, 16, 16, *map(len, strided_offsets(size, None, pattern))
        extra.append(measure(call, *((1, 4, *size, n) for n in channels)))
    for small, large in zip(*extra):
        assert large < 4.5 * small
