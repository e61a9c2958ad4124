"""Choose for all processes of a run which kernels run, and log it."""

import logging

import torch
from mmengine.logging import print_log

from mmattn.ops import backends, library


def choose_kernels() -> None:
    """Choose the kernels for the GPUs, and log them. All processes of a distributed run must call this function.

    The tools call it when the Runner has been built. There is a process group then, and no operator has run on a GPU.
    """
    backends.agree_on_kernels()
    if torch.cuda.is_available():
        texts = [f'{name}: {backends.describe_on_gpu(name)}' for name in library.KERNELS]
        print_log(f'Operators on the GPU: {", ".join(texts)}', 'current')
        if missing := backends.what_may_be_faster():
            print_log(missing, 'current', logging.WARNING)
    else:
        print_log(
            f'Operators on the CPU: {"kernels" if library.UNAVAILABLE_REASON is None else library.UNAVAILABLE_REASON}',
            'current',
        )
