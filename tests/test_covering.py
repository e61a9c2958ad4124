"""The cases that run by default have every value, and every pair of values, that the others have."""

from collections import Counter
from itertools import combinations, product

import pytest

from .covering import covering, left_out


@pytest.mark.every_case
@pytest.mark.parametrize('strength', [1, 2])
@pytest.mark.parametrize('sizes', [(5, 3), (16, 5, 5), (2, 2, 2), (3, 4, 2, 3)], ids=str)
def test_all_that_occurs_occurs_in_the_cases_taken(sizes, strength):
    rows = [row for row in product(*map(range, sizes)) if sum(row) % 7]  # some combinations do not exist
    taken = [rows[position] for position in covering(rows, strength)]

    def occurring(rows):
        return {pair for row in rows for pair in combinations(enumerate(row), strength)}

    assert occurring(taken) == occurring(rows)
    largest = sorted(sizes)[-strength:]
    assert len(taken) <= 1.4 * (largest[0] * largest[-1] if strength == 2 else largest[0])


CASES = """
import pytest

product = pytest.mark.parametrize('a', [1, 2, 3]), pytest.mark.parametrize('b', [4, 5])


def three(test):
    return product[0](product[1](pytest.mark.parametrize('c', [6, 7])(test)))


@pytest.mark.one_case
@pytest.mark.parametrize('a', [pytest.param(1, marks=pytest.mark.slow), 2, 3])
@product[1]
@pytest.mark.parametrize('c', [6, 7])
def test_one(a, b, c): ...


@pytest.mark.every_case
@three
def test_every(a, b, c): ...


@three
def test_pairs(a, b, c): ...


@three
def test_branches(a, b, c):
    for each in (b, c):
        if each + a == 10:
            assert c


@pytest.mark.one_case
@product[0]
def test_one_branches(a):
    assert a if a == 3 else True
    if a == 2:
        assert a
"""


def test_a_mark_says_how_many_cases_run(pytester):
    items = pytester.getitems(CASES)
    kept = [item for item in items if item not in left_out(items)]
    count = Counter(x.originalname for x in kept)
    assert next(x.callspec.params['a'] for x in kept if x.originalname == 'test_one') == 2  # not the one marked slow
    pairs = count.pop('test_pairs')
    assert 6 <= pairs < 12
    assert count == dict(test_one=1, test_every=12, test_branches=12, test_one_branches=3)


MARKED = """
@pytest.mark.slow
def test_slow(): ...


@pytest.mark.required_by('bi_cc/cc_r18-d8-half_1xb8-50_buildings-256x256.py')
def test_that_the_default_environment_skips(): ...
"""


def test_the_rest_is_all_that_does_not_run_by_default(pytester):
    """A test of a part that ``run_tests.sh --rest`` installs is in both, and skipped by default."""
    pytester.makeconftest('from tests.conftest import pytest_addoption, pytest_collection_modifyitems')
    pytester.makepyfile(CASES + MARKED)

    def collect(*options):
        lines = pytester.runpytest('--collect-only', '-q', *options).outlines
        return [line for line in lines if '::' in line]

    default, rest, every = (collect(*options) for options in (['-m', 'not slow'], ['--rest'], ['--all-cases']))
    assert sorted({*default, *rest}) == sorted(every)
    assert [name.rpartition('::')[2] for name in default if name in rest] == ['test_that_the_default_environment_skips']
