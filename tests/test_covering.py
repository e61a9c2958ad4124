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
