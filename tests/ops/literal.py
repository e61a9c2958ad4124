"""The operators written out: a table of all pairs, filled in by Eq. 3.12 with Python loops, in float64, slow and plain.

From the equations alone; nothing here is shared with ``mmattn``.
"""
import functools
import itertools
import math

import torch

EPS = 1e-5


def coordinates(size):
    return list(itertools.product(*map(range, size)))


def as_tuple(window_size, axes):
    return (window_size, ) * axes if isinstance(window_size, int) else tuple(window_size)


@functools.cache
def box(size, window_size):
    """Entry of f for each pair (Eq. 3.12): row-major over the k-window, r + o for offset o = j − i; K for an outlier."""
    table = torch.full((math.prod(size), ) * 2, math.prod(window_size))
    for (i, x), (j, y) in itertools.product(enumerate(coordinates(size)), repeat=2):
        offset = [b - a for a, b in zip(x, y)]
        if all(abs(o) <= k // 2 for o, k in zip(offset, window_size)):
            entry = 0
            for o, k in zip(offset, window_size):
                entry = entry * k + k // 2 + o
            table[i, j] = entry
    return table


@functools.cache
def cross(size, window_size):
    """As :func:`box` along the axes: the last axis with its centre, then each axis before it without; K for outliers.

    Pairs that share no axis hold −1: they are outside the support.
    """
    table = torch.full((math.prod(size), ) * 2, -1)
    entries = sum(window_size) - len(size) + 1
    for (i, x), (j, y) in itertools.product(enumerate(coordinates(size)), repeat=2):
        moved = [axis for axis, (a, b) in enumerate(zip(x, y)) if a != b] or [len(size) - 1]
        if len(moved) > 1:
            continue
        axis, = moved
        offset, radius = y[axis] - x[axis], window_size[axis] // 2
        first = sum(window_size[axis + 1:]) - (len(size) - 2 - axis)  # entries of the axes after this one
        if abs(offset) > radius:
            table[i, j] = entries
        elif axis == len(size) - 1:
            table[i, j] = radius + offset
        else:
            table[i, j] = first + radius + offset - (offset > 0)
    return table


def dense(query, key, value, support, scale, window=None, entry=None, outlier=0.0, normalize=False, extra=0.0):
    """Attention from a table of all pairs.

    Args:
        query, key, value: ``(B, heads, *positions, channels)``.
        support: bool, broadcastable to ``(B, heads, N, M)``.
        scale: 1/σc.
        window, outlier: f and v, ``(B, heads, *S, K)`` and ``(B, heads, *S)`` or a number.
        entry: ``(N, M)`` of 0 … K, where K stands for the outlier.
        normalize: z-score over the support.
        extra: logits to add, broadcastable to ``(B, heads, N, M)``.
    """
    size = query.shape[2:-1]
    query, key, value = (x.flatten(2, -2) for x in (query, key, value))
    logits = torch.einsum('bhid,bhjd->bhij', query, key) * (query.shape[-1]**-0.5 if scale is None else scale) + extra
    support = support.expand(logits.shape)
    if window is not None:
        outlier = outlier if torch.is_tensor(outlier) else window.new_full(window.shape[:-1], outlier)
        f = torch.cat([window, outlier.unsqueeze(-1)], -1).flatten(2, -2)
        position = f.gather(-1, entry.clamp(min=0).expand(logits.shape))  # δp(i, j)
        if normalize:
            count = support.sum(-1, keepdim=True).clamp(min=1)
            mean = position.where(support, 0).sum(-1, keepdim=True) / count
            var = (position - mean).square().where(support, 0).sum(-1, keepdim=True) / count
            position = (position - mean) / (var + EPS).sqrt()
        logits = logits + position
    support = support & (logits != -math.inf)  # an outlier of −inf takes its keys out of the support
    logits = logits.masked_fill(~support, -math.inf).masked_fill(~support.any(-1, keepdim=True), 0)
    return (logits.softmax(-1).where(support, 0) @ value).unflatten(2, size)


def global_attention(query, key, value, *, scale=None, window=None, window_size=None, outlier=0.0, normalize=False,
                     axis_logits=(), key_logits=None, key_mask=None, causal=False):
    size, key_size = query.shape[2:-1], key.shape[2:-1]
    support = torch.ones(math.prod(size), math.prod(key_size), dtype=torch.bool)
    if causal:
        support = torch.tensor([[j <= i for j in range(len(support))] for i in range(len(support))])
    if key_mask is not None:
        support = support & key_mask.flatten(1)[:, None, None]
    extra = query.new_zeros(())
    for axis, logits in enumerate(axis_logits):  # A[i, coordinate of j]
        at = torch.tensor([c[axis] for c in coordinates(key_size)])
        extra = extra + logits.expand(*query.shape[:-1], key_size[axis]).flatten(2, -2)[..., at]
    if key_logits is not None:
        extra = extra + key_logits.expand(key.shape[:-1]).flatten(2).unsqueeze(2)
    entry = None
    if window is not None:
        window_size = as_tuple(window_size, len(size))
        entry = box(tuple(size), window_size)
        if causal:  # only the first half of f and the centre exist; the rest would be after the query
            entries = (math.prod(window_size) + 1) // 2
            assert window.shape[-1] == entries
            entry = entry.where(entry < entries, entries)
    return dense(query, key, value, support, scale, window, entry, outlier, normalize, extra)


def grid_attention(query, key, value, *, scale=None, window=None, window_size=1, outlier=0.0, normalize=False):
    size = tuple(query.shape[2:-1])
    entry = cross(size, as_tuple(window_size, len(size)))
    return dense(query, key, value, entry >= 0, scale, window, entry, outlier, normalize)


def evaluate(op, tensors, dtype=None, **settings):
    """Output of ``op``, and gradients of all its floating-point tensors under a fixed cotangent.

    Args:
        tensors: arguments by name: a tensor, or a tuple of them. Their strides are kept.
        dtype: what floating-point tensors are cast to; all are left as they are by default.
        settings: the other arguments.

    Returns:
        dict: 'output' and 'd_<argument>', the latter for each tensor of a tuple.
    """
    leaves, arguments = {}, {}
    for name, given in tensors.items():
        for place, x in enumerate(given if isinstance(given, tuple) else (given, )):
            if x.is_floating_point():
                x = x.detach().to(dtype or x.dtype).requires_grad_()
                leaves[f'd_{name}{place or ""}'] = x
            arguments[name] = (*arguments.get(name, ()), x) if isinstance(given, tuple) else x
    output = op(**arguments, **settings)
    # Any fixed numbers with a few bits, so that they are the same in every dtype.
    cotangent = torch.arange(output.numel(), device=output.device).mul(7).remainder(13).sub(6).div(8)
    grads = torch.autograd.grad(output, list(leaves.values()), cotangent.to(output.dtype).view(output.shape))
    return {'output': output.detach(), **dict(zip(leaves, grads))}


def assert_same(actual, expected, atol=1e-10, rtol=1e-10, check_dtype=True):
    """Compare what two calls of :func:`evaluate` returned."""
    assert actual.keys() == expected.keys()
    for name, x in actual.items():
        torch.testing.assert_close(x, expected[name], atol=atol, rtol=rtol, check_dtype=check_dtype,
                                   msg=lambda text, name=name: f'{name}: {text}')
