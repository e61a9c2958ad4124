"""The operators written out: a table of all pairs, filled in with Python loops (global and grid attention by Eq. 3.12,
local attention by Eq. 4.6 to 4.9 and Algorithm 1, strided attention by Eq. 5.7 and 5.9), slow and plain.

From the equations alone; nothing here is shared with ``mmattn``. Below them, what the tests of the operators share.
"""

import functools
import importlib
import itertools
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mmattn import ops
from mmattn.ops.operator import record_call

from ..support.comparison import cotangent, evaluate
from ..support.operator_calls import QKV, as_tuple, each, make, randn  # noqa: F401

EPS = 1e-5


def coordinates(size):
    return list(itertools.product(*map(range, size)))


@functools.cache
def neighbours(size, kernel_size, dilation):
    """Entry of γ for each pair, row-major over the neighbourhood Ω_i: k // 2 + o for o steps; −1 for j outside it."""
    table = torch.full((math.prod(size),) * 2, -1)
    for (i, x), (j, y) in itertools.product(enumerate(coordinates(size)), repeat=2):
        steps = [(b - a) / dilation for a, b in zip(x, y)]
        if all(step.is_integer() and abs(step) <= k // 2 for step, k in zip(steps, kernel_size)):
            entry = 0
            for step, k in zip(steps, kernel_size):
                entry = entry * k + k // 2 + int(step)
            table[i, j] = entry
    return table


@functools.cache
def box(size, window_size):
    """Entry of f for each pair (Eq. 3.12): that of :func:`neighbours`, or K for an outlier."""
    entry = neighbours(size, window_size, 1)
    return entry.where(entry >= 0, math.prod(window_size))


@functools.cache
def cross(size, window_size):
    """As :func:`box` along the axes: the last axis with its centre, then each axis before it without; K for outliers.

    Pairs that share no axis hold −1: they are outside the support.
    """
    table = torch.full((math.prod(size),) * 2, -1)
    entries = sum(window_size) - len(size) + 1
    for (i, x), (j, y) in itertools.product(enumerate(coordinates(size)), repeat=2):
        moved = [axis for axis, (a, b) in enumerate(zip(x, y)) if a != b] or [len(size) - 1]
        if len(moved) > 1:
            continue
        (axis,) = moved
        offset, radius = y[axis] - x[axis], window_size[axis] // 2
        first = sum(window_size[axis + 1 :]) - (len(size) - 2 - axis)  # entries of the axes after this one
        if abs(offset) > radius:
            table[i, j] = entries
        elif axis == len(size) - 1:
            table[i, j] = radius + offset
        else:
            table[i, j] = first + radius + offset - (offset > 0)
    return table


def dense(
    query,
    key,
    value,
    support,
    scale,
    window_bias=None,
    entry=None,
    outside_bias=0.0,
    normalize=False,
    extra=0.0,
    return_lse=False,
):
    """Attention from a table of all pairs: ``support``, ``entry`` and ``extra`` broadcast to ``(B, heads, N, M)``.

    ``window_bias`` is f, one table ``(heads, K)`` or broadcastable to ``(B, heads, *S, K)``, ``outside_bias`` is v,
    ``(B, heads, *S)`` or a number. ``entry`` is the place of a pair in f, or K. ``normalize`` is over the support.
    """
    size, shift = query.shape[2:-1], query.new_zeros(1)
    query, key, value = (x.flatten(2, -2) for x in (query, key, value))
    logits = torch.einsum('bhid,bhjd->bhij', query, key) * (query.shape[-1] ** -0.5 if scale is None else scale) + extra
    support = support.expand(logits.shape)
    if window_bias is not None:
        if window_bias.dim() == 2:
            window_bias = window_bias.view(window_bias.shape[0], *[1] * len(size), -1)
        window_bias = window_bias.expand(*logits.shape[:2], *size, -1)
        outside_bias = (
            outside_bias
            if torch.is_tensor(outside_bias)
            else window_bias.new_full(window_bias.shape[:-1], outside_bias)
        )
        f = torch.cat([window_bias, outside_bias.unsqueeze(-1)], -1).flatten(2, -2)
        raw = position = f.gather(-1, entry.clamp(min=0).expand(logits.shape))  # δp(i, j)
        if normalize:
            count = support.sum(-1, keepdim=True).clamp(min=1)
            mean = position.where(support, 0).sum(-1, keepdim=True) / count
            var = (position - mean).square().where(support, 0).sum(-1, keepdim=True) / count
            deviation = (var + EPS).sqrt()
            position = (position - mean) / deviation
            # The operators subtract the mean of the window, which only the log-sum-exp shows.
            inside = support & (entry >= 0) & (entry < window_bias.shape[-1])
            middle = raw.where(inside, 0).sum(-1, keepdim=True) / inside.sum(-1, keepdim=True).clamp(min=1)
            shift = (mean - middle) / deviation
        logits = logits + position
    support = support & (logits != -math.inf)  # an outlier of −inf takes its keys out of the support
    empty = ~support.any(-1, keepdim=True)
    logits = logits.masked_fill(~support, -math.inf).masked_fill(empty, 0)
    out = (logits.softmax(-1).where(support, 0) @ value).unflatten(2, size)
    lse = (logits.logsumexp(-1) + shift.squeeze(-1)).masked_fill(empty.squeeze(-1), -math.inf).unflatten(2, size)
    return (out, lse) if return_lse else out


def global_attention(
    query,
    key,
    value,
    *,
    scale=None,
    window_bias=None,
    window_size=None,
    outside_bias=0.0,
    normalize=False,
    axis_bias=(),
    key_bias=None,
    key_mask=None,
    is_causal=False,
    return_lse=False,
):
    size, key_size = query.shape[2:-1], key.shape[2:-1]
    support = torch.ones(math.prod(size), math.prod(key_size), dtype=torch.bool)
    if is_causal:
        support = torch.tensor([[j <= i for j in range(len(support))] for i in range(len(support))])
    if key_mask is not None:
        support = support & key_mask.flatten(1)[:, None, None]
    extra = query.new_zeros(())
    for axis, logits in enumerate(axis_bias):  # A[i, coordinate of j]
        at = torch.tensor([c[axis] for c in coordinates(key_size)])
        extra = extra + logits.expand(*query.shape[:-1], key_size[axis]).flatten(2, -2)[..., at]
    if key_bias is not None:
        extra = extra + key_bias.expand(key.shape[:-1]).flatten(2).unsqueeze(2)
    entry = None
    if window_bias is not None:
        window_size = as_tuple(window_size, len(size))
        entry = box(tuple(size), window_size)
        if is_causal:  # only the first half of f and the centre exist; the rest would be after the query
            entries = (math.prod(window_size) + 1) // 2
            assert window_bias.shape[-1] == entries
            entry = entry.where(entry < entries, entries)
    return dense(query, key, value, support, scale, window_bias, entry, outside_bias, normalize, extra, return_lse)


def grid_attention(
    query,
    key,
    value,
    *,
    scale=None,
    window_bias=None,
    window_size=1,
    outside_bias=0.0,
    normalize=False,
    return_lse=False,
):
    size = tuple(query.shape[2:-1])
    entry = cross(size, as_tuple(window_size, len(size)))
    support = entry >= 0
    return dense(query, key, value, support, scale, window_bias, entry, outside_bias, normalize, return_lse=return_lse)


def squash(x):
    """Algorithm 1, line 7: ‖x‖²/(1 + ‖x‖²) · x/‖x‖. It is of second order around 0, where it and its gradient are 0."""
    square = x.square().sum(-1, keepdim=True)
    norm = square.where(square > 0, 1).sqrt()
    return square / (1 + square) * x / norm


def local_attention(
    query,
    key,
    value,
    kernel_size=3,
    *,
    dilation=1,
    scale=None,
    window_bias=None,
    key_mask=None,
    iterations=1,
    return_lse=False,
):
    entry = neighbours(tuple(value.shape[2:-1]), as_tuple(kernel_size, 2), dilation)
    support = entry >= 0
    if key_mask is not None:
        support = support & key_mask.flatten(1)[:, None, None]
    empty = ~support.any(-1, keepdim=True)
    if query is None:
        query = key = value.new_zeros(*value.shape[:-1], 1)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    x_i, x_j = query.flatten(2, -2), key.flatten(2, -2)
    c = scale * torch.einsum('bhid,bhjd->bhij', x_i, x_j)
    refined = torch.zeros_like(c)
    for _ in range(iterations - 1):
        a = (c + refined).masked_fill(~support, -math.inf).masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)
        refined = refined + torch.einsum('bhid,bhjd->bhij', squash(a @ x_j), x_j)
    return dense(query, key, value, support, scale, window_bias, entry, extra=refined, return_lse=return_lse)


