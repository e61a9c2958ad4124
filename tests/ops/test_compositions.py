"""The compositions: values and gradients against the references in float64, memory, launches, and no host tensors."""

import functools
import importlib
import math

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from mmattn import ops
from mmattn.ops import autograd, chunks, dispatch, library, patterns, table_attention
from mmattn.utils.profiling import extra_memory

from ..support.comparison import evaluate
from ..support.launches import Peak, as_on_a_gpu
from ..support.operator_calls import cast
from . import literal
from .literal import assert_same
from .test_random_options import check_calls

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)


@pytest.fixture(params=['as on CPUs', 'as on GPUs'])
def path(request, monkeypatch):
    """On GPUs, PyTorch's attention computes a slice and its gradients. On CPUs, formulas do, in the operands' dtype."""
    if request.param == 'as on GPUs':
        if torch.__version__.startswith('2.4'):
            pytest.skip("PyTorch's attention for CPUs gives NaN for whole blocks of −∞ in torch 2.4")
        monkeypatch.setattr(table_attention, 'uses_sdpa', lambda device: True)
    return request.param


@pytest.mark.slow
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize('name', library.KERNELS)
def test_values_and_gradients_are_those_of_the_reference(path, name, dtype):
    """A hundred random calls with all options of the operator."""

    def check(op, call):
        tensors = cast(call.tensors, dtype)
        with dispatch.backend('composition'):
            actual = evaluate(op, tensors, **call.settings)
        with dispatch.backend('reference'):
            expected = evaluate(op, tensors, torch.float64, **call.settings)
        exact = dtype == torch.float64
        for key, x in expected.items():
            assert actual[key].dtype == dtype
            atol = (1e-10 if exact else 2e-5) * literal.largest(x)
            assert_same({key: actual[key].double()}, {key: x}, atol=atol, rtol=1e-8 if exact else 1e-3)

    check_calls(name, check, 100)


@pytest.mark.parametrize('channels', [(136, 8), (8, 130)])
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
def test_gradients_of_more_channels_than_pytorchs_kernels_keep(monkeypatch, dtype, channels):
    """On GPUs, PyTorch's attention computes the outputs, and formulas the gradients, without a log-sum-exp."""
    monkeypatch.setattr(table_attention, 'uses_sdpa', lambda device: True)
    of_global = importlib.import_module('mmattn.ops.global_attention')  # the package has a function of this name
    monkeypatch.setattr(of_global, 'sdpa_backward', None)  # it is not called
    shapes = {'query': channels[0], 'key': channels[0], 'value': channels[1], 'window_bias': 9}
    tensors = {name: literal.randn(2, 2, 4, 5, c, seed=i).to(dtype) for i, (name, c) in enumerate(shapes.items())}
    mask = torch.ones(2, 4, 5, dtype=torch.bool)
    mask[0, 1:3, 2:], mask[1] = False, False  # the second sample has no keys
    tensors |= {'outside_bias': literal.randn(2, 2, 4, 5, seed=9).to(dtype), 'key_mask': mask}
    with dispatch.backend('composition'):
        actual = evaluate(ops.global_attention, tensors, window_size=3)
    with dispatch.backend('reference'):
        expected = evaluate(ops.global_attention, tensors, torch.float64, window_size=3)
    tolerance = {'atol': 1e-10, 'rtol': 1e-10} if dtype == torch.float64 else {'atol': 1e-4, 'rtol': 1e-4}
    assert_same(actual, expected, **tolerance, check_dtype=False)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
def test_operands_of_pytorchs_kernels_start_aligned(dtype):
    """A view that begins at an odd element is copied, and other views are not."""
    whole = torch.arange(129.0).to(dtype)
    view, odd = whole[:128].view(2, 8, 8), whole[1:].view(2, 8, 8)
    assert table_attention.pad(view).data_ptr() == view.data_ptr()
    padded = table_attention.pad(odd)
    assert padded.data_ptr() % table_attention.ALIGNMENT == 0
    assert torch.equal(padded, odd)


