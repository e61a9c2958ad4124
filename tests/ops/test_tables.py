"""Tables that are kept: which calls share one, and what never gets one."""

import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mmattn import ops
from mmattn.ops import dispatch, tables
from mmattn.ops.tables import kept

from ..support.comparison import evaluate
from ..support.operator_calls import operator, small_calls
from .literal import assert_same


@pytest.fixture(autouse=True)
def empty(monkeypatch):
    monkeypatch.setattr(tables, '_kept', {})


def positions(length, device):
    return torch.arange(length, device=device)


def test_calls_of_one_size_share_a_table():
    x = torch.ones(2)
    first = kept(positions, x, 5)
    assert kept(positions, x[1:], 5) is first
    assert torch.equal(kept(positions, x, 6), torch.arange(6))
    assert kept(positions, torch.ones(2, device='meta'), 5).device.type == 'meta'


def test_no_operator_changes_a_table():
    """All operators, both passes: each table is what it was when it was new, and a second call has the same result."""
    for call in small_calls().values():
        if call.operator not in dispatch.OPERATORS:
            continue
        results = []
        for _ in range(2):
            with dispatch.backend('composition'):
                results.append(evaluate(operator(call.operator), call.tensors, **call.settings))
        assert_same(*results, 0, 0)
    assert len(tables._kept) > 40
    for (function, device, arguments), result in tables._kept.items():
        fresh = function(*arguments, device=device)
        results = zip(*(x if isinstance(x, tuple) else (x,) for x in (result, fresh)), strict=True)
        assert all(torch.equal(x, y) for x, y in results), function


def test_tables_do_not_outgrow_their_memory(monkeypatch):
    monkeypatch.setattr(tables, 'MOST_BYTES', 1000)
    x = torch.ones(2)
    for length in range(1, 60):
        assert torch.equal(kept(positions, x, length), torch.arange(length))
        assert kept(positions, x, length) is kept(positions, x, length)
        assert sum(map(tables._bytes, tables._kept.values())) <= 1000
    assert kept(positions, x, 200) is kept(positions, x, 200)  # the newest, 1600 bytes, alone
    assert len(tables._kept) == 1


def blank(length, device):
    return torch.empty(length, dtype=torch.uint8, device=device)


def test_the_oldest_tables_go_first():
    """At most 512, and of 32 MiB together."""
    x = torch.ones(2)
    for length in range(514):
        kept(positions, x, length)
    assert [arguments for _, _, arguments in tables._kept] == [(length,) for length in range(2, 514)]
    tables._kept.clear()
    lengths = [2**22 - number for number in range(8)] + [28]
    for length in lengths:
        kept(blank, x, length)
    assert [arguments for _, _, arguments in tables._kept] == [(length,) for length in lengths]
    kept(blank, x, 1)
    assert [arguments for _, _, arguments in tables._kept] == [(length,) for length in [*lengths[1:], 1]]


def test_a_table_of_inference_serves_a_training():
    vectors = torch.randn(9, requires_grad=True)
    with torch.inference_mode():
        kept(positions, vectors, 5)
    (grad,) = torch.autograd.grad(vectors[kept(positions, vectors, 5)].sum(), vectors)
    assert grad.tolist() == [1.0] * 5 + [0.0] * 4


def test_what_ends_with_its_call_is_not_kept():
    """Fake tensors, those of torch.func, and those of a trace. A compiled call computes its table."""
    with FakeTensorMode():
        kept(positions, torch.ones(2, device='cuda'), 5)
        kept(positions, torch.ones(2), 5)
    assert not tables._kept

    def first(x):
        return x[kept(positions, x, 2)].sum()

    assert torch.func.grad(first)(torch.ones(3)).tolist() == [1, 1, 0]
    assert not tables._kept
    assert torch.jit.trace(first, torch.ones(3), check_trace=False)(torch.arange(3.0)) == 1
    assert not tables._kept
    program = torch.export.export(
        type('Module', (torch.nn.Module,), {'forward': lambda _, x: first(x)})(), (torch.ones(3),)
    )
    assert program.module()(torch.arange(3.0)) == 1
    assert not tables._kept
    assert torch.func.grad(first)(torch.ones(3)).tolist() == [1, 1, 0]
    assert first(torch.arange(3.0)) == 1
    assert torch.func.vmap(torch.func.grad(first))(torch.ones(2, 3)).tolist() == [[1, 1, 0]] * 2  # from those kept


def test_graphs_and_streams_of_a_gpu_compute_their_own_tables(monkeypatch):
    """A capture computes nothing, and a graph, or its warm-up, would hold or end the memory of a table."""
    monkeypatch.setattr(torch.cuda, 'is_current_stream_capturing', lambda: capturing)
    monkeypatch.setattr(torch.cuda, 'current_stream', lambda device: stream)
    monkeypatch.setattr(torch.cuda, 'default_stream', lambda device: 'default')
    device, capturing, stream = torch.device('cuda:0'), False, 'default'
    key = tables._key(positions, device, (5,))
    assert key is not None
    assert tables._key(positions, torch.device('cuda:1'), (5,)) not in (key, None)
    capturing = True
    assert tables._key(positions, device, (5,)) is None
    capturing, stream = False, 'of a warm-up'
    assert tables._key(positions, device, (5,)) is None


def test_threads():
    x, wrong = torch.ones(2), []

    def run(seed):
        lengths = torch.randperm(200, generator=torch.Generator().manual_seed(seed)).tolist()
        wrong.extend(n for n in lengths if not torch.equal(kept(positions, x, n), torch.arange(n)))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    with tables._storing:  # as in a process that was forked while another thread stored a table
        assert torch.equal(kept(positions, x, 300), torch.arange(300))


def test_the_offsets_of_a_pattern_are_computed_without_tensors():
    for size, step, pattern, key_size in (((3, 8), (2, 4), 'strided', None), ((5,), 2, 'forward', (7,))):
        ranges = ops.patterns.offset_ranges(size, step, pattern, key_size)
        listed = [[*range(x.first * x.step, x.end * x.step, x.step)] for x in ranges]
        assert listed == [x.tolist() for x in ops.strided_offsets(size, step, pattern, key_size)]
