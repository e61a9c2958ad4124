"""Slices of work that fit a byte budget: they bound the extra memory of the operators."""

import torch

CHUNK_BYTES = 64 * 2**20  # on CPUs
GPU_CHUNK_BYTES = 2**30  # fewer launches, and products that fill the device


def chunk_bytes(device: torch.device) -> int:
    """Choose the byte budget of a slice of work."""
    return CHUNK_BYTES if device.type == 'cpu' else GPU_CHUNK_BYTES


def chunks(length: int, bytes_each: int, budget: int | None = None) -> list[slice]:
    """List slices of ``range(length)``, with as many items of ``bytes_each`` bytes as fit the budget, at least 1."""
    step = max(1, (CHUNK_BYTES if budget is None else budget) // max(1, bytes_each))
    return list(map(slice, range(0, length, step), [*range(step, length, step), length]))