def test_keys_and_channels_are_padded_to_multiples_of_eight():
    """Of keys, one more counts, which is empty."""
    assert [table_attention.padded_keys(count) for count in (0, 7, 8)] == [8, 8, 16]
    shapes = [tuple(table_attention.pad(torch.ones(2, 3, count), 5).shape) for count in (0, 1, 8, 9)]
    assert shapes == [(2, 5, 8)] * 3 + [(2, 5, 16)]
    assert table_attention.pad(torch.ones(1, 2, 3), 4).sum() == 6


def test_pytorchs_attention_runs_without_cudnn(monkeypatch):
    """Which plans anew for each size; afterwards, it is as the user has set it."""
    enabled = []
    original = F.scaled_dot_product_attention

    def record(*arguments, **settings):
        enabled.append(torch.backends.cuda.cudnn_sdp_enabled())
        return original(*arguments, **settings)

    monkeypatch.setattr(F, 'scaled_dot_product_attention', record)
    x = torch.randn(1, 1, 8, 8)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    table_attention.sdpa(x, x, x, None, 1.0)
    assert enabled == [False]
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


@pytest.mark.slow
@pytest.mark.parametrize('name', library.KERNELS)
def test_slices_do_not_change_the_result(monkeypatch, path, name):
    """Slices of a few rows, heads or batch items each."""

    def check(op, call):
        results = []
        for budget in (2**30, 2000):
            monkeypatch.setattr(chunks, 'CHUNK_BYTES', budget)
            with dispatch.backend('composition'):
                results.append(evaluate(op, call.tensors, torch.float64, **call.settings))
        assert_same(*results, atol=1e-9, rtol=1e-9)

    check_calls(name, check, 15)


@pytest.mark.parametrize('window', [False, True], ids=['content', 'window'])
@pytest.mark.parametrize('batch', [0, 2, 5])
def test_batches_that_the_kernels_of_pytorch_accept(monkeypatch, batch, window):
    """They have a largest batch, and in torch < 2.10 some reject an empty one."""
    monkeypatch.setattr(table_attention, 'uses_sdpa', lambda device: True)
    monkeypatch.setattr(table_attention, 'MOST_BATCHES', 2)
    attention, batches = F.scaled_dot_product_attention, []

    def recorded(query, *args, **kwargs):
        batches.append(len(query))
        return attention(query, *args, **kwargs)

    monkeypatch.setattr(F, 'scaled_dot_product_attention', recorded)
    tensors = literal.operands((3, 4), batch, 2)
    settings = {}
    if window:
        tensors['window_bias'], settings = literal.randn(batch, 2, 3, 4, 9, seed=4), dict(window_size=3)
    with dispatch.backend('composition'):
        actual = evaluate(ops.global_attention, tensors, torch.float64, **settings)
    assert set(batches) <= {1, 2}
    assert bool(batches) is bool(batch)
    with dispatch.backend('reference'):
        assert_same(actual, evaluate(ops.global_attention, tensors, torch.float64, **settings), atol=1e-10, rtol=1e-8)


def test_batches_fit_a_grid_of_blocks(monkeypatch):
    """Of at most 2¹⁶ − 1 on that axis."""
    batches = []
    monkeypatch.setattr(F, 'scaled_dot_product_attention', lambda q, *_, **__: batches.append(len(q)) or q)
    x = torch.empty(2**16 + 1, 1, 1, 8, device='meta')
    assert table_attention.sdpa(x, x, x, None, 1.0).shape == x.shape
    assert len(batches) > 1
    assert max(batches) < 2**16


@pytest.mark.parametrize(
    ('channels', 'with_table', 'expected'), [(128, True, True), (129, True, False), (129, False, True)]
)
def test_gradients_are_those_of_pytorchs_kernels_where_they_keep_the_channels(channels, with_table, expected):
    assert table_attention.uses_sdpa_backward(torch.device('cuda'), channels, with_table) is expected


