"""The report on the kernels for GPUs, tried on the kernels for CPUs."""

import sys

import pytest
import torch

from mmattn.ops import dispatch, library
from mmattn.utils import check_gpu

from .literal import one_thread

pytestmark = pytest.mark.skipif(library.UNAVAILABLE_REASON is not None, reason=str(library.UNAVAILABLE_REASON))
threads = pytest.fixture(autouse=True, scope='module')(one_thread)


@pytest.fixture
def report(monkeypatch, capsys):
    """Run the report on small maps; return its exit code, its lines by operator and dtype, and what it selects."""

    def run():
        monkeypatch.setattr(sys, 'argv', ['check_gpu', '--device', 'cpu', '--quick'])
        code = check_gpu.main()
        _, *rows, last = capsys.readouterr().out.splitlines()
        name, _, selected = last.partition('=')
        assert name == 'MMATTN_BACKEND'
        return code, {tuple(row.split()[:3:2]): row for row in rows}, selected

    return run


@pytest.fixture
def convolutions(monkeypatch):
    """Of all calls, a report has only those of dynamic_conv."""
    calls = [call for call in check_gpu.calls(7) if call[0] == 'dynamic_conv']
    monkeypatch.setattr(check_gpu, 'calls', lambda side: calls)


@pytest.mark.slow
def test_the_kernels_for_cpus_are_right(report):
    """A line for each that there is; the last line is a value of MMATTN_BACKEND."""
    code, rows, selected = report()
    assert code == 0
    assert {*rows} == {(name, dtype) for name in library.KERNELS for dtype in ('bfloat16', 'float32')}
    with dispatch.backend(selected):
        pass


def change(results, index, by):
    """Results of the kernel, of which one number is another."""

    def changed(operator, tensors, settings):
        found = results(operator, tensors, settings)
        if dispatch._backends[operator] == 'native':
            found[index].view(-1)[5] += by * found[index].abs().max()
        return found

    return changed


@pytest.mark.parametrize(('index', 'by'), [(0, 0.1), (2, -0.1), (1, torch.nan)])
def test_a_wrong_number_of_an_output_or_gradient_is_an_exit_code(convolutions, report, monkeypatch, index, by):
    assert report()[0] == 0
    monkeypatch.setattr(check_gpu, 'results', change(check_gpu.results, index, by))
    code, rows, selected = report()
    assert code == 1
    assert all(row.endswith('WRONG') for row in rows.values())
    assert selected == 'auto'


@pytest.mark.parametrize(('ratio', 'expected'), [(0.5, 'dynamic_conv=native'), (2, 'auto')])
def test_what_is_faster_is_selected(convolutions, report, monkeypatch, ratio, expected):
    is_kernel = lambda: dispatch._backends['dynamic_conv'] == 'native'  # noqa: E731
    monkeypatch.setattr(check_gpu, 'milliseconds', lambda call: ratio if is_kernel() else 1.0)
    assert report()[::2] == (0, expected)


def test_a_triton_kernel_that_does_not_compile_says_why(convolutions, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['check_gpu', '--device', 'cpu'])
    monkeypatch.setattr(dispatch, 'run_by', lambda *_: None)
    monkeypatch.setitem(dispatch._failures, ('dynamic_conv', torch.float16, ()), 'no such file: ptxas')
    assert check_gpu.main() == 0
    assert 'dynamic_conv: no such file: ptxas' in capsys.readouterr().out


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    monkeypatch.setattr(sys, 'argv', ['check_gpu'])
    with pytest.raises(SystemExit, match='finds no usable GPU'):
        check_gpu.main()
