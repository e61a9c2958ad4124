"""Calls of ``torch.ops.mmattn`` whose arguments do not fit together: an error, never a signal or a number."""

import pytest
import torch

from mmattn.ops import dispatch

from ..requirements import requires
from .literal import randn

pytestmark = requires('native operators')


def of(*shape):
    return randn(1, 2, *shape, dtype=torch.float32)


X, SMALL, WIDER, LINE = of(4, 5, 8), of(3, 5, 8), of(4, 5, 9), of(4, 8)
FLAT, OTHER_HEADS, OTHER_BATCH = X[0], torch.ones(1, 1, 4, 5, 8), torch.ones(2, 2, 4, 5, 8)
BIAS, MASK = of(4, 5, 9), torch.ones(1, 4, 5, dtype=torch.bool)
OPERANDS = [
    dict(key=SMALL),
    dict(value=SMALL),
    dict(key=WIDER),
    dict(key=FLAT, value=FLAT),
    dict(query=FLAT),
    dict(query=LINE),
    dict(query=X[0, 0], key=X[0, 0], value=X[0, 0]),
    dict(value=torch.ones(())),
    dict(query=OTHER_HEADS),
    dict(key=OTHER_BATCH, value=OTHER_BATCH),
    dict(query=X[None, None], key=X[None, None], value=X[None, None]),
]
WINDOW = [
    dict(window_bias=BIAS),
    dict(window_bias=BIAS, window_size=[3]),
    dict(window_bias=BIAS, window_size=[3, 3, 3]),
    dict(window_bias=BIAS, window_size=[7, 7]),
    dict(window_bias=BIAS, window_size=[2, 2]),
    dict(window_bias=BIAS, window_size=[-3, -3]),
    dict(window_bias=BIAS, window_size=[2**32 + 1, 2**32 + 1]),
    dict(window_bias=of(3, 5, 9), window_size=[3, 3]),
    dict(window_bias=BIAS[0], window_size=[3, 3]),
    dict(outside_bias=of(4, 5)),
    dict(window_size=[3] * 8),
]
NEIGHBOURHOOD = [
    *(dict(kernel_size=size) for size in ([], [3], [2, 2], [0, 0], [5, 5], [-3, -3], [3, 3, 1], [2**32 + 3, 3])),
    dict(dilation=0),
    dict(dilation=-1),
]
# Arguments of an operator that fit, further ones that fit, too, and what is changed to arguments that do not.
CALLS = {
    'global_attention': (
        dict(query=X, key=X, value=X, window_bias=None, outside_bias=None, axis_bias=[], key_bias=None, key_mask=None)
        | dict(window_size=[], outside_value=0.0, scale=1.0, is_causal=False),
        dict(
            window_bias=BIAS,
            window_size=[3, 3],
            outside_bias=of(4, 5),
            axis_bias=[of(4, 5, 4), of(4, 5, 5)],
            key_bias=of(4, 5),
            key_mask=MASK,
        ),
        [
            *OPERANDS,
            *WINDOW,
            dict(window_bias=BIAS, window_size=[3, 3], outside_bias=of(3, 5)),
            dict(window_bias=BIAS, window_size=[3, 3], is_causal=True),
            dict(window_bias=BIAS, window_size=[3, 3], key=SMALL, value=SMALL),
            dict(is_causal=True, key=SMALL, value=SMALL),
            dict(axis_bias=[of(4, 5, 4)]),
            dict(axis_bias=[of(4, 5, 4), of(4, 5, 4)]),
            dict(key_bias=of(3, 5)),
            dict(key_bias=of(4, 5, 1)),
            dict(key_mask=MASK[:, :3]),
            dict(key_mask=MASK.float()),
        ],
    ),
    'grid_attention': (
        dict(
            query=X, key=X, value=X, window_bias=None, outside_bias=None, window_size=[], outside_value=0.0, scale=1.0
        ),
        dict(window_bias=of(4, 5, 5), window_size=[3, 3], outside_bias=of(4, 5)),
        [
            *OPERANDS,
            *WINDOW,
            dict(key=SMALL, value=SMALL),
            dict(query=LINE, key=LINE, value=LINE),
            dict(window_bias=of(4, 5, 5), window_size=[3, 3], outside_bias=of(4, 5, 1)),
        ],
    ),
    'local_attention': (
        dict(query=X, key=X, value=X, window_bias=BIAS, key_mask=None)
        | dict(kernel_size=[3, 3], dilation=1, scale=1.0, iterations=1),
        dict(key_mask=MASK),
        [
            *OPERANDS,
            *NEIGHBOURHOOD,
            *(dict.fromkeys(('query', 'key', 'value'), x) | dict(window_bias=None) for x in (LINE, of(2, 4, 5, 8))),
            dict(query=None),
            dict(key=None),
            dict(query=None, key=None, window_bias=None),
            dict(query=None, key=None, iterations=2),
            dict(iterations=0),
            dict(key_mask=MASK[:, :3]),
            dict(key_mask=MASK.float()),
            dict(window_bias=of(3, 5, 9)),
            dict(window_bias=of(4, 5, 8)),
            dict(window_bias=BIAS[0]),
        ],
    ),
    'dynamic_conv': (
        dict(value=X, logits=BIAS, kernel_size=[3, 3], dilation=1),
        {},
        [*NEIGHBOURHOOD, dict(value=SMALL), dict(value=FLAT), dict(logits=BIAS[0])]
        + [dict(value=LINE, logits=LINE), dict(value=of(2, 4, 5, 8), logits=of(2, 4, 5, 9))],
    ),
    'strided_attention': (
        dict(query=X, key=X, value=X, offset_bias=[], step=[2, 2], pattern='block', scale=1.0),
        dict(offset_bias=[of(4, 5, 3), of(4, 5, 3)]),
        [
            *OPERANDS,
            dict(pattern='nonsense'),
            *(dict(step=step) for step in ([2], [2, 2, 2], [0, 2], [2, -1])),
            dict(step=[], key=SMALL, value=SMALL),
            dict(offset_bias=[of(4, 5, 3)]),
            dict(offset_bias=[of(4, 5, 3), of(4, 5, 2)]),
            dict(offset_bias=[of(3, 5, 3), of(4, 5, 3)]),
            dict(offset_bias=[of(4, 5, 3), of(4, 5, 3)], pattern='strided'),
            dict(offset_bias=[of(4, 5, 3), of(4, 5, 3)], pattern='forward'),
        ],
    ),
}