def test_neighbours_far_outside_the_map_take_no_memory():
    tensors = literal.operands((5, 4), 1, 2)
    with dispatch.backend('composition'):
        actual, near = (
            evaluate(ops.local_attention, tensors, torch.float64, kernel_size=5, dilation=dilation)
            for dilation in (10**9, 5)
        )
    assert_same(actual, near, atol=0, rtol=0)
    with dispatch.backend('reference'):
        expected = evaluate(ops.local_attention, tensors, torch.float64, kernel_size=5, dilation=10**9)
    assert_same(actual, expected, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
def test_the_log_sum_exp_of_no_key(path, dtype):
    """−∞, beside an output of 0; that of another sample is finite."""
    tensors = literal.operands((3, 4), 2, 2, dtype=dtype)
    tensors['window_bias'] = literal.randn(2, 2, 3, 4, 9, seed=4, dtype=dtype)
    key_mask = torch.ones(2, 3, 4, dtype=torch.bool)
    key_mask[0] = False
    with dispatch.backend('composition'):
        out, lse = ops.global_attention(**tensors, window_size=3, key_mask=key_mask, return_lse=True)
    assert (lse[0] == -torch.inf).all()
    assert not out[0].any()
    assert lse[1].isfinite().all()


def positions_of_a_map(size, window, channels, dtype):
    """Query, key, value, window biases, and biases outside the window, of one head."""
    randn = functools.partial(literal.randn, dtype=torch.float32)
    tensors = [randn(2, 1, *size, channels, seed=i).to(dtype) for i in range(3)]
    return *tensors, randn(2, 1, *size, window, seed=3), randn(2, 1, *size, seed=4)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_weight_of_the_empty_key_is_one_in_the_backward_pass_of_pytorchs_kernels(dtype):
    """On GPUs, they keep lse = (max · log₂ e) / log₂ e + log Σ in float32, and compute weights as exp(logit − lse)."""
    log2e = torch.tensor(math.log2(math.e))
    logit = torch.tensor(table_attention.lowest(dtype), dtype=dtype).float()  # as the table stores it
    scaled = logit * log2e
    exact = (logit.double() * log2e.double() - scaled.double()).float()  # of a fused multiply-add in the forward pass
    for remainder in (torch.zeros(()), exact):
        total = torch.exp2(remainder)
        lse = scaled / log2e + total.log()
        weight = torch.exp(logit - lse)
        assert total == 1
        assert weight == 1
        assert (0.5 - 0.5) * weight == 0  # the gradient of the logit, whose average is its only summand


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=str)
def test_errors_in_16_bit_are_those_of_pytorchs_attention(path, dtype):
    """The error of outputs and gradients, beside PyTorch's attention with the same table in the same dtype."""
    side, k = 12, 5
    tensors = positions_of_a_map((side, side), k * k, 32, dtype)

    def ours(*tensors):
        query, key, value, window, outside = tensors
        return ops.global_attention(query, key, value, window_bias=window, window_size=k, outside_bias=outside)

    def pytorchs(query, key, value, window, outside):
        biases = torch.cat([window.flatten(2, 3), outside.flatten(2).unsqueeze(-1)], -1)
        table = biases.gather(-1, literal.box((side, side), (k, k)).expand(2, 1, -1, -1)).to(query.dtype)
        rows = (x.flatten(2, 3) for x in (query, key, value))
        return F.scaled_dot_product_attention(*rows, table).view_as(value)

    def results(call, tensors):
        leaves = [x.detach().requires_grad_() for x in tensors]
        out = call(*leaves)
        return [out, *torch.autograd.grad(out, leaves, torch.linspace(-1, 1, out.numel()).view_as(out).to(out.dtype))]

    exact = results(pytorchs, [x.double() for x in tensors])
    with dispatch.backend('composition'):
        errors = [(a - b).abs().mean() for a, b in zip(results(ours, tensors), exact)]
    theirs = [(a - b).abs().mean() for a, b in zip(results(pytorchs, tensors), exact)]
    for error, their_error in zip(errors, theirs, strict=True):
        assert error < (1.2 if path == 'as on GPUs' else 3) * their_error


