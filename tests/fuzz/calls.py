"""Calls ``torch.ops.mmattn.*`` with arguments that are changed at random.

A result is compared with the reference's. A call whose own tensors are large may be slow, or lack memory.
"""

import math

import torch

from mmattn.language.layers import bilinear_attention  # noqa: F401
from mmattn.ops import dispatch

from ..ops.test_inconsistent_calls import CALLS
from .children import answers
from .mutate import generator, shorten

RESULT, REFUSED, OTHER, DIFFERENT, LARGE, MEMORY, ENDED, SLOW = (
    'a result', 'refused', 'another error', 'another result', 'large', 'memory', 'process ended', 'too slow',
)  # fmt: skip
SIZES = (0, 1, 2, 3, 7, 2**10, 2**16, 2**31 - 1, 2**31, 2**32 + 1, 2**62)
INTEGERS = (
    0,
    -1,
    1,
    2,
    3,
    5,
    2**16 + 1,
    2**30 - 1,
    2**31 - 1,
    2**31 + 1,
    2**32 + 3,
    2**62 + 1,
    -(2**31),
    -(2**63),
    2**63 - 1,
)
NUMBERS = (0.0, -1.0, math.nan, math.inf, -math.inf, 1e300, 1e-300)
DTYPES = tuple(
    getattr(torch, name)
    for name in ('float16', 'bfloat16', 'float64', 'int64', 'int8', 'bool', 'complex64', 'float8_e4m3fn')
)
MUCH = 10**5  # numbers of all tensors: such a call may take long
SETTINGS = {
    **{name: fits for name, (fits, *_) in CALLS.items()},
    'window_zscore': dict(window_bias=torch.randn(1, 2, 4, 5, 9), outside_bias=torch.randn(1, 2, 4, 5), key_mask=None)
    | dict(window_size=[3, 3], outside_value=0.0, is_causal=False, support='global'),
    'projection': dict(x=torch.randn(2, 3, 4), weight=torch.randn(5, 4), bias=torch.randn(5)),
    'bilinear_logits': dict(query=torch.randn(2, 3, 4), key=torch.randn(2, 5, 4), weight=torch.randn(2, 2, 4)),
    'bilinear_pooling': dict(
        weights=torch.randn(2, 2, 3, 5).softmax(-1), query=torch.randn(2, 3, 4), value=torch.randn(2, 5, 4)
    ),
}
WHOLE = {  # further arguments that fit
    **{name: whole for name, (_, whole, _) in CALLS.items()},
    'window_zscore': dict(key_mask=torch.ones(1, 4, 5, dtype=torch.bool)),
}


def change_tensor(rng, x):
    try:
        return _change_tensor(rng, x)
    except (RuntimeError, NotImplementedError, IndexError, TypeError):  # torch has no such tensor
        return x


def _change_tensor(rng, x):
    kind = rng.choice(('expand', 'expand', 'narrow', 'dtype', 'dims', 'strides', 'other', 'permute', 'values'))
    if kind == 'expand' and x.dim():
        dim, size = rng.randrange(x.dim()), rng.choice(SIZES)
        if size:
            return x.narrow(dim, 0, min(1, x.shape[dim])).expand(
                *[size if i == dim else n for i, n in enumerate(x.shape)]
            )
        return x.narrow(dim, 0, 0)
    if kind == 'narrow' and x.dim():
        dim = rng.randrange(x.dim())
        return x.narrow(dim, 0, rng.randrange(x.shape[dim] + 1))
    if kind == 'dtype':
        return x.to(rng.choice(DTYPES))
    if kind == 'dims':
        return rng.choice(
            (x[None], x.flatten(), x[0] if len(x) else x, x.sum(), x[..., None], x.unsqueeze(2), torch.empty(0))
        )
    if kind == 'strides':
        storage = torch.randn(64)
        return storage.as_strided(
            [rng.choice((0, 1, 2, 4, 5, 8)) for _ in x.shape], [rng.choice((0, 0, 1, 2)) for _ in x.shape]
        )
    if kind == 'permute':
        return x.permute(rng.sample(range(x.dim()), x.dim()))
    if kind == 'values':
        return x * rng.choice(NUMBERS) if x.is_floating_point() else ~x
    return rng.choice((
        lambda: x.to('meta'), lambda: x.to_sparse(), lambda: x.clone().requires_grad_(x.is_floating_point()),
        lambda: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8), lambda: x.to(torch.complex64).conj(),
        lambda: x.expand(2**20, *x.shape), lambda: x.to_mkldnn() if x.dtype == torch.float32 else x,
    ))()  # fmt: skip


