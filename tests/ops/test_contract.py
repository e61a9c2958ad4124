"""Operators × implementations × properties: what every operator promises, by whatever computes it.

The calls are all of ``tests/support/operator_calls.py``, and one of each kind of operands here. ``implementations.py``
has what computes them. A property runs for each call by each implementation in all its dtypes. Where a property has
further axes, such as layouts and numbers of channels, they are combined within a test, in step: strides and channels
of a tensor are read in one place of an implementation, which other operands do not change. Larger maps, of several
tiles, are in ``test_kernels.py``, and edges of maps in ``test_equations.py``.
"""

import functools
import inspect
import itertools
import math

import pytest
import torch
import torch._dynamo.testing

from mmattn import ops
from mmattn.ops import export
from mmattn.ops.dispatch import OPERATORS
from mmattn.ops.patterns import PATTERNS
from mmattn.utils.profiling import extra_memory

from ..requirements import requires
from ..support import operator_calls
from ..support.comparison import evaluate
from ..support.operator_calls import QKV, Call, cast, each, randn, small_calls
from . import literal, zscored
from .implementations import REFERENCE, TRITON, by_all, run_each
from .literal import (
    AFTER,
    LAYOUTS,
    LEARNED,
    SWITCHES,
    Calls,
    assert_same,
    check_operator,
    low_precision,
    record_slices,
)

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)
ALL = small_calls()
# One of each operator with every kind of operand.
RICH = {
    'global_attention': ALL['global_attention: everything'],
    'grid_attention': ALL['grid_attention: 3d, learned outlier'],
    'local_attention': ALL['local_attention: k 3×5, content and geometry'],
    'strided_attention': ALL['strided_attention: centred, offset logits'],
    'dynamic_conv': ALL['dynamic_conv: k 3×5'],
}
rich = pytest.mark.parametrize('name', RICH)


def plain(name, dtype=torch.float64):
    """A call with every kind of operand, without z-score and log-sum-exp."""
    settings = {key: x for key, x in RICH[name].settings.items() if key not in ('normalize', 'return_lse')}
    return cast(RICH[name].tensors, dtype), settings


def test_the_calls_have_every_option():
    """With several values each, operands that may be absent both ways, and every pattern on 1 to 3 axes."""
    found, required = {}, set()
    for call in ALL.values():
        for name, option in inspect.signature(getattr(ops, call.operator)).parameters.items():
            value = call.settings.get(name, name in call.tensors or option.default)
            found.setdefault((call.operator, name), set()).add(value)
            if option.default is option.empty:
                required.add((call.operator, name))
    few = {option: values for option, values in found.items() if len(values) < 2}
    assert {option for option, values in few.items() if values == {True}} == {*few} <= required
    softmaxes = [x.settings for x in ALL.values() if x.operator == 'global_attention']
    switches = {(x.get('is_causal', False), x.get('normalize', False)) for x in softmaxes}
    assert switches == {*itertools.product((False, True), repeat=2)}
    axes = [(len(x.tensors['query'].shape) - 3, x.settings['pattern']) for x in ALL.values() if 'pattern' in x.settings]
    assert {*axes} == {(count, pattern) for count in (1, 2, 3) for pattern in PATTERNS}


BIASES = ('window_bias', 'outside_bias', 'offset_bias', 'axis_bias', 'key_bias', 'logits')
# An operator, and options of `make`.
VARIANTS = {
    **{
        f'{kind}{"-zscore" if normalize else ""}': (f'{kind}_attention', {'normalize': normalize})
        for kind in ('global', 'grid')
        for normalize in (False, True)
    },
    'global-further': ('global_attention', {'further': True}),
    **{f'local-{name}': ('local_attention', SWITCHES[name]) for name in ('bilateral', 'refined', 'geometric')},
    **{pattern: ('strided_attention', {'pattern': pattern}) for pattern in PATTERNS},
    'one group': ('strided_attention', {'pattern': 'block', 'step': 9}),
    'dynamic_conv': ('dynamic_conv', {}),
}


def make(variant, size=None, outside_bias=LEARNED, heads=2, **more):
    """A call: of a 3-D map in strided attention, of a 2-D map in the others."""
    if variant in ALL:
        settings = {key: x for key, x in ALL[variant].settings.items() if key != 'return_lse'}
        return Call(ALL[variant].operator, dict(ALL[variant].tensors), settings)
    name, options = VARIANTS[variant]
    size = size or ((2, 3, 4) if name == 'strided_attention' else (3, 4))
    more |= {'batch': 2, 'heads': heads}
    if name == 'dynamic_conv':
        return Call(name, *literal.with_logits(size, 3, **more))
    if name == 'local_attention':
        return Call(name, *literal.with_kernel(size, 3, **more, **options))
    if name == 'strided_attention':
        return Call(name, *literal.with_offsets(size, options.get('step', 2), options['pattern'], **more))
    tensors, settings = literal.with_window(name, size, 3, outside_bias, **more)
    tensors |= literal.further(size) if 'further' in options else {}
    return Call(name, tensors, settings | {key: x for key, x in options.items() if key == 'normalize'})


