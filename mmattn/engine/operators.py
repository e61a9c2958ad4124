"""Decide for all processes of a run which operators use kernels, and log the decision."""

import logging

import torch
from mmengine.logging import print_log

from mmattn.ops import library
from mmattn.ops.gpu import verdict


def choose_kernels() -> None:
    """Decide which kernels run on the GPUs, and log them. All processes of a distributed run must call this function.

    The tools call it when the Runner has been built: at this point there is a process group, and no operator has run on
    a GPU.
    """
    against = verdict.agree_on_kernels()
    if torch.cuda.is_available():
        print_log(
            f'Operators on the GPU: {describe(against)}',
            'current',
            logging.WARNING if verdict.NOT_VERIFIED in against.values() else logging.INFO,
        )
    else:
        print_log(
            f'Operators on the CPU: {"kernels" if library.UNAVAILABLE_REASON is None else library.UNAVAILABLE_REASON}',
            'current',
        )


def describe(against: dict[str, str]) -> str:
    """Return a line with the implementation of each operator, and the reason if it is not the kernel."""
    texts = []
    if all(name.endswith(verdict.TRITON) for name in against):
        texts = [f'PyTorch ({library.UNAVAILABLE_REASON or "the kernels were built without CUDA"})']
    for name, reason in against.items():
        otherwise = 'not used' if name.endswith(verdict.TRITON) else 'PyTorch'
        texts.append(f'{name}: {f"{otherwise} ({reason})" if reason else "kernel"}')
    command = f'; to check the kernels, run: {verdict.COMMAND}' if verdict.NOT_VERIFIED in against.values() else ''
    return ', '.join(texts) + command
