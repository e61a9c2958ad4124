"""Rows that a table compares differ in what the table varies, and in nothing else: by what their models compute."""

import re
from functools import cache

import pytest
from mmengine.fileio import load

from mmattn.utils import config_path
from reproduction.source import entries
from reproduction.tables import read_tables

from ..requirements import requires
from .contrasts import differences, facts

pytestmark = [pytest.mark.slow, requires('mmcv operators')]

TABLES = read_tables()
COLLECTIONS = [part for path in sorted(config_path().glob('*/metafile.yml')) for part in load(path)['Collections']]
find = cache(lambda table, name, setting: facts(row_of(table, name, setting)))


def row_of(table, name, setting):
    (row,) = (row for row in TABLES[table] if (row.name, row.setting) == (name, setting))
    return row


def pairs(table):
    """Yield the rows of a table that are trained, each with the row that it is compared with, if that is, too."""
    for row in TABLES[table]:
        if row.baseline is not None and not row.members:
            other = row_of(table, *row.compared)
            if not other.members:
                yield row, other


def wrong_pairs(table):
    for row, other in pairs(table):
        said = [set(entry['Words']) for entry in entries(COLLECTIONS, 'Varies', row)][-1:]
        found = differences(find(table, row.name, row.setting), find(table, other.name, other.setting))
        if said != [found]:
            yield f'{row.name} ({row.setting}) differs from {other.name} in {sorted(found)}; Varies: {said}'


def chosen_on_the_test(table):
    for row in TABLES[table]:
        if not row.members and find(table, row.name, row.setting).chosen_on_test:
            yield f'{row.name} ({row.setting}): the best checkpoint is chosen on the data of the test'


def wrong_terms(table):
    """Yield the rows whose name begins with β1 β2 β3 β4, and of which a layer has other terms.

    They are those of self-attention, or, where the table varies the attention between encoder and decoder, of that.
    """
    for row in TABLES[table]:
        if digits := re.match('[01]{4}(?!\\d)', row.name):
            expected = ' '.join(f'E{i}' for i, digit in enumerate(digits[0], 1) if digit == '1')
            for role, layer in find(table, row.name, row.setting).attention.items():
                if ('cross' in role) == (table == 'terms-nmt-3d') and layer.terms != expected:
                    yield f'{row.name} ({row.setting}), {role}: {layer.terms}'


@pytest.mark.parametrize('table', TABLES)
def test_rows_differ_in_what_their_table_varies_and_in_nothing_else(table):
    wrong = [*wrong_pairs(table), *chosen_on_the_test(table), *wrong_terms(table)]
    assert not wrong, '\n'.join(wrong)