def change(rng, arguments):
    """Change one or a few arguments, and return them with a description."""
    arguments = dict(arguments)
    said = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        name = rng.choice([*arguments])
        value = arguments[name]
        if isinstance(value, torch.Tensor):
            # several tensors of one shape usually change together
            new = change_tensor(rng, value)
            together = rng.random() < 0.5 and all(n > 0 for n in value.shape)
            if together and new.shape != value.shape and new.layout is torch.strided and new.device.type == 'cpu':
                for other, x in arguments.items():
                    if isinstance(x, torch.Tensor) and x.shape == value.shape and x.dtype == value.dtype == new.dtype:
                        arguments[other] = new
            arguments[name] = new
            said.append(f'{name} {new.dtype} {list(new.shape)}')
            continue
        if isinstance(value, bool):
            new = not value
        elif isinstance(value, int):
            new = rng.choice(
                [n for n in INTEGERS if n < 10] if name == 'iterations' else INTEGERS
            )  # it would take long
        elif isinstance(value, float):
            new = rng.choice(NUMBERS)
        elif isinstance(value, str):
            new = rng.choice(('', 'x', 'strided', 'forward', 'centred', 'grid', 'global', 'é' * 1000))
        elif isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
            new = list(value)
            new[rng.randrange(len(new))] = change_tensor(rng, new[0])
            new = rng.choice((new, new[:-1], [*new, new[0]], []))
        elif isinstance(value, list):
            new = [rng.choice(INTEGERS) if rng.random() < 0.7 else n for n in value]
            new = rng.choice((new, new, new, new[:-1], [*new, 3], [], [3] * 100, [rng.choice(INTEGERS)] * len(value)))
            if value and isinstance(value[0], bool):
                new = [bool(n) for n in new]
        else:
            new = None
        arguments[name] = new
        said.append(f'{name}={shorten(new)}')
    return arguments, ', '.join(said)


def leaves(x):
    return (
        [x]
        if isinstance(x, torch.Tensor)
        else [y for part in x for y in leaves(part)]
        if isinstance(x, list | tuple)
        else []
    )


def is_large(arguments):
    tensors = leaves([*arguments.values()])
    return any(x.layout is torch.strided and math.prod(x.shape) > MUCH for x in tensors)


def equal(x, y):
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    return torch.allclose(x.double(), y.double(), rtol=0.05, atol=0.05, equal_nan=True)


class Calls:
    """The changed calls of an operator, or of its backward operator, by number."""

    def __init__(self, name, seed):
        self.name, self.seed = name, seed
        forward = name.removesuffix('_backward')
        self.op = getattr(torch.ops.mmattn, name)
        self.fits = [SETTINGS[forward], {**SETTINGS[forward], **WHOLE.get(forward, {})}]
        if name != forward:
            self.fits = [self.backward(forward, fits) for fits in self.fits]
        for fits in self.fits:
            self.op(**fits)

    def backward(self, forward, fits):
        """Arguments of the backward operator."""
        found = getattr(torch.ops.mmattn, forward)(**fits)
        outputs = [found] if isinstance(found, torch.Tensor) else list(found)
        names = [x.name for x in self.op.default._schema.arguments]
        leading = names[: names.index(next(iter(SETTINGS[forward])))]
        kept = iter(outputs)
        grads = {name: outputs[i] for i, name in enumerate(name for name in leading if name.startswith('grad'))}
        leading = {**grads, **{name: next(kept) for name in leading if not name.startswith('grad')}}
        if 'return_lse' in names:
            leading['return_lse'] = True
        return {**leading, **fits, 'needed': [x.is_floating_point() for x in leaves([*fits.values()])]}

    def __call__(self, number):
        rng = generator(self.seed, self.name, number)
        arguments, what = change(rng, rng.choice(self.fits))
        large = is_large(arguments)
        try:
            found = leaves([self.op(**arguments)])
        except (ValueError, TypeError) as error:
            return REFUSED, f'{type(error).__name__}: {error}'[:200], what, large
        except Exception as error:
            said = f'{type(error).__name__}: {error}'.partition('\n')[0][:200]
            if isinstance(error, MemoryError) or 'allocat' in said:
                return LARGE if large else MEMORY, said, what, large
            return OTHER, said, what, large
        given = leaves([*arguments.values()])
        if large or any(x.is_meta or x.layout is not torch.strided for x in given):
            return RESULT, '', what, large
        numbers = [abs(x) for x in arguments.values() if isinstance(x, float)]
        numbers += [float(x.abs().float().max()) for x in given if x.is_floating_point() and x.numel()]
        # the derivative of a kernel reads outputs that the reference computes again
        if 'grad' in arguments or not all(number < 100 for number in numbers):
            return RESULT, '', what, large
        with dispatch.backend('reference'):
            try:
                expected = leaves([self.op(**arguments)])
            except Exception as error:
                return DIFFERENT, f'the reference: {type(error).__name__}: {error}'[:200], what, large
        same = len(found) == len(expected) and all(map(equal, found, expected))
        return RESULT if same else DIFFERENT, '', what, large


def run(name, count, seed):
    """Yield the answer, its text and the change of each call."""
    calls = Calls(name, seed)
    for number, (found, said, *rest) in answers(calls, count):
        if not rest or not rest[0]:  # the child has ended
            rng = generator(seed, name, number)
            arguments, what = change(rng, rng.choice(calls.fits))
            rest = what, is_large(arguments)
            found = LARGE if found == SLOW and rest[1] else found
        yield found, said, rest[0]


def names():
    return [
        name for forward in SETTINGS for name in (forward, f'{forward}_backward') if hasattr(torch.ops.mmattn, name)
    ]