def check(implementations, call, after=lambda op: op, also=lambda actual: None, few_keys=False):
    """Values and all gradients are those of the equation in float64, from tensors that are rounded to a dtype.

    ``also`` is called with the results of each implementation.
    """
    equation, own, exact = after(getattr(literal, call.operator)), after(zscored.operator(call.operator)), {}

    def compare(dtype):
        tensors = cast(call.tensors, dtype)
        if dtype not in exact:
            exact[dtype] = evaluate(equation, tensors, torch.float64, **call.settings)
        expected, actual = exact[dtype], evaluate(own, tensors, **call.settings)
        for name, x in actual.items():
            assert x.dtype == dtype or name == 'lse' or (call.operator, name) == ('bilinear_logits', 'output')
        tolerance = {'check_dtype': False} if dtype == torch.float64 else low_precision(dtype)
        if dtype != torch.float64:  # gradients are sums, and the z-score of few keys multiplies them
            factor = 4 if few_keys or call.settings.get('normalize') else 1
            tolerance['atol'] *= factor * max(map(literal.largest, expected.values()))
        assert_same(actual, expected, **tolerance)
        also(actual)

    run_each(implementations, call, compare)


@pytest.mark.every_case
@by_all
@pytest.mark.parametrize('name', ALL)
def test_values_and_gradients_are_those_of_the_equation(name, implementations):
    low = REFERENCE._replace(dtypes=(torch.float32, torch.bfloat16, torch.float16))
    check([*implementations, *([low] if REFERENCE in implementations else [])], ALL[name], few_keys=True)


@pytest.mark.every_case
@by_all
@pytest.mark.parametrize('variant', VARIANTS)
def test_layouts(variant, implementations):
    """Of operands, biases and the cotangent. Frames one below the other are a map."""
    for number, (layout, after) in enumerate(itertools.product(LAYOUTS.values(), AFTER.values())):
        channels = (3, 1, 4, 16, 35)[number % 5]
        call = make(variant, value_channels=channels, **{} if 'geometric' in variant else {'channels': channels})

        def lay(x, layout=layout):
            if x.dtype == torch.bool:
                return x
            return layout(x.flatten(2, 3)).unflatten(2, x.shape[2:4]) if x.dim() == 6 else layout(x)

        call.tensors = each(call.tensors, lay)
        check(implementations, call, after)


HEADS_LAST = {'heads_last': lambda x: x.movedim(1, -2).contiguous().movedim(-2, 1)}


@pytest.mark.every_case
@by_all
@rich
def test_the_output_has_the_dimension_order_of_value(name, implementations):
    for layout in (x for key, x in (LAYOUTS | HEADS_LAST).items() if key != 'expanded'):
        tensors, settings = plain(name)
        if tensors['value'].dim() != 5 and layout not in HEADS_LAST.values():
            continue
        tensors['value'] = layout(tensors['value'])

        def compare(dtype, tensors=tensors, settings=settings):
            tensors = cast(tensors, dtype)
            out = getattr(ops, name)(**tensors, **settings)
            order = sorted(range(out.dim()), key=lambda d: -tensors['value'].stride(d))
            if name == 'grid_attention' and tensors['value'].stride(-1) != 1:
                order = list(range(out.dim()))
            assert out.permute(order).is_contiguous()

        forward = [x for x in implementations if x is not TRITON]  # whose context asks for both passes
        run_each(forward, Call(name, tensors, settings), compare)


# Which operands are one tensor; Algorithm 1 has one for all three.
SHARED = {'all': 'xxx', 'query_key': 'xxy', 'key_value': 'xyy', 'query_value': 'xyx'}


def share(places, op):
    """An operator of x and y, each in some places."""

    def shared(x, y=None, **others):
        return op(**{key: x if place == 'x' else y for key, place in places.items()}, **others)

    return shared


@pytest.mark.every_case
@by_all
@pytest.mark.parametrize('variant', [x for x in VARIANTS if x not in ('local-geometric', 'dynamic_conv')])
def test_one_tensor_in_several_places(variant, implementations):
    """Its gradient is the sum of those of its places."""
    for which in SHARED.values():
        call = make(variant, value_channels=3)
        places = dict(zip(QKV, which))
        others = {key: x for key, x in call.tensors.items() if key not in QKV}
        call.tensors = {place: call.tensors[key] for key, place in places.items()} | others

        check(implementations, call, functools.partial(share, places))


