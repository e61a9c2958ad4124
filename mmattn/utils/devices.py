"""Devices that a person names, checked before work begins."""

import torch
from mmengine.device import get_device


def check_device(device: str | torch.device | None = None) -> torch.device:
    """Return the device of this name after a computation on it.

    Args:
        device (str or torch.device, optional): such as 'cpu' or 'cuda:1'. Defaults to a GPU if there is one.

    Raises:
        ValueError: there is no such device, or torch cannot compute on it; the message says why.

    Example:
        >>> check_device('cuda')
        Traceback (most recent call last):
        ValueError: device must be one of cpu; got 'cuda': Torch not compiled with CUDA enabled
    """
    try:
        found = torch.device(get_device() if device is None else device)
        torch.zeros(1, device=found).item()  # a GPU that this build has no code for fails here
    except (AssertionError, RuntimeError) as error:
        known = ', '.join(['cpu', *(f'cuda:{i}' for i in range(torch.cuda.device_count()))])
        reason = str(error).strip().partition('\n')[0]
        raise ValueError(f'device must be one of {known}; got {str(device)!r}: {reason}') from None
    return found
