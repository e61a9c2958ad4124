"""The extra memory of workloads of ``tools/benchmarks/ops.py``, as it was measured."""

import sys
from pathlib import Path

import pytest
import torch

from mmattn.utils.profiling import FORWARD, extra_memory

from ..requirements import requires

ROOT = Path(__file__).parents[2]
FORWARD_MIB = dict(P2=9.14, P3=0.30, P5=1.16, P6=0.82)  # those of a fraction of a second, with two threads


@pytest.fixture(scope='module')
def workloads():
    sys.path.insert(0, str(ROOT / 'tools/benchmarks'))
    try:
        import workloads
    finally:
        sys.path.pop(0)
    return workloads.OPERATORS


@requires('native operators')
@pytest.mark.parametrize(('name', 'mib'), FORWARD_MIB.items())
def test_a_forward_pass_takes_the_memory_that_it_took(workloads, name, mib):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # each has scratch memory of its own
    try:
        _, extra = extra_memory(workloads[name](False, torch.float32, 'cpu').ours.functions[FORWARD])
    finally:
        torch.set_num_threads(threads)
    assert extra <= 1.1 * mib + 1