@pytest.mark.parametrize(('dtype', 'large'), [(torch.float16, 2048), (torch.bfloat16, 256)], ids=str)
def test_logits_of_neighbours_are_not_rounded(path, dtype, large):
    """Products that 16 bit hold, and sums, ``large`` + 0 to 2, that they do not."""
    small = torch.arange(20).view(1, 1, 4, 5) % 3
    key = torch.stack([torch.full_like(small, large), small], -1).to(dtype)
    value = literal.randn(1, 1, 4, 5, 3, seed=0).to(dtype)
    with dispatch.backend('composition'):
        actual = ops.local_attention(torch.ones_like(key), key, value, scale=1.0)
    expected = ops.local_attention(*(x.double() for x in (torch.ones_like(key), key, value)), scale=1.0)
    torch.testing.assert_close(actual, expected.to(dtype), rtol=3 * torch.finfo(dtype).eps, atol=1e-3)


class Launches(TorchDispatchMode):
    """Counts operations that compute: neither views nor allocations. Fails where the device is left."""

    VIEWS = ('aten._unsafe_view', 'aten.unfold', 'aten.expand')

    def __init__(self, device):
        super().__init__()
        self.device, self.count, self.products = device, 0, set()

    def __torch_dispatch__(self, operation, types, arguments=(), kwargs=None):
        outputs = operation(*arguments, **(kwargs or {}))
        name = str(operation)
        assert '_local_scalar_dense' not in name, 'the device would be synchronised'
        tensors = [x for x in (*arguments, outputs) if isinstance(x, torch.Tensor) and x.dim()]
        assert all(x.device.type == self.device for x in tensors), f'{name} uses another device'
        if not (operation.is_view or 'empty' in name or name.startswith(self.VIEWS)):
            self.count += 1
        if 'mm' in name:
            self.products |= {x.dtype for x in tensors}
        return outputs


@pytest.fixture
def meta(monkeypatch):
    as_on_a_gpu(monkeypatch)
    return functools.partial(torch.empty, device='meta')


def launches(*arguments, **settings):
    return both_passes(*arguments, **settings).count


def both_passes(name, arguments, lse=(), implementation='composition', leading=1, device='meta'):
    """Run both passes and return what they launched."""
    operator = dispatch.OPERATORS[name]
    needed = [True] * len(autograd.list_tensors(arguments))
    with Launches(device) as mode:
        outputs = operator.compute(implementation, (*arguments, *lse))
        outputs = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
        kept = () if name == 'local_attention' else outputs if lse else ()
        grads = (outputs[0], None) if lse else outputs[:leading]
        operator.compute_backward(implementation, (*grads, *kept, *arguments, *lse, needed))
    return mode


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
def test_launches(meta, dtype):
    """Of both passes, with the z-score, on two maps of 97×97 (BA: eight of 96×96). Nothing looks at a value."""
    size, k, half = (2, 1, 97, 97), 31, functools.partial(meta, dtype=dtype)
    window, outside = meta(*size, k * k), meta(*size)
    normalised = zscore(window, outside, k, 'global')
    # 256: the formulas of the backward pass are faster than one kernel. In 16 bit, they also hold the mean in channels.
    for channels, most in ((128, 170), (256, 195 if dtype == torch.float32 else 230)):
        x = half(*size, channels)
        call = literal.arguments('global_attention', x, x, x, window_bias=window, window_size=k, outside_bias=outside)
        assert launches('global_attention', call, [False]) + normalised <= most
    window, x = meta(*size, 2 * k - 1), half(*size, 64)
    call = literal.arguments(
        'grid_attention', x, x, half(*size, 512), window_bias=window, window_size=k, outside_bias=outside
    )
    normalised = zscore(window, outside, k, 'grid')
    # The softmax is computed arm by arm, because a table of all arms would need half as much memory again on a CPU.
    assert launches('grid_attention', call, [False]) + normalised <= 150
    x = half(8, 8, 96, 96, 32)
    call = literal.arguments('local_attention', x, x, x, window_bias=half(8, 8, 96, 96, 9))
    assert launches('local_attention', call, [False]) <= 60