@pytest.mark.every_case
@by_all
@rich
def test_only_needed_gradients_are_computed(name, implementations):
    """The backward operator returns only the needed gradients; they equal those of a call that needs all."""

    def compare(dtype):
        run, leaves = flat(name, dtype)
        every = [x.detach().requires_grad_() for x in leaves]
        expected = torch.autograd.grad(run(*every).square().sum(), every)
        for kept in range(len(leaves)):
            for frozen in (False, True):  # one needs a gradient, or all but one do
                those = [i for i in range(len(leaves)) if (i == kept) != frozen]
                some = [x.detach().requires_grad_(i in those) for i, x in enumerate(leaves)]
                with Calls() as seen:
                    found = torch.autograd.grad(run(*some).square().sum(), [some[i] for i in those])
                assert sum(seen.seen[-1][1][-1]) == len(those)
                for x, i in zip(found, those):
                    torch.testing.assert_close(x, expected[i])

    run_each(implementations, Call(name, *plain(name)), compare)


# What is multiplied, so that logits are 1e4 times as large.
LARGE = {
    'content': dict(query=100, key=100),
    'position': {name: 1e4 for name in BIASES if name != 'outside_bias'},
    'outside_bias': dict(outside_bias=1e4),
    'both': dict.fromkeys(BIASES, 1e4) | dict(query=100, key=100),
}
MORE = {
    f'{kind}-{title}{"-zscore" if normalize else ""}': (f'{kind}-zscore' if normalize else kind, outside)
    for kind in ('global', 'grid')
    for title, outside in (('zero', 0.0), ('neg_inf', -math.inf))
    for normalize in (False, True)
    if not (normalize and outside)
}


@pytest.mark.every_case
@by_all
@pytest.mark.parametrize('variant', [*VARIANTS, *MORE])
def test_logits_of_1e4(variant, implementations):
    """Nothing overflows. A float32 logit of 1e4 is off by up to some 1e-3, its weight by as much of itself."""
    variant, outside = MORE.get(variant, (variant, LEARNED))
    for large in LARGE.values():
        call = make(variant, (3, 4, 5) if variant in PATTERNS else (4, 5), outside, heads=1)
        for key, factor in large.items():
            call.tensors |= each({key: call.tensors[key]} if key in call.tensors else {}, lambda x, by=factor: x * by)
        call.settings |= {key: -1e4 for key in ('outside_bias',) if key in large and outside == 0.0}

        def compare(dtype, call=call):
            tensors = cast(call.tensors, dtype)
            actual = evaluate(zscored.operator(call.operator), tensors, **call.settings)
            assert all(x.isfinite().all() for x in actual.values())
            expected = evaluate(getattr(literal, call.operator), tensors, torch.float64, **call.settings)
            torch.testing.assert_close(
                actual['output'].double(), expected['output'], atol=1e-2, rtol=torch.finfo(dtype).eps
            )
            if call.operator == 'dynamic_conv':  # it has logits alone, which are exact
                assert_same(actual, expected, **low_precision(dtype))

        low = REFERENCE._replace(dtypes=(torch.float16,))
        run_each([*implementations, *([low] if REFERENCE in implementations else [])], call, compare)


@pytest.mark.every_case
@by_all
@pytest.mark.parametrize('variant', [x for x in VARIANTS if 'zscore' not in x])
def test_neg_inf_removes_keys(variant, implementations):
    """From the last softmax: the passes before it go by content alone. A query without keys gives 0."""
    call = make(variant, (3, 4, 5) if variant in PATTERNS else (4, 5))
    key = next(key for key in ('window_bias', 'offset_bias', 'logits') if key in call.tensors)
    parts = call.tensors[key] if isinstance(call.tensors[key], tuple) else (call.tensors[key],)
    removed = [randn(*x.shape, seed=9 + axis) > 0.5 for axis, x in enumerate(parts)]
    if call.operator == 'dynamic_conv':
        removed[0][..., 4] = False
    else:
        removed[0][:, :, 1] = True
    parts = [x.masked_fill(r, -math.inf) for x, r in zip(parts, removed)]
    call.tensors[key] = tuple(parts) if isinstance(call.tensors[key], tuple) else parts[0]

    def also(actual):
        assert all(x.isfinite().all() for x in actual.values())
        for axis, r in enumerate(removed):
            assert not actual[f'd_{key}{axis or ""}'][r].any()
        if call.operator in ('local_attention', 'strided_attention'):
            assert not actual['output'][:, :, 1].any()

    check(implementations, call, also=also)


