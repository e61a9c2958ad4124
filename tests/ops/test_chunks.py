"""Slices of a call: as long as fits a budget of bytes."""

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from mmattn import ops
from mmattn.ops import chunks, dispatch, table_attention
from mmattn.ops.neighbourhood import Offsets, Unfolded

from ..support.comparison import evaluate
from . import literal


@pytest.mark.parametrize(
    ('length', 'each', 'budget', 'ends'),
    [
        (7, 10, 30, [3, 6, 7]),
        (6, 10, 39, [3, 6]),
        (3, 10, 9, [1, 2, 3]),
        (3, 0, 5, [3]),
        (0, 1, 1, []),
        (2, 2**25, None, [2]),
    ],
)
def test_slices_are_as_long_as_fits(length, each, budget, ends):
    found = chunks.chunks(length, each, budget)
    if ends:
        assert [part.stop for part in found] == ends
        assert [part.start for part in found] == [0, *ends[:-1]]
    assert sum(len(range(length)[part]) for part in found) == length
    assert len(chunks.chunks(3, 2**25, None)) == 2  # 64 MiB


@pytest.mark.parametrize(('device', 'budget'), [('cpu', 64), ('meta', 1024)])
@pytest.mark.parametrize('logits', [456, 1368])
def test_slices_of_rows_of_a_grid_fit_their_logits(device, budget, logits):
    """Of a row of 50×6 queries of 2×3 heads, 4 bytes each."""
    query = torch.empty(2, 3, 400, 50, 6, 1, device=device)
    row = 2 * 3 * 50 * 6 * logits * 4
    rows = budget * 2**20 // row
    slices = import_module('mmattn.ops.grid_attention')._slices
    found = slices(SimpleNamespace(query=query), logits)
    assert [part.start for part in found] == [*range(0, 400, rows)]


MIB = 2**20


@pytest.mark.parametrize(('device', 'budget'), [('cpu', 64 * MIB), ('meta', 1024 * MIB)])
@pytest.mark.parametrize(('tables', 'window'), [(1, 0), (3, 0), (3, 2025)])
def test_slices_of_queries_fit_their_rows_of_logits(device, budget, tables, window):
    """A row is that of 6 heads. A window entry has four numbers in each, and two indices that all heads share."""
    flat = SimpleNamespace(
        query=torch.empty(2, 3, 9000, 1, device=device),
        key=torch.empty(2, 3, 5000, 1, device=device),
        window_bias=torch.empty(2, 3, 9000, window, device=device) if window else None,
        bias_dtype=torch.float32,
    )
    found = import_module('mmattn.ops.global_attention').FlatOperands.slices(flat, tables)
    rows = budget // (4 * (6 * (tables * 5000 + 4 * window) + 2 * window))
    assert [part.start for part in found] == [*range(0, 9000, rows)]


