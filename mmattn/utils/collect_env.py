"""Report the environment for a bug report: ``python -m mmattn.utils.collect_env``."""

from importlib import import_module
from runpy import run_module
from typing import Any


def __getattr__(attribute: str) -> Any:
    return getattr(import_module('mmattn.ops.gpu.collect_env'), attribute)


if __name__ == '__main__':
    run_module('mmattn.ops.gpu.collect_env', run_name='__main__', alter_sys=True)
