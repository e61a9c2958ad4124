"""A second GPU backend: kernels in Triton, which compiles them at run time, without nvcc.

This file does not import Triton, which is optional. ``dispatch.py`` calls :func:`run`, which imports the kernels. They
import ``ops``. Start with ``global_attention.py``, which launches what ``global_attention_kernels.py`` compiles;
``launch.py`` has their configurations, and ``blocks.py`` has what kernels share.
"""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any

OPERATORS = ('global_attention',)
OLDEST = (3, 6)


@functools.cache
def unavailable_reason() -> str:
    """Explain why the kernels do not run on this machine, or return ''. Triton needs a C compiler for its launcher."""
    if find_spec('triton') is None:
        return 'Triton is not installed'
    try:
        version()
    except ImportError as error:
        return f'Triton does not load: {error}'
    if tuple(map(int, version().split('.')[:2])) < OLDEST:
        return f'Triton {version()} is older than {".".join(map(str, OLDEST))}'
    if interpreted():
        return ''
    if not any(map(shutil.which, (os.environ.get('CC', ''), 'gcc', 'clang'))):
        return 'Triton requires a C compiler'
    headers = Path(sysconfig.get_paths()['include'])
    if not (headers / 'Python.h').is_file():
        return f'Triton requires the headers of Python, but there is no Python.h in {headers}'
    return ''


def version() -> str:
    """Import Triton and return its version."""
    return importlib.import_module('triton').__version__


def interpreted() -> bool:
    """Check whether Triton's interpreter runs the kernels, on the CPU."""
    return os.environ.get('TRITON_INTERPRET') == '1'


def run(name: str, arguments: tuple, always: bool = True) -> Any:
    """Run the kernels of an operator, or of its backward operator.

    Returns NotImplemented if they do not support the call, or, unless ``always``, if PyTorch's operators are faster.
    """
    module = importlib.import_module(f'{__name__}.{name.removesuffix("_backward")}')  # it imports Triton
    is_backward = name.endswith('_backward')  # its arguments begin with output, log-sum-exp, and their gradients
    if not always and not module.is_worthwhile(arguments[4:-1] if is_backward else arguments):
        return NotImplemented
    return (module.backward if is_backward else module.forward)(*arguments)