def dynamic_conv(value, logits, *, kernel_size, dilation=1):
    """Eq. 6 and 7 of the empirical study: each position's own kernel, normalised over its entries; outside is 0."""
    kernel_size, size = as_tuple(kernel_size, 2), tuple(value.shape[2:4])
    kernels = logits.softmax(-1)
    rows = []
    for y, x in coordinates(size):
        total = torch.zeros_like(value[:, :, y, x])
        for entry, (a, b) in enumerate(coordinates(kernel_size)):
            row, column = y + dilation * (a - kernel_size[0] // 2), x + dilation * (b - kernel_size[1] // 2)
            if row in range(size[0]) and column in range(size[1]):
                total = total + kernels[:, :, y, x, entry, None] * value[:, :, row, column]
        rows.append(total)
    return torch.stack(rows, 2).unflatten(2, size)


def projection(x, weight, bias=None):
    return torch.einsum('...c,oc->...o', x, weight) + (0 if bias is None else bias)


def bilinear_logits(query, key, weight):
    """Eq. 9 of BAN: a sum over channels for each pair and glimpse."""
    return torch.einsum('bgk,bik,bjk->bgij', weight.expand(len(query), *weight.shape[-2:]), query, key)


def bilinear_pooling(weights, query, value):
    """Eq. 12 of BAN: a sum over all pairs for each channel and glimpse."""
    return torch.einsum('bgij,bik,bjk->bgk', weights, query, value)


@functools.cache
def strided(size, key_size, step, pattern):
    """Whether p routes to q for each pair (I_p of Eq. 5.7), and for each axis the place of q − p among the offsets."""
    support = torch.zeros(math.prod(size), math.prod(key_size), dtype=torch.bool)
    places = torch.zeros(len(size), *support.shape, dtype=torch.long)
    for (i, p), (j, q) in itertools.product(enumerate(coordinates(size)), enumerate(coordinates(key_size))):
        found = []
        for a, b, h, *sides in zip(p, q, step, size, key_size):
            length = max(sides)
            h = min(h, length)
            cube = a // h * h
            around = list(range(1 - h, h))
            routes, offsets = {
                'block': (range(cube, cube + h), around),
                'centred': (range(a - h + 1, a + h), around),
                'forward': (range(a, a + h), list(range(h))),
                'strided': (range(a % h, length, h), [o for o in range(1 - length, length) if o % h == 0]),
            }[pattern]
            if b in routes:
                found.append(offsets.index(b - a))
        if len(found) == len(size):
            support[i, j] = True
            places[:, i, j] = torch.tensor(found)
    return support, places


def strided_attention(query, key, value, *, pattern, step=None, scale=None, offset_bias=(), return_lse=False):
    size, key_size = tuple(query.shape[2:-1]), tuple(key.shape[2:-1])
    step = tuple(math.ceil(math.sqrt(side)) for side in size) if step is None else as_tuple(step, len(size))
    support, places = strided(size, key_size, step, pattern)
    extra = query.new_zeros(())
    for logits, place in zip(offset_bias, places):
        table = logits.expand(*query.shape[:-1], logits.shape[-1]).flatten(2, -2)
        extra = extra + table.gather(-1, place.expand(*table.shape[:-1], -1))
    return dense(query, key, value, support, scale, extra=extra, return_lse=return_lse)


LEARNED = 'learned'
# Each kind of outlier logit, plain and z-scored; only neg_inf has no z-score.
POSITIONS = [
    pytest.param(outside_bias, normalize, id=f'{name}-{"zscore" if normalize else "plain"}')
    for name, outside_bias in (('learned', LEARNED), ('zero', 0.0), ('neg_inf', -math.inf))
    for normalize in (False, True)
    if not (normalize and name == 'neg_inf')
]
CONTENT = pytest.param(None, False, id='content')  # no window
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def one_thread():
    """For a fixture: tensors of a few numbers take several times as long on two threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def given(call):
    """Tensors and settings of a call."""
    return dict(call.tensors), dict(call.settings)


def operands(size, batch=1, heads=1, **kwargs):
    """Query, key and value, by name."""
    return make('global_attention', size, batch=batch, heads=heads, **kwargs).tensors


def with_window(name, size, window_size, outside_bias=LEARNED, batch=1, heads=1, *, is_causal=False, **kwargs):
    """Tensors and settings of a call of global or grid attention; without a window where ``outside_bias`` is None."""
    biases, settings = [], {}
    if outside_bias is not None:
        biases, settings = ['window_bias'], {'window_size': window_size}
    if outside_bias is LEARNED:
        biases.append('outside_bias')
    elif biases:
        settings['outside_bias'] = outside_bias
    settings |= {'is_causal': True} if is_causal else {}
    tensors, settings = given(make(name, size, *biases, batch=batch, heads=heads, **settings, **kwargs))
    settings.pop('is_causal', None)
    return tensors, settings


# Each way to weigh a neighbourhood: what with_kernel takes.
SWITCHES = {
    'bilateral': {},
    'bilateral-scale': {'scale': 1.0},
    'content': {'geometric': False},
    'geometric': {'content': False},
    'refined': {'iterations': 2},
    'refined-scale': {'iterations': 3, 'scale': 0.7},
    'refined-content': {'iterations': 3, 'geometric': False},
}


def with_kernel(size, kernel_size, batch=1, heads=1, *, content=True, geometric=True, **kwargs):
    """Tensors and settings of a call of ``local_attention``."""
    kwargs |= {'batch': batch, 'heads': heads, 'kernel_size': kernel_size} | ({} if content else {'channels': 0})
    return given(make('local_attention', size, *['window_bias'] * geometric, **kwargs))


def with_logits(size, kernel_size, batch=2, heads=2, *, value_channels=3, **kwargs):
    """Tensors and settings of a call of ``dynamic_conv``."""
    kwargs |= {'batch': batch, 'heads': heads, 'value_channels': value_channels, 'kernel_size': kernel_size}
    return given(make('dynamic_conv', size, **kwargs))


def with_offsets(size, step, pattern, batch=1, heads=1, *, logits=True, **kwargs):
    """Tensors and settings of a call of ``strided_attention``; the heads share the logits of the first axis only."""
    kwargs |= {'batch': batch, 'heads': heads, 'step': step, 'pattern': pattern}
    tensors, settings = given(make('strided_attention', size, *['offset_bias'] * logits, **kwargs))
    if logits:
        first, *others = tensors['offset_bias']
        tensors['offset_bias'] = first[:, :1], *others
    return tensors, settings


def further(size, batch=2, heads=1, **kwargs):
    """Axis logits, key logits and a key mask of ``global_attention``; the logits for ``heads`` heads, 1 for all."""
    names = 'axis_bias', 'key_bias', 'key_mask'
    tensors = make('global_attention', size, *names, batch=batch, heads=heads, **kwargs).tensors
    return {name: tensors[name] for name in names}


def largest(x):
    """The largest magnitude, apart from the log-sum-exp −∞ of queries without keys."""
    return max([1.0, *x[x.isfinite()].abs().flatten().tolist()])


def assert_same(actual, expected, atol=1e-10, rtol=1e-10, check_dtype=True):
    """Compare what two calls of :func:`evaluate` returned."""
    assert actual.keys() == expected.keys()
    for name, x in actual.items():
        torch.testing.assert_close(
            x,
            expected[name],
            atol=atol,
            rtol=rtol,
            check_dtype=check_dtype,
            msg=lambda text, name=name: f'{name}: {text}',
        )


def assert_equation(operator, equation, tensors, **settings):
    """Values and all gradients of an operator, which are returned, are those of its equation to 1e-10."""
    actual = evaluate(operator, tensors, **settings)
    assert_same(actual, evaluate(equation, tensors, **settings))
    return actual


def low_precision(dtype):
    """Tolerance against float64, for logits, values and cotangents of order 1 and sums in float32.

    A result is rounded once, by eps/2 of itself. The backward pass starts from the rounded output, which shifts a row's
    Σ p·dp by up to eps/2 · Σ|dy·y|, about eps/2, and so each gradient by that times a sum of p, or of p·|q|: some eps.
    """
    eps = torch.finfo(dtype).eps
    return {'rtol': eps, 'atol': 1e-5 if dtype == torch.float32 else 2 * eps, 'check_dtype': False}


def around_1e4(tensors, settings, constant=1e4):
    """Move the position logits to ±1e4, with a spread of ±2, or of ±2 steps of a dtype whose steps there are wider."""
    step = 2.0 ** math.ceil(math.log2(max(1, 1e4 * torch.finfo(tensors['window_bias'].dtype).eps)))
    for name in {'window_bias', 'outside_bias'} & tensors.keys():
        x = tensors[name]
        tensors[name] = (constant + (x.double() * 2).round().clamp(-2, 2) * step).to(x.dtype)
    return tensors, settings


LAYOUTS = {
    # (B, heads · C, H, W) as a convolution gives it, seen as (B, heads, H, W, C)
    'channels_first': lambda x: _from_map(x, torch.contiguous_format),
    'channels_last': lambda x: _from_map(x, torch.channels_last),
    'strided': lambda x: torch.stack([x, x], -1)[..., 0],
    'columns_first': lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    'expanded': lambda x: x[:1, :, :1].expand_as(x),
}


def _from_map(x, memory_format):
    if x.dim() == 4:  # outlier logits: one channel a head
        return x.contiguous(memory_format=memory_format)
    x = x.movedim(-1, 2).flatten(1, 2).contiguous(memory_format=memory_format).unflatten(1, (x.shape[1], x.shape[-1]))
    return x.movedim(2, -1)


# What may follow the operator: a cotangent of other strides, or of strides 0.
AFTER = {
    'map': lambda op: lambda **kwargs: op(**kwargs).movedim(-1, 2).flatten(1, 2).contiguous(),
    'sum': lambda op: lambda **kwargs: op(**kwargs).sum(),
}


def arguments(name, *args, **settings):
    """Check the arguments of a public function and return those of the schema, without ``return_lse``."""
    _, checked = record_call(getattr(ops, name), *args, **settings)
    return tuple(checked)[: -1 if checked._fields[-1] == 'return_lse' else None]


def backward_arguments(name, outputs, arguments, needed, grad_lse=None):
    """The arguments of the backward operator of ``name``, from those of the operator, all of them, and its outputs."""
    out, lse = outputs if isinstance(outputs, tuple) else (outputs, None)
    leading = {'grad': cotangent(out), 'grad_lse': grad_lse, 'out': out, 'lse': lse}
    schema = [x.name for x in getattr(torch.ops.mmattn, f'{name}_backward').default._schema.arguments]
    return [*(leading[x] for x in schema[: -1 - len(arguments)]), *arguments, needed]


def record_slices(monkeypatch, module):
    """Return the list to which the lengths of the slices are added that the operator of ``module`` works on."""
    module, lengths = importlib.import_module(module), []
    cut = module.chunks

    def chunks(*args):
        for part in cut(*args):
            lengths.append(part.stop - part.start)
            yield part

    monkeypatch.setattr(module, 'chunks', chunks)
    return lengths


class Calls(TorchDispatchMode):
    """The calls of operators of ``mmattn``, forward and backward."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == 'mmattn':
            self.seen.append((func, args))
        return func(*args, **(kwargs or {}))


def _leaf(x):
    if isinstance(x, (list, tuple)):
        return type(x)(map(_leaf, x))
    return x.detach().clone().requires_grad_(x.is_floating_point()) if torch.is_tensor(x) else x


def check_operator(op, tensors, settings):
    """``opcheck`` of the operators that a call of ``op`` and its backward pass run."""
    with Calls() as calls:
        evaluate(op, tensors, **settings)
    assert len(calls.seen) == 2
    for called, arguments in calls.seen:
        if called._schema.name.endswith('_backward'):
            # Nothing is differentiable twice, so the autograd tests of opcheck do not apply.
            torch.library.opcheck(called, arguments, test_utils=('test_schema', 'test_faketensor'))
        else:
            torch.library.opcheck(called, _leaf(arguments))
