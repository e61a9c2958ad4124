"""Small networks have the weights and compute the numbers that they had."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from .networks import describe
from .tables import types

NETWORKS = json.loads(gzip.decompress((Path(__file__).parent / 'networks.json.gz').read_bytes()))
FIRST = {str(types(NETWORKS[name]['model'])): name for name in reversed(NETWORKS)}  # one of each kind


@pytest.mark.parametrize(
    'name', [name if name in FIRST.values() else pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS]
)
def test_network(name):
    frozen = NETWORKS[name]
    now = describe(frozen)
    assert now['state'] == frozen['state']
    assert [shape for shape, _ in now['outputs']] == [shape for shape, _ in frozen['outputs']]
    for (_, found), (_, expected) in zip(now['outputs'], frozen['outputs']):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
