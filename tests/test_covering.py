"""The cases that run by default have every value, and every pair of values, that the others have."""

from itertools import combinations, product

import pytest

from .covering import covering


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


def test_values_given_together_are_one_parameter(pytester):
    pytester.makeconftest('from tests.conftest import pytest_addoption, pytest_collection_modifyitems')
    pytester.makepyfile("""
        import pytest

        values = [pytest.param(2, 3), pytest.param(2, 4), pytest.param(5, 3)]

        @pytest.mark.parametrize('c', [0, 1, 2])
        @pytest.mark.parametrize(('a', 'b'), values)
        def test_two_parameters(a, b, c): ...

        @pytest.mark.parametrize('d', [True, False])
        @pytest.mark.parametrize('c', [0, 1, 2])
        @pytest.mark.parametrize(('a', 'b'), values)
        def test_three_parameters(a, b, c, d): ...

        @pytest.mark.every_case
        @pytest.mark.parametrize('c', [0, 1, 2])
        @pytest.mark.parametrize(('a', 'b'), values)
        def test_every_case(a, b, c): ...

        @pytest.mark.parametrize('c', [0, 1, 2])
        def test_one_parameter(c): ...
    """)
    assert pytester.inline_run('-p', 'no:cacheprovider').countoutcomes() == [3 + 9 + 9 + 3, 0, 0]
    assert pytester.inline_run('-p', 'no:cacheprovider', '--all-cases').countoutcomes() == [9 + 18 + 9 + 3, 0, 0]