@pytest.mark.parametrize(('device', 'budget'), [('cpu', 4 * MIB), ('meta', 1024 * MIB)])
@pytest.mark.parametrize(('tables', 'offsets'), [(1, ()), (3, (9, 17))])
def test_slices_of_groups_fit_their_logits_and_operands(device, budget, tables, offsets):
    """Of 2×5 queries and 2×35 keys, of which seven are copies, of 3 and 4 channels, each twice."""
    groups = SimpleNamespace(
        query=torch.empty(80_000, 1, 1, 1, 2, 5, 3, device=device),
        value=torch.empty(1, 4, device=device),
        counts=offsets,
        keys=(2, 35),
        rank=2,
        dtype=torch.float32,
    )
    found = import_module('mmattn.ops.strided_attention').Groups.parts(groups, tables)
    numbers = tables * 70 + 2 * 8 * (3 + 4) + (2 * 9 + 2 + 2 * 17 + 35 if offsets else 0)
    assert [part[0].start for part in found] == [*range(0, 80_000, budget // (4 * numbers * 10))]


@pytest.mark.parametrize(('device', 'budget', 'length'), [('cpu', 2 * MIB, 20_000), ('meta', 256 * MIB, 1_400_000)])
def test_slices_of_a_z_score_fit_the_cache_or_a_quarter_of_the_budget(monkeypatch, device, budget, length):
    """On a GPU, there are about four tables."""
    zscore = import_module('mmattn.ops.zscore')
    monkeypatch.setattr(zscore, '_keys', lambda *_: None)
    window, lengths = torch.empty(2, 3, length, 9, device=device), []

    def function(_, x):
        lengths.append(x.shape[2])
        return (x,)

    zscore._in_slices(function, (length,), zscore._Windows(None, (9,), False, 'global'), window)
    assert lengths[0] == budget // (4 * 6 * 9)
    assert sum(lengths) == length


@pytest.mark.parametrize(
    ('kind', 'number'),
    [
        (Offsets, 3 * (5 + 9) * 4),  # three maps of 5 channels and tables of 9 weights, in float32
        (Unfolded, 9 * (5 * 2 + 4 * 4)),  # the neighbours in 16 bit, and four tables of weights in float32
    ],
)
def test_slices_of_heads_fit_their_neighbours(monkeypatch, kind, number):
    value = torch.empty(4, 6, 7, 8, 5, dtype=torch.bfloat16)
    area = kind(value.shape[2:4], (3, 3), 1)
    for heads, expected in ((2, 4 * 3), (6, 4), (12, 2)):
        for missing in (0, 1):
            monkeypatch.setattr(chunks, 'CHUNK_BYTES', heads * number * 7 * 8 - missing)
            found = [*area.parts(value, 5, 3)]
            assert (len(found) == expected) is not bool(missing)
            assert sum((x.stop - x.start) * (y.stop - y.start) for x, y in found) == 4 * 6


@pytest.mark.parametrize(
    ('name', 'passes'),
    [
        ('global_attention', dict(reference=[1, 2], composition=[4, 5], fused=[2, 4])),
        ('strided_attention', dict(reference=[1, 2], composition=[4, 5], fused=[2, 4])),
        ('grid_attention', dict(reference=[3 * (3 + 4), 4 * 4], composition=[3 * (3 + 4), 4 * 4])),
        ('local_attention', dict(reference=[5, 5], composition=[5, 5])),  # and one more for each pass
        ('dynamic_conv', dict(reference=[4, 4], composition=[4, 4])),
    ],
)
def test_tables_of_logits_in_each_pass(monkeypatch, name, passes):
    """By which a budget is divided. PyTorch's attention takes fewer of them."""
    counted = []

    def record(owner, function):
        original = getattr(owner, function)

        def recorded(self, *arguments, **options):
            counted.append([*arguments, *options.values()][-1])
            return original(self, *arguments, **options)

        monkeypatch.setattr(owner, function, recorded)

    module = import_module(f'mmattn.ops.{name}')
    places = dict(global_attention=[('FlatOperands', 'slices')], strided_attention=[('Groups', 'parts')])
    for owner, function in places.get(name, []):
        record(getattr(module, owner), function)
    if name == 'grid_attention':
        record(module, '_slices')
    for kind in (Offsets, Unfolded):
        record(kind, 'parts')
    tensors, settings = literal.operands((3, 4), 1, 2), {}
    settings |= dict(pattern='centred', step=2) if name == 'strided_attention' else {}
    settings |= dict(iterations=2) if name == 'local_attention' else {}
    if name == 'dynamic_conv':
        tensors, settings = literal.with_logits((3, 4), 3, 1, 2)
    for way, expected in passes.items():
        monkeypatch.setattr(table_attention, 'uses_sdpa', lambda device, way=way: way == 'fused')
        with dispatch.backend('composition' if way == 'fused' else way):
            evaluate(getattr(ops, name), tensors, **settings)
        assert counted == expected, way
        counted.clear()
