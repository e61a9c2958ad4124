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
SIZES = (1, 2, 3, 7, 2**10, 2**16, 2**31 - 1, 2**31, 2**32 + 1, 2**62)
INTEGERS = (0, -1, 1, 2, 3, 5, *(2**n + d for n in (16, 30, 31, 32, 62) for d in (-1, 1)), 2**63 - 1, -(2**63))
NUMBERS = (0.0, -1.0, math.nan, math.inf, -math.inf, 1e300, 1e-300)
TEXTS = ('', 'x', 'strided', 'forward', 'centred', 'grid', 'global', 'é' * 1000)
DTYPES = (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.bool, torch.complex64)
DTYPES += (torch.float8_e4m3fn,)
MUCH = 10**5  # numbers of all tensors: such a call may take long
SETTINGS = {
    **{name: fits for name, (fits, *_) in CALLS.items()},
    'projection': dict(x=torch.randn(2, 3, 4), weight=torch.randn(5, 4), bias=torch.randn(5)),
    'bilinear_logits': dict(query=torch.randn(2, 3, 4), key=torch.randn(2, 5, 4), weight=torch.randn(2, 2, 4)),
    'bilinear_pooling': dict(
        weights=torch.randn(2, 2, 3, 5).softmax(-1), query=torch.randn(2, 3, 4), value=torch.randn(2, 5, 4)
    ),
}
WHOLE = {name: whole for name, (_, whole, _) in CALLS.items()}  # further arguments that fit


def change_tensor(rng, x):
    """Another shape, type, layout or place of numbers. Where torch has no such tensor, the same one."""
    dim = rng.randrange(max(x.dim(), 1))
    size = rng.choice(SIZES)
    kinds = [
        lambda: x.narrow(dim, 0, 1).expand(*[size if i == dim else n for i, n in enumerate(x.shape)]),
        lambda: x.expand(2**20, *x.shape),
        lambda: x.narrow(dim, 0, rng.randrange(x.shape[dim] + 1)),
        lambda: x.to(rng.choice(DTYPES)),
        lambda: rng.choice((x[None], x.flatten(), x[0], x.sum(), x[..., None], x.unsqueeze(2), torch.empty(0))),
        lambda: torch.randn(64).as_strided(
            *([rng.choice(some) for _ in x.shape] for some in ((0, 1, 4, 5), (0, 1, 2)))
        ),
        lambda: x.permute(rng.sample(range(x.dim()), x.dim())),
        lambda: x * rng.choice(NUMBERS) if x.is_floating_point() else ~x,
        lambda: rng.choice((x.to('meta'), x.to_sparse(), x.to_mkldnn(), x.to(torch.complex64).conj())),
        lambda: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
        lambda: x.clone().requires_grad_(),
    ]
    try:
        return rng.choice(kinds[:1] + kinds)()
    except (RuntimeError, NotImplementedError, IndexError, TypeError):
        return x


def change_list(rng, values):
    """Other numbers, or another number of them."""
    if values and isinstance(values[0], torch.Tensor):
        new = list(values)
        new[rng.randrange(len(new))] = change_tensor(rng, new[0])
        return rng.choice((new, new[:-1], [*new, new[0]], []))
    new = [rng.choice(INTEGERS) if rng.random() < 0.7 else n for n in values]
    new = rng.choice((new, new, new, new[:-1], [*new, 3], [], [3] * 100, [rng.choice(INTEGERS)] * len(values)))
    return [*map(bool, new)] if values and isinstance(values[0], bool) else new


def change(rng, arguments):
    """Change one or a few arguments, and return them with a description. Tensors of one shape often change together."""
    arguments, said = dict(arguments), []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        name = rng.choice([*arguments])
        old = arguments[name]
        if isinstance(old, torch.Tensor):
            new = change_tensor(rng, old)
            if rng.random() < 0.5 and new.shape != old.shape and new.layout is torch.strided and not new.is_meta:
                for other, x in arguments.items():
                    if isinstance(x, torch.Tensor) and x.shape == old.shape and x.dtype == old.dtype == new.dtype:
                        arguments[other] = new
            said.append(f'{name} {new.dtype} {[*new.shape]}')
        else:
            # many iterations would take long
            integers = [n for n in INTEGERS if n < 10] if name == 'iterations' else INTEGERS
            of = {float: NUMBERS, str: TEXTS, int: integers, bool: (not old,)}
            new = change_list(rng, old) if isinstance(old, list) else rng.choice(of.get(type(old), (None,)))
            said.append(f'{name}={shorten(new)}')
        arguments[name] = new
    return arguments, ', '.join(said)


def leaves(x):
    """The tensors of nested lists."""
    if isinstance(x, list | tuple):
        return [y for part in x for y in leaves(part)]
    return [x] if isinstance(x, torch.Tensor) else []


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
