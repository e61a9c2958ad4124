"""Slices of a call: as long as fits a budget of bytes."""

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from mmattn.ops import chunks


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


@pytest.mark.parametrize(('device', 'budget'), [('cpu', 64), ('meta', 512)])
@pytest.mark.parametrize('tables', [1, 3])
def test_slices_of_rows_of_a_grid_fit_their_tables_of_logits(device, budget, tables):
    """A table of a row of 50×6 queries of 2×3 heads has 400 + 50 + 6 keys for each, of 4 bytes."""
    query = torch.empty(2, 3, 400, 50, 6, 1, device=device)
    row = 2 * 3 * 50 * 6 * (400 + 50 + 6) * tables * 4
    rows = budget * 2**20 // row
    slices = import_module('mmattn.ops.grid_attention')._slices
    found = slices(SimpleNamespace(query=query), tables)
    assert [part.start for part in found] == [*range(0, 400, rows)]