@pytest.mark.every_case
@by_all
@pytest.mark.parametrize('variant', VARIANTS)
def test_float32_with_bfloat16(variant, implementations):
    """Each gradient has the dtype of its tensor."""
    call = make(variant, (3, 4, 5) if variant in PATTERNS else (4, 5))
    for wide in (True, False):  # the biases, or the operands
        dtypes = {key: torch.float32 if (key in BIASES) == wide else torch.bfloat16 for key in call.tensors}
        tensors = {key: cast({key: x}, dtypes[key])[key] for key, x in call.tensors.items()}
        expected = evaluate(getattr(literal, call.operator), tensors, torch.float64, **call.settings)

        def compare(_, tensors=tensors, dtypes=dtypes, expected=expected):
            actual = evaluate(zscored.operator(call.operator), tensors, **call.settings)
            assert actual['output'].dtype == dtypes['value']
            for key, x in actual.items():
                assert key == 'output' or x.dtype == dtypes[key[2:].rstrip('0123456789')]
            assert_same(actual, expected, **low_precision(torch.bfloat16))

        mixed = [x for x in implementations if 'composition' not in x.name and x is not TRITON]  # it takes one dtype
        run_each(mixed, call, compare, dtypes={torch.float32})


# Of several tiles of keys; of whole vectors of 16 and a rest.
MASKED = {
    'key_mask': [
        ('global_attention', (400,), ('key_bias',), dict(return_lse=True)),
        ('global_attention', (3, 5, 4), (), dict(is_causal=True)),
        ('global_attention', (9, 7), ('window_bias',), dict(window_size=3)),
        ('local_attention', (5, 35), (), dict(kernel_size=3, return_lse=True)),
        ('local_attention', (6, 7), ('window_bias',), dict(kernel_size=3, iterations=2, dilation=2)),
    ],
    'key_bias': [
        ('global_attention', (400,), (), dict(return_lse=True)),
        ('global_attention', (3, 5, 4), (), dict(is_causal=True)),
        ('global_attention', (9, 7), ('window_bias',), dict(window_size=3)),
    ],
}
MASKED_CALLS = [(mask_by, *call) for mask_by, calls in MASKED.items() for call in calls]


@pytest.mark.every_case
@by_all
@pytest.mark.parametrize(('mask_by', 'name', 'size', 'biases', 'settings'), MASKED_CALLS, ids=str)
def test_masked_keys_and_values_reach_nothing(mask_by, name, size, biases, settings, implementations):
    """They may hold anything: results and gradients are as if they were 0. So it is in exported graphs."""
    call = operator_calls.make(name, size, *biases, batch=2, heads=2, channels=5, value_channels=5, **settings)
    mask = torch.rand(2, *size, generator=torch.Generator().manual_seed(1)) > 0.5
    masked = dict.fromkeys(('key', 'value'), ~mask[:, None, ..., None])
    if 'key_bias' in biases:
        masked['key_bias'] = ~mask[:, None]

    def poisoned(number, dtype):
        tensors = {key: x.to(dtype) for key, x in call.tensors.items()}
        tensors |= {key: tensors[key].masked_fill(entries, number) for key, entries in masked.items()}
        if mask_by == 'key_mask':
            return tensors, call.settings | {'key_mask': mask}
        removed = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -math.inf)[:, None]
        return tensors, call.settings | {'key_bias': removed}

    def compare(dtype):
        results = []
        for number in (0, math.nan, math.inf, -math.inf):
            tensors, given = poisoned(number, dtype)
            results.append(evaluate(getattr(ops, name), tensors, **given))
        expected, *others = results
        assert all(x.isfinite().all() for key, x in expected.items() if key != 'lse')
        assert not any(expected[f'd_{key}'].masked_select(entries).any() for key, entries in masked.items())
        for other in others:
            assert_same(other, expected, 0, 0)

    run_each(implementations, Call(name, *poisoned(0, torch.float64)), compare)
    if REFERENCE in implementations:
        run = export.COMPOSITIONS[OPERATORS[name].run]
        expected, *others = (
            run(*literal.arguments(name, **tensors, **given))
            for tensors, given in (poisoned(x, torch.float32) for x in (0, math.nan, math.inf, -math.inf))
        )
        assert all(all(map(torch.equal, outputs, expected)) for outputs in others)


def flat(name, dtype=torch.float64):
    """The dispatcher's operator, its arguments, and where the floating-point tensors among them are."""
    tensors, settings = plain(name, dtype)
    without_lse = (False,) if name == 'local_attention' else ()  # CUDA kernels compute none there
    arguments = literal.arguments(name, **tensors, **settings)
    leaves, spec = torch.utils._pytree.tree_flatten((*arguments, *without_lse))
    places = [i for i, x in enumerate(leaves) if torch.is_tensor(x) and x.is_floating_point()]

    def run(*found):
        filled = list(leaves)
        for place, x in zip(places, found, strict=True):
            filled[place] = x
        out = getattr(torch.ops.mmattn, name)(*torch.utils._pytree.tree_unflatten(filled, spec))
        return out if torch.is_tensor(out) else out[0]

    return run, [leaves[i] for i in places]


