"""The dtype in which sums are accumulated."""

import torch
from torch import Tensor


def accumulator(x: Tensor) -> torch.dtype:
    """Choose the dtype in which sums over ``x`` are accumulated: float64 for float64, otherwise float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
