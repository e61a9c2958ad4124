"""Devices by name: those that are there, and errors for the others."""

import pytest
import torch

from mmattn.utils.devices import check_device


def test_a_device_that_is_there():
    assert check_device('cpu') == torch.device('cpu')
    assert check_device() == torch.device('cuda' if torch.cuda.is_available() else 'cpu')


@pytest.mark.parametrize('device', ['gpu', 'cuda:99', 'meta', ''])
def test_a_device_that_is_not_there(device):
    with pytest.raises(ValueError, match=f"device .* cpu.*'{device}'"):
        check_device(device)