@rich
def test_the_dispatchers_operator_has_the_same_gradients(name):
    tensors, settings = plain(name)
    expected = evaluate(getattr(ops, name), tensors, **settings)
    run, leaves = flat(name)
    leaves = [x.detach().requires_grad_() for x in leaves]
    out = run(*leaves)
    found = torch.autograd.grad(out, leaves, literal.cotangent(out))
    torch.testing.assert_close(out, expected.pop('output'), atol=1e-10, rtol=1e-10)
    order = OPERATORS[name].Arguments._fields
    in_order = sorted(expected, key=lambda key: (order.index(key[2:].rstrip('0123456789')), key))
    for actual, key in zip(found, in_order, strict=True):
        x = expected[key]  # biases are expanded for the dispatcher
        torch.testing.assert_close(actual.sum_to_size(x.shape), x, atol=1e-10, rtol=1e-10)


@rich
def test_an_exported_graph_has_the_same_gradients(name):
    tensors, settings = plain(name, torch.float32)
    operator = getattr(ops, name)

    class Module(torch.nn.Module):
        def forward(self, **tensors):
            return operator(**tensors, **settings)

    exported = torch.export.export(Module(), (), tensors).module()
    assert_same(evaluate(exported, tensors), evaluate(operator, tensors, **settings), 0, 0)


@requires('native operators')
def test_a_frozen_window_costs_no_memory():
    """Its gradient would be another 4 MiB that is not needed; returned tensors do not count."""
    query, key, value = (randn(1, 1, 33, 33, 8, seed=seed, dtype=torch.float32).requires_grad_() for seed in range(3))
    window = randn(1, 1, 33, 33, 31**2, seed=3, dtype=torch.float32)
    extra = {}
    for learned in (False, True):
        bias = window.clone().requires_grad_(learned)
        inputs = [query, key, value, *([bias] if learned else [])]
        out = ops.global_attention(query, key, value, window_bias=bias, window_size=31).sum()
        _, extra[learned] = extra_memory(lambda out=out, inputs=inputs: torch.autograd.grad(out, inputs))
    assert extra[False] < extra[True] + 0.5


# Of a call in one piece: lengths of slices in each pass. Bytes of slices of several queries, groups or heads.
SLICES = {
    'global_attention': ([35], 20_000),
    'grid_attention': ([5], 50_000),
    'local_attention': ([2, 5], 60_000),
    'strided_attention': (None, 2**18),
    'dynamic_conv': ([2, 5], 60_000),
}


@pytest.mark.slow
@pytest.mark.parametrize('several', [False, True], ids=['of one', 'of several'])
@pytest.mark.parametrize('variant', VARIANTS)
def test_slices_do_not_change_the_result(monkeypatch, variant, several):
    """Slices of one query, row, or item and head, and of several with a shorter last one."""
    size = {'one group': (3, 4, 2)}.get(variant, (4, 5, 3) if variant in PATTERNS else (5, 7))
    call = make(variant, size, heads=3 if len(size) == 3 else 5)
    of_neighbours = call.operator in ('local_attention', 'dynamic_conv')
    slices = record_slices(monkeypatch, f'mmattn.ops.{"neighbourhood" if of_neighbours else call.operator}')
    operator, (whole_slices, budget) = zscored.operator(call.operator), SLICES[call.operator]
    whole = evaluate(operator, call.tensors, **call.settings)
    assert slices == whole_slices * 2 if whole_slices else len(slices) == 2 * 8  # forward and backward; 8 dimensions
    pieces = len(slices)
    slices.clear()
    monkeypatch.setattr('mmattn.ops.chunks.CHUNK_BYTES', budget if several else 1)
    sliced = evaluate(operator, call.tensors, **call.settings)
    assert len(slices) > pieces
    assert (max(slices) == 1) != several
    assert_same(sliced, whole, 1e-12, 1e-12)


# With and without biases, of 2-D and 3-D maps, of keys at other positions.
CHECKED = [
    *VARIANTS,
    'global_attention: 2d',
    'grid_attention: 2d',
    'grid_attention: 3d, z-score',
    'local_attention: k 3, content',
    'local_attention: iterations 3, content',
    'strided_attention: step of ⌈√side⌉',
    *(f'strided_attention: 3d, {pattern}' for pattern in PATTERNS),
    *(f'strided_attention: {pattern}, keys at other positions' for pattern in PATTERNS),
]


@pytest.mark.slow
@pytest.mark.parametrize('variant', CHECKED)
def test_opcheck(variant):
    """Where gradients have the strides of the tensors, in every layout."""
    call = make(variant)
    tensors = cast(call.tensors, torch.float32)
    if call.operator == 'local_attention':  # else the second output is undefined
        call.settings['return_lse'] = True
    layouts = LAYOUTS.values() if variant in ('local-refined', 'dynamic_conv') else [lambda x: x]
    for layout in layouts:
        check_operator(zscored.operator(call.operator), each(tensors, layout), call.settings)


