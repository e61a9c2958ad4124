"""The extra memory of ``tools/benchmarks/ops.py --json``, as it was recorded."""

import json
import sys
from pathlib import Path

import pytest
import torch

from mmattn.utils.profiling import extra_memory

from ..requirements import requires

ROOT = Path(__file__).parents[2]
RECORDS = json.loads((Path(__file__).parent / 'benchmark.json').read_text(encoding='utf-8'))
MEASURED = ('P2', 'P3', 'P5', 'P6')  # those of a fraction of a second


@pytest.fixture(scope='module')
def workloads():
    sys.path.insert(0, str(ROOT / 'tools/benchmarks'))
    try:
        import workloads
    finally:
        sys.path.pop(0)
    return workloads.WORKLOADS


@requires('native operators')
@pytest.mark.parametrize('name', MEASURED)
def test_a_forward_pass_takes_the_memory_that_it_took(workloads, name):
    recorded = next(x['ours_mib'] for x in RECORDS if x['workload'] == name and x['pass'] == 'forward')
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # as recorded: each has scratch memory of its own
    try:
        call = workloads[name](True, torch.float32, 'cpu').ours
        with torch.no_grad():
            _, extra = extra_memory(lambda: call.function(*call.inputs))
    finally:
        torch.set_num_threads(threads)
    assert extra <= 1.1 * recorded + 1
