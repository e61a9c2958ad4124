"""The extra memory of global_attention is bounded and grows at most as the number of positions.

Measured from the allocations that ``torch.profiler`` records: all tensors, those inside the operator too, to the byte.
The resident set's high-water mark also sees what libraries allocate besides (nothing much here: the two agree to some
MiB), but pages that malloc keeps or that nobody has touched yet distort it by more than that, and it needs a process of
its own and a kernel that lets one reset it.
"""
import functools
import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from mmattn.ops import global_attention

MIB = 2**20


def peak(call, path):
    """Result of ``call``, and the bytes its tensors took at most beyond that result."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    profiler.export_chrome_trace(str(path))
    events = [event for event in json.loads(path.read_text())['traceEvents'] if event.get('name') == '[memory]']
    first = min(events, key=lambda event: event['ts'])['args']
    before = first['Total Allocated'] - first['Bytes']
    kept = sum(x.nbytes for x in (result if isinstance(result, tuple) else (result, )))
    return result, max(event['args']['Total Allocated'] for event in events) - before - kept


@pytest.fixture(scope='module')
def measure(tmp_path_factory):
    path = tmp_path_factory.mktemp('memory') / 'trace.json'

    @functools.cache
    def extra(length, normalize):
        """Extra MiB of the forward pass, and of forward and backward pass, of 1×1×length×length×256 in float32."""
        generator = torch.Generator().manual_seed(0)

        def randn(*channels):
            return torch.randn(1, 1, length, length, *channels, generator=generator).requires_grad_()

        query, key, value, window, outlier = inputs = randn(256), randn(256), randn(256), randn(31**2), randn()
        cotangent = randn(256).detach()
        out, forward = peak(
            lambda: global_attention(
                query, key, value, window=window, window_size=31, outlier=outlier, normalize=normalize), path)
        grads, backward = peak(lambda: torch.autograd.grad(out, inputs, cotangent), path)
        assert [x.shape for x in grads] == [x.shape for x in inputs]
        return forward / MIB, max(forward, backward) / MIB

    return extra


@pytest.mark.parametrize('normalize', [False, True], ids=['plain', 'zscore'])
def test_extra_memory(measure, normalize):
    forward, both = measure(97, normalize)
    print(f'extra at 97×97: {forward:.0f} MiB forward, {both:.0f} MiB forward and backward')
    assert 1 < forward < 300  # one full table of all pairs would be 338
    assert 1 < both < 600


@pytest.mark.parametrize('normalize', [False, True], ids=['plain', 'zscore'])
def test_extra_memory_grows_with_the_positions(measure, normalize):
    """3.9 times the positions; a table of all pairs would be 15.4 times as large."""
    for small, large in zip(measure(49, normalize), measure(97, normalize)):
        print(f'extra {small:.0f} MiB at 49×49, {large:.0f} MiB at 97×97')
        assert large < 4.5 * small
