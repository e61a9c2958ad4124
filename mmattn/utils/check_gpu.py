"""Report how the kernels for GPUs do on this machine: ``python -m mmattn.utils.check_gpu``."""

from importlib import import_module
from runpy import run_module
from typing import Any


def __getattr__(attribute: str) -> Any:
    return getattr(import_module('mmattn.ops.gpu.check_gpu'), attribute)


if __name__ == '__main__':
    run_module('mmattn.ops.gpu.check_gpu', run_name='__main__', alter_sys=True)
