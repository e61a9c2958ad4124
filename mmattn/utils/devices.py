"""Checks of a device, or of a display, before it is used."""

import torch
from mmengine.device import get_device


def check_device(device: str | torch.device | None = None) -> torch.device:
    """Test that torch can compute on a device, and return the device. Else, a ValueError gives the reason.

    Args:
        device (str or torch.device, optional): such as 'cpu' or 'cuda:1'. Defaults to a GPU if one is available.

    Example:
        >>> check_device('cuda')
        Traceback (most recent call last):
        ValueError: device must be one of cpu; got 'cuda': Torch not compiled with CUDA enabled
    """
    try:
        tested = torch.device(get_device() if device is None else device)
        torch.zeros(1, device=tested).item()  # fails on a GPU for which this build of torch has no code
    except (AssertionError, RuntimeError) as error:
        available = ', '.join(['cpu', *(f'cuda:{i}' for i in range(torch.cuda.device_count()))])
        reason = str(error).strip().partition('\n')[0]
        raise ValueError(f'device must be one of {available}; got {str(device)!r}: {reason}') from None
    return tested


def check_display(argument: str, instead: str) -> None:
    """Check that Matplotlib can open windows. Without a display, it shows nothing, and reports no error.

    The message names ``argument``, which opens windows, and ``instead``, which writes files.
    """
    from matplotlib import pyplot  # lazy: it takes half a second

    if pyplot.get_backend().lower() == 'agg':
        raise ValueError(f'{argument} requires a display, which Matplotlib does not have here; {instead} writes files')