def zscore(window, outside, k, support):
    window, outside = window.detach().requires_grad_(), outside.detach().requires_grad_()
    for _ in range(2):  # after a first step, which computes the tables of keys
        with Launches('meta') as mode:
            outputs = ops.unit_variance(window, k, outside, support=support)
            torch.autograd.grad(outputs, (window, outside), outputs)
    return mode.count


@pytest.mark.parametrize('side', [97, 193])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
def test_memory_on_a_gpu_is_that_of_a_slice(meta, dtype, side):
    """Beside outputs and gradients, both passes of P1 take a slice of 1 GiB at most, also where all pairs take 5."""
    x, window = (meta(1, 1, side, side, count, dtype=dtype) for count in (256, 31**2))
    biases = dict(window_bias=window, window_size=31, outside_bias=x[..., 0])
    call = literal.arguments('global_attention', x, x, x, **biases)
    with Peak() as forward:
        outputs = dispatch.OPERATORS['global_attention'].compute('composition', (*call, False))
    operands = outputs[0], None, *outputs, *call, False, [True] * 5
    with Peak() as backward:
        grads = dispatch.OPERATORS['global_attention'].compute_backward('composition', operands)
    results = sum(y.nbytes for y in (*outputs, *grads))
    assert side == 97 or 2**29 < forward.bytes < chunks.GPU_CHUNK_BYTES
    assert 2**29 < backward.bytes < chunks.GPU_CHUNK_BYTES + results


@pytest.mark.parametrize('pattern', patterns.PATTERNS)
@pytest.mark.parametrize('biased', [False, True])
def test_no_tensor_of_the_host_in_strided_attention(meta, pattern, biased):
    """Host tensors would be copied in every call, and cannot be in a CUDA graph. Sizes that are no multiples, too."""
    x = meta(1, 2, 5, 9, 11, 16)
    offsets = ops.strided_offsets((5, 9, 11), (2, 3, 4), pattern)
    biases = [meta(1, 2, 5, 9, 11, len(offset)) for offset in offsets] if biased else ()
    call = literal.arguments('strided_attention', x, x, x, pattern=pattern, step=(2, 3, 4), offset_bias=biases)
    assert launches('strided_attention', call, [False])


def test_products_under_autocast_are_in_16_bit():
    """On a CPU: the products of the formulas, forward and backward."""
    query, key, value, window, outside = positions_of_a_map((6, 7), 9, 8, torch.float32)
    with torch.autocast('cpu', torch.bfloat16):
        calls = {
            'global_attention': literal.arguments(
                'global_attention', query, key, value, window_bias=window, window_size=3, outside_bias=outside
            ),
            'grid_attention': literal.arguments(
                'grid_attention', query, key, value, window_bias=window[..., :5], window_size=3, outside_bias=outside
            ),
            'strided_attention': literal.arguments('strided_attention', query, key, value, pattern='centred', step=3),
        }
    for name, arguments in calls.items():
        mode = both_passes(name, arguments, [False], device='cpu')
        assert mode.products == {torch.bfloat16}, name


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['global', 'grid'])
def test_memory_grows_as_the_map(kind):
    """Of about four times the positions: at most 4.2 times the extra memory. All pairs would need 16 times."""
    extra = []
    for side in (65, 129) if kind == 'global' else (129, 257):  # the time of global attention is that of all pairs
        entries = 31**2 if kind == 'global' else 61
        channels = 64 if kind == 'global' else 16
        query, key, value, window, outside = [
            x[:1].detach().requires_grad_() for x in positions_of_a_map((side, side), entries, channels, torch.float32)
        ]
        operator = ops.global_attention if kind == 'global' else ops.grid_attention

        def call(operator=operator, query=query, key=key, value=value, window=window, outside=outside):
            out = operator(query, key, value, window_bias=window, window_size=31, outside_bias=outside)
            return torch.autograd.grad(out, [query, key, value, window, outside], torch.ones_like(out))

        with dispatch.backend('composition'):
            extra.append(extra_memory(call)[1])
    assert extra[1] < 4.2 * extra[0]
