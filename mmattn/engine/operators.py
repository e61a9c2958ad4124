"""Log what runs the operators."""

import torch
from mmengine.logging import print_log

from mmattn.ops import library, reports


def log_operators() -> None:
    """Log what runs the operators on the GPU of this process, or on the CPU. The tools call it before a run."""
    if torch.cuda.is_available():
        device = torch.device('cuda', torch.cuda.current_device())
        texts = [f'{name}: {reports.describe(name, device)}' for name in library.KERNELS]
        print_log(f'Operators on the {torch.cuda.get_device_name(device)}: {", ".join(texts)}', 'current')
    else:
        print_log(f'Operators on the CPU: {library.UNAVAILABLE_REASON or "kernels"}', 'current')
