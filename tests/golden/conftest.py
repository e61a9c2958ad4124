"""The files and their comparison."""

from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent


@pytest.fixture
def same_lines(request):
    """``same_lines(name, lines)`` compares lines of text with those recorded, or records them."""

    def compare(name, lines):
        path = FOLDER / name
        if request.config.getoption('--update-golden'):
            path.write_text(''.join(f'{line}\n' for line in lines), encoding='utf-8')
        recorded = path.read_text(encoding='utf-8').splitlines()
        differing = [f'- {x}' for x in recorded if x not in {*lines}] + [
            f'+ {x}' for x in lines if x not in {*recorded}
        ]
        update = 'python -m pytest -n0 tests/golden --update-golden'
        assert not differing, '\n'.join([f'tests/golden/{name} differs; if that is intended: {update}', *differing])

    return compare


@pytest.fixture
def same_numbers(request):
    """``same_numbers(name, arrays, **tolerance)`` compares arrays, of six digits, with those recorded, or records."""

    def compare(name, arrays, **tolerance):
        path = FOLDER / name
        if request.config.getoption('--update-golden'):
            rows = (f'{key}: {" ".join(f"{x:.6g}" for x in array.ravel())}\n' for key, array in arrays.items())
            path.write_text(''.join(rows), encoding='utf-8')
        recorded = dict(line.rsplit(': ', 1) for line in path.read_text(encoding='utf-8').splitlines())
        assert list(arrays) == list(recorded)
        for key, array in arrays.items():
            np.testing.assert_allclose(array.ravel(), np.array(recorded[key].split(), float), **tolerance, err_msg=key)

    return compare
