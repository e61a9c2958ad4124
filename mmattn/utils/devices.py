"""Checks of a device before it is used."""

import torch
from mmengine.device import get_device


def check_device(device: str | torch.device | None = None) -> torch.device:
    """Return the device of this name, after a test computation on it.

    Args:
        device (str or torch.device, optional): such as 'cpu' or 'cuda:1'. Defaults to a GPU if one is available.

    Raises:
        ValueError: the device does not exist, or torch cannot compute on it. The message gives the reason.

    Example:
        >>> check_device('cuda')
        Traceback (most recent call last):
        ValueError: device must be one of cpu; got 'cuda': Torch not compiled with CUDA enabled
    """
    try:
        found = torch.device(get_device() if device is None else device)
        torch.zeros(1, device=found).item()  # fails on a GPU for which this build of torch has no code
    except (AssertionError, RuntimeError) as error:
        known = ', '.join(['cpu', *(f'cuda:{i}' for i in range(torch.cuda.device_count()))])
        reason = str(error).strip().partition('\n')[0]
        raise ValueError(f'device must be one of {known}; got {str(device)!r}: {reason}') from None
    return found
