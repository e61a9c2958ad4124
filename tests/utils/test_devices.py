"""Devices and displays that are not there."""

import matplotlib
import pytest
import torch

from mmattn.utils.devices import check_device, check_display


@pytest.mark.skipif(torch.cuda.is_available(), reason='of a machine without a GPU')
def test_a_device_is_tried():
    assert check_device('cpu') == check_device() == check_device(torch.device('cpu')) == torch.device('cpu')
    for device, reason in (('cuda', 'CUDA'), ('cuda:1', 'CUDA'), ('gpu', 'gpu')):
        with pytest.raises(ValueError, match=rf"^device must be one of cpu; got '{device}': [^\n]*{reason}[^\n]*$"):
            check_device(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason='of a machine without a GPU')
def test_the_devices_that_there_are_are_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    with pytest.raises(ValueError, match='one of cpu, cuda:0, cuda:1; got'):
        check_device('cuda:2')


def test_windows_require_a_display(monkeypatch):
    from matplotlib import pyplot

    monkeypatch.setattr(pyplot, 'get_backend', lambda: 'TkAgg')
    check_display('--show', '--out-dir')
    monkeypatch.undo()
    matplotlib.use('agg')
    with pytest.raises(ValueError, match=r'--show.*--out-dir'):
        check_display('--show', '--out-dir')