def backward(name):
    """The backward operator, and arguments that fit."""
    fits = CALLS[name][0]
    found = getattr(torch.ops.mmattn, name)(**fits)
    out, lse = (found, None) if isinstance(found, torch.Tensor) else found
    leading = dict(grad=out, grad_lse=lse, out=out, lse=lse, return_lse=True)
    op = getattr(torch.ops.mmattn, f'{name}_backward')
    names = [x.name for x in op.default._schema.arguments]
    given = {key: x for key, x in leading.items() if key in names}
    tensors = sum(isinstance(x, torch.Tensor) for x in fits.values())
    return op, {**given, **fits, 'needed': [True] * tensors}


@pytest.mark.parametrize('backend', ['auto', 'reference'])
@pytest.mark.parametrize('name', CALLS)
def test_arguments(name, backend):
    """In both passes."""
    for op, fits in ((getattr(torch.ops.mmattn, name), CALLS[name][0]), backward(name)):
        for change in CALLS[name][2]:
            with dispatch.backend(backend), pytest.raises(ValueError, match=r'must|require'):
                op(**{**fits, **change})


@pytest.mark.parametrize('name', CALLS)
def test_gradients(name):
    op, fits = backward(name)
    assert len(op(**fits)) == len(fits['needed'])
    wrong = [dict(needed=[True]), dict(needed=[True] * 9)]
    wrong += [{part: fits[part][:, :, 1:]} for part in ('grad', 'grad_lse', 'out', 'lse') if part in fits]
    for change in wrong:
        with pytest.raises(ValueError, match=r'must|require'):
            op(**{**fits, **change})