@pytest.mark.one_case
@pytest.mark.parametrize('variant', CHECKED)
def test_compile(variant):
    torch.compiler.reset()
    call = make(variant)
    tensors, operator = cast(call.tensors, torch.float32), zscored.operator(call.operator)
    compiled = torch.compile(operator, fullgraph=True, backend='aot_eager')
    assert_same(evaluate(compiled, tensors, **call.settings), evaluate(operator, tensors, **call.settings), 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize('variant', VARIANTS)
def test_gradcheck(variant):
    call = make(variant, (2, 1, 3) if variant in (*PATTERNS, 'one group') else (2, 3))
    mask = {key: call.tensors.pop(key) for key in ('key_mask',) if key in call.tensors}
    leaves, spec = torch.utils._pytree.tree_flatten(call.tensors)

    def run(*leaves):
        tensors = torch.utils._pytree.tree_unflatten(leaves, spec)
        return zscored.operator(call.operator)(**tensors, **mask, **call.settings)

    assert torch.autograd.gradcheck(run, [x.requires_grad_() for x in leaves])


GROUPED = [name for name in RICH if name != 'dynamic_conv']


@pytest.mark.parametrize('query', [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize('name', GROUPED)
def test_autocast_casts_query_key_and_value(name, query):
    """As for PyTorch's attention; the gradients have the dtypes of the tensors."""
    tensors, settings = plain(name, torch.float32)
    tensors['query'] = tensors['query'].to(query)
    operator = getattr(ops, name)
    if query != torch.float32:
        with pytest.raises(TypeError, match='share one floating-point dtype'):
            operator(**tensors, **settings)

    def cast(**tensors):
        return operator(**tensors | {key: tensors[key].bfloat16() for key in ('query', 'key', 'value')}, **settings)

    expected = evaluate(cast, tensors)
    with torch.autocast('cpu'):
        actual = evaluate(operator, tensors, **settings)
    assert actual['output'].dtype == torch.bfloat16
    assert_same(actual, expected, 0, 0)
    with torch.autocast('cpu'):
        double = operator(**plain(name)[0], **settings)
    assert double.dtype == torch.float64


@pytest.mark.parametrize('key_heads', [1, 2])
@pytest.mark.parametrize('name', GROUPED)
def test_fewer_key_heads_are_shared_by_groups_of_query_heads(name, key_heads):
    size = (3, 4)
    query = randn(2, 4, *size, 3, seed=1)
    key, value = (randn(2, key_heads, *size, channels, seed=channels) for channels in (3, 2))
    settings = {'pattern': 'centred', 'step': 2} if name == 'strided_attention' else {}
    operator = getattr(ops, name)

    def repeated(query, key, value, **settings):
        key, value = (x[:, [0, 0, 1, 1] if key_heads == 2 else [0] * 4] for x in (key, value))
        return getattr(literal, name)(query, key, value, **settings)

    tensors = {'query': query, 'key': key, 'value': value}
    assert_same(evaluate(operator, tensors, **settings), evaluate(repeated, tensors, **settings))


@pytest.mark.parametrize('count', [1, 2, 3])
@pytest.mark.parametrize('window', [False, True], ids=['content', 'window'])
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize('size', [(5,), (4, 3), (3, 2, 2)], ids=str)
def test_fewer_queries_are_the_last_positions(size, dtype, window, count):
    """Decoding: the outputs and gradients of the last queries of a call with all of them."""
    for is_causal in (False, True):
        if not (window or is_causal):
            continue
        given = dict(batch=2, heads=2, is_causal=is_causal, dtype=dtype)
        tensors, settings = literal.with_window('global_attention', size, 3, LEARNED if window else None, **given)
        settings['is_causal'] = is_causal

        def last_of_all(count=count, settings=settings, **tensors):
            return literal.global_attention(**tensors, **settings)[:, :, -count:]

        def of_last(count=count, settings=settings, **tensors):
            own = {key: x if key in ('key', 'value') else x[:, :, -count:] for key, x in tensors.items()}
            return ops.global_attention(**own, **settings)

        tolerance = {} if dtype == torch.float64 else low_precision(dtype) | {'check_dtype': True}
        assert_same(evaluate(of_last, tensors), evaluate(last_of_all, tensors), **tolerance)


def test_attention_over_two_parts_of_the_keys_is_merged_by_their_lse():
    call = ALL['global_attention: 2d, learned outlier']
    tensors, settings = call.tensors, call.settings
    first = torch.rand(1, 3, 4, generator=torch.Generator().manual_seed(0)) < 0.5

    def merged(**tensors):
        parts = [ops.global_attention(**tensors, **settings, key_mask=m, return_lse=True) for m in (first, ~first)]
        shares = torch.stack([lse for _, lse in parts]).softmax(0).unsqueeze(-1)
        return sum(out * share for (out, _), share in zip(parts, shares))

    assert_same(evaluate(merged, tensors), evaluate(ops.global_attention, tensors, **settings))


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
def test_tokens_are_merged_with_local_attention(dtype):
    """The example of its docstring against one softmax over neighbours and tokens. Some queries have no neighbour."""
    size, window = (3, 4), {'window_bias': randn(2, 9, seed=5)}
    shapes = {'query': size, 'key': size, 'value': size, 'token_keys': (5,), 'token_values': (5,)}
    tensors = {name: randn(2, 2, *shape, 3, seed=i) for i, (name, shape) in enumerate(shapes.items())} | window
    mask = torch.ones(2, *size, dtype=torch.bool)
    mask[0, :2, :2] = False

    def merged(query, key, value, token_keys, token_values, window_bias):
        near, near_lse = ops.local_attention(
            query, key, value, 3, window_bias=window_bias, key_mask=mask, return_lse=True
        )
        far, far_lse = ops.global_attention(query.flatten(2, 3), token_keys, token_values, return_lse=True)
        share = (near_lse.flatten(2) - far_lse).sigmoid().unsqueeze(-1)
        return share * near.flatten(2, 3) + (1 - share) * far

    def joint(query, key, value, token_keys, token_values, window_bias):
        keys, values = (torch.cat([x.flatten(2, 3), y], 2) for x, y in ((key, token_keys), (value, token_values)))
        place = literal.neighbours(size, (3, 3), 1)
        place = torch.cat([place, torch.full((12, 5), 9)], 1)  # 9: no bias
        is_key = torch.cat([mask.flatten(1), torch.ones(2, 5, dtype=torch.bool)], 1)[:, None, None]
        return literal.dense(query.flatten(2, 3), keys, values, (place >= 0) & is_key, None, window_bias, place)

    expected = evaluate(joint, tensors)
    tolerance = {} if dtype == torch.float64 else {'atol': 1e-5, 'rtol': 1e-5, 'check_dtype': False}
    assert_same(evaluate(merged, tensors, dtype), expected, **tolerance)


EMPTY = {
    'no batch': lambda x: x[:0],
    'no heads': lambda x: x[:, :0],
    'no rows': lambda x: x[:, :, :0],
    'no columns': lambda x: x[:, :, :, :0],
    'no channels': lambda x: x[..., :0],
}


@pytest.mark.parametrize('fault', EMPTY)
@pytest.mark.parametrize('name', RICH)
def test_nothing_to_attend_to(name, fault):
    """An empty result, zeros, or an error of this package; never one of torch's."""
    for dtype in (torch.float32, torch.float64):
        tensors, settings = plain(name, dtype)
        settings = {key: x for key, x in settings.items() if key in ('pattern', 'step', 'kernel_size')}
        changed = [*QKV, 'logits'] if fault != 'no channels' else QKV
        tensors = {
            key: (EMPTY[fault](x) if key in changed else x).detach().requires_grad_()
            for key, x in tensors.items()
            if key in (*QKV, 'logits')
        }
        if fault in ('no rows', 'no columns') and name in ('grid_attention', 'strided_attention'):
            with pytest.raises(ValueError, match='at least one position'):
                getattr(ops, name)(**tensors, **settings)
            continue
        out = getattr(ops, name)(**tensors, **settings)
        assert out.numel() == 0
        assert out.shape[:-1] == tensors['value'].shape[:-1]
        grads = torch.autograd.grad(out.sum(), list(tensors.values()))
        assert all(not grad.any() for grad in grads)


def test_one_graph_of_strided_attention_without_a_step_for_five_shapes():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend('aot_eager')
    compiled = torch.compile(
        lambda *x: ops.strided_attention(*x, pattern='block'), backend=counter, dynamic=True, fullgraph=True
    )
    sizes = ((6, 5), (7, 9), (10, 8), (12, 17), (20, 11))
    for height, width in sizes:
        x = [randn(1, 2, height, width, 3, seed=seed, dtype=torch.float32) for seed in range(3)]
        torch.testing.assert_close(compiled(*x), ops.strided_attention(*x, pattern='block'))
    assert counter.frame_count == 1

    class Module(torch.nn.Module):
        def forward(self, query, key, value):
            return ops.strided_attention(query, key, value, pattern='block')

    height, width = torch.export.Dim('height', min=2), torch.export.Dim('width', min=2)
    x = tuple(randn(1, 2, 6, 5, 3, seed=seed, dtype=torch.float32) for seed in range(3))
    shapes = {key: {2: height, 3: width} for key in ('query', 'key', 'value')}
    exported = torch.export.export(Module(), x, dynamic_shapes=shapes).module()
    for height, width in sizes:
        x = [randn(1, 2, height, width, 3, seed=seed, dtype=torch.float32) for seed in range(3)]
        torch.testing.assert_close(exported(*x), ops.strided_attention(*x, pattern='block'))


def test_a_table_of_window_biases_exports_with_any_batch():
    """Heads, the first side of a table, are not compared with images, the first side of a call."""

    class Module(torch.nn.Module):
        def forward(self, query, table):
            far = ops.global_attention(query, query, query, window_bias=table, window_size=3)
            return far + ops.local_attention(query, query, query, 3, window_bias=table)

    table = randn(4, 9, seed=1, dtype=torch.float32)
    x = randn(2, 4, 6, 5, 3, seed=0, dtype=torch.float32)
    shapes = {'query': {0: torch.export.Dim('batch', min=2)}, 'table': {}}
    exported = torch.export.export(Module(), (x, table), dynamic_shapes=shapes).module()
    for batch in (2, 4, 5):  # 4: as many as heads
        x = randn(batch, 4, 6, 5, 3, seed=2, dtype=torch.float32)
        torch.testing.assert_close(exported(x, table), Module()(x, table))


def test_every_operator_is_in_these_tests():
    # without a kernel; their module is imported here: language/layers/test_bilinear_attention.py
    bilinear = {ops.bilinear_logits.__name__, ops.bilinear_pooling.__name__}
    assert set(OPERATORS) == {*RICH, *bilinear}
    assert {call.operator for call in ALL.values()} == {*RICH, 'projection', *bilinear}


def test_the_argument_lists_of_public_functions_end_in_those_of_the_schema():
    for name, operator in OPERATORS.items():
        schema = [argument.name for argument in operator.run._schema.arguments]
        assert schema == list(operator.Arguments._fields)
        given = {x.name: x.default_value for x in operator.run._schema.arguments if x.has_default_value()}
        assert given == operator.Arguments._field_defaults
        arguments = getattr(torch.ops.mmattn, f'{name}_backward').default._schema.arguments
        assert [x.name for x in arguments][-1 - len(schema) : -1] == schema
        assert not any(x.has_default_value() for x in arguments)  # the last one has none


@pytest.mark.slow
@pytest.mark.parametrize('support', ['global', 'grid', 'causal', 'masked'])
def test_unit_variance(support):
    """Variance 1 over the keys of each query, those outside the window included; gradients."""
    size, k = (3, 4), 3
    entries = {'global': 9, 'grid': 5, 'causal': 5, 'masked': 9}[support]
    settings = {'support': 'grid'} if support == 'grid' else {'is_causal': support == 'causal'}
    if support == 'masked':
        settings['key_mask'] = randn(2, *size, seed=9) > -0.5
    bias, outside = (randn(2, 2, *size, *more, seed=len(more)).requires_grad_() for more in ((entries,), ()))
    z, z_outside = ops.unit_variance(bias, k, outside, **settings)
    place = (literal.cross if support == 'grid' else literal.box)(size, (k, k))
    keys = place >= 0
    if support == 'causal':
        place = place.where(place < entries, entries)
        keys = torch.ones_like(place).tril().bool()
    keys = keys[None, None].expand(2, 2, -1, -1)
    if support == 'masked':
        keys = keys & settings['key_mask'].flatten(1)[:, None, None]

    def of_all_pairs(inside, outside):
        table = torch.cat([inside, outside.unsqueeze(-1)], -1).flatten(2, 3)
        return table.gather(-1, place.clamp(min=0).expand(2, 2, -1, -1))

    raw, found = of_all_pairs(bias, outside), of_all_pairs(z, z_outside)
    count = keys.sum(-1, keepdim=True)
    mean = raw.where(keys, 0).sum(-1, keepdim=True) / count
    deviation = ((raw - mean).square().where(keys, 0).sum(-1, keepdim=True) / count + 1e-5).sqrt()
    found = found - found.where(keys, 0).sum(-1, keepdim=True) / count  # a softmax sees no shift
    torch.testing.assert_close(found.where(keys, 0), ((raw - mean) / deviation).where(keys, 0))
    function = lambda bias, outside: ops.unit_variance(bias, k, outside, **settings)  # noqa: E731
    assert torch.autograd.gradcheck(function, (bias, outside))


def test_unit_variance_of_far_biases_is_exact():
    """E[x²] − μ² would cancel."""
    bias, outside = randn(1, 1, 5, 5, 9), randn(1, 1, 5, 5, seed=1)
    expected = ops.unit_variance(bias, 3, outside)
    found = ops.unit_variance((bias + 2**16).float(), 3, (outside + 2**16).float())
    # 2⁻⁷ is the step of float32 there
    for x, y in zip(found, expected):
        torch.testing.assert_close(x.double(), y, atol=2e-2, rtol=0)
