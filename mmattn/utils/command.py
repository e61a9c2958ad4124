"""Behaviour that all command lines share: output in any encoding, and one message per error.

A tool ends with ``run(main)``. It imports packages that print at import, such as mmseg, in ``main``.
"""

import io
import locale
import logging
import multiprocessing
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NoReturn
from urllib.error import URLError

DEBUG = 'MMATTN_DEBUG'
EXPECTED = (OSError, ValueError, RuntimeError, ImportError, FloatingPointError, MemoryError, EOFError, UnpicklingError)
# mmcv without its operators: messages of components that require the operators.
NEEDS_OPERATORS = re.compile(
    r"No module named 'mmcv\._ext'|[Ii]nstall (onedl-)?mmcv for .* ops|Cannot find None in registry"
)
COMPILE_OPERATORS = (
    'Compile them once, which takes 7 to 15 minutes on two cores: bash tools/environment/setup.sh --with-mmcv-ops'
)
# What torch and the workers of its data loaders say about a full /dev/shm.
FULL_SHARED_MEMORY = re.compile(r'out of shared memory|</torch_.*No space left on device', re.DOTALL)
LOCAL_RANKS = ('LOCAL_RANK', 'SLURM_LOCALID', 'OMPI_COMM_WORLD_LOCAL_RANK')
HEAD_START = 10.0  # seconds by which the other processes delay their messages, as the first may be slow


def run(main: Callable[[], int | None]) -> None:
    """Run the ``main`` function of a tool, which returns an exit code or None. Exit unless the code is 0.

    On an error, print one message and exit with code 1. The code is 130 for Ctrl-C, and 2 for usage errors, as in
    argparse. With the environment variable ``MMATTN_DEBUG=1``, the traceback is printed instead. The log file of a run,
    if there is one, always gets the traceback. Without a log file, the traceback of an exception that users cannot
    cause is printed. If several processes fail, the first prints its message.
    """
    use_utf8()
    logging.raiseExceptions = os.environ.get(DEBUG, '0') not in ('', '0')  # of a log file on a full disk
    trace = ''
    try:
        code = main() or 0
    except SystemExit as exit:
        if not isinstance(exit.code, str):
            raise
        if exit.__cause__ is not None and os.environ.get(DEBUG, '0') not in ('', '0'):
            raise exit.__cause__ from None
        code, message = 1, exit.code
    except KeyboardInterrupt as error:
        code, message = 130, ' '.join(['Interrupted.', *map(str, error.args)])
    except Exception as error:
        if os.environ.get(DEBUG, '0') not in ('', '0'):
            raise
        code, message = 1, describe(error)
        log = _log(error)
        if log is not None:
            message += f'\n(the traceback is in {log})'
        elif _is_expected(error):
            message += f'\n({DEBUG}=1 shows the traceback)'
        else:
            trace = ''.join(traceback.format_exception(error))
    else:
        if code:
            raise SystemExit(code)
        return
    _exit(code, f'{trace}{Path(sys.argv[0]).name}: {"" if code == 130 else "error: "}{message}')


def use_utf8() -> None:
    """Make UTF-8 the default encoding of files, and escape characters that the terminal cannot display."""
    if locale.getpreferredencoding(False).lower() not in ('utf-8', 'utf8'):
        for name in ('C.UTF-8', 'C.utf8', 'UTF-8'):  # in the order of PEP 538
            with suppress(locale.Error):
                locale.setlocale(locale.LC_CTYPE, name)
                break
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors='backslashreplace')


def describe(error: BaseException) -> str:
    """Describe a caught error with its message, and with its file or its component in the config."""
    message = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if 'Original Traceback (most recent call last)' in message:  # raised in a worker of a data loader
        message = re.split(r'\n[\w.]+(?:Error|Exception): ', message)[-1].strip()
    if isinstance(error, OSError) and error.strerror:
        message = error.strerror if error.filename is None else f'{_text(error.filename)}: {error.strerror}'
    if FULL_SHARED_MEMORY.search(message):
        message += '\n/dev/shm is full: start the container with --shm-size 8g, or set train_dataloader.num_workers=0'
    component = _component(error)
    if NEEDS_OPERATORS.search(message) and not has_mmcv_operators():
        return (
            f'The config requires the operators of mmcv, which is installed without them. {COMPILE_OPERATORS}   (in '
            'another environment: '
            'pip install --no-build-isolation --no-deps --force-reinstall --no-cache-dir onedl-mmcv)'
        )
    if isinstance(error, URLError):
        message = (
            f'a file cannot be downloaded ({error.reason}). Copy it from the address that the output names after '
            f"'Downloading' to {checkpoint_cache()}, or train without pretrained weights: run the converter "
            'that has written the config again, with --overwrite and --pretrained FILE or --from-scratch; for another '
            'config, add --cfg-options model.pretrained=None'
        )
    if not _is_expected(error) or not message:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        message = f'{type(error).__name__}: {message or frame.line} ({frame.filename}:{frame.lineno})'
    return f'building {component}: {message}' if component and component not in message else message


def end_worker(error: Exception, sent: Any) -> None:
    """Print that an object cannot be sent, and end this process if it is a worker. Its parent then raises an error."""
    print(f'{Path(sys.argv[0]).name}: a process cannot send {type(sent).__name__}: {describe(error)}', file=sys.stderr)
    if multiprocessing.parent_process():
        os._exit(1)


def checkpoint_cache() -> str:
    """Return the folder in which torch keeps downloaded checkpoints, which ``TORCH_HOME`` and others decide."""
    import torch  # slow, and only for an error

    return os.path.join(torch.hub.get_dir(), 'checkpoints')


def has_mmcv_operators() -> bool:
    """Check whether mmcv is installed with its compiled operators, without importing it."""
    mmcv = find_spec('mmcv')
    return mmcv is not None and any(Path(mmcv.origin or '').parent.glob('_ext.*'))


def needs_mmcv_operators(cfg: Any) -> bool:
    """Check whether an mmengine config has a detector, mmseg's ``CCHead``, or deformable convolution."""
    stock = re.search(r"'type': '(CCHead|DCN(v2)?)'", str(cfg.to_dict()))
    return cfg.get('default_scope') == 'mmdet' or stock is not None


def _is_expected(error: BaseException) -> bool:
    of_config = isinstance(error, AttributeError | KeyError) and "'ConfigDict' object" in str(error)
    return isinstance(error, EXPECTED) or of_config or (_component(error) is not None and bool(str(error)))


def _component(error: BaseException) -> str | None:
    """Name the class whose constructor, called by mmengine, failed. '' if mmengine did not come to call it."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    builds = [i for i, code in enumerate(codes) if code.co_name == 'build_from_cfg']
    if not builds:
        return None
    constructor = next((code for code in codes[builds[-1] :] if code.co_name == '__init__'), None)
    return getattr(constructor, 'co_qualname', '').rpartition('.')[0]  # Python 3.10 has no qualified names


def _text(path: Any) -> str:
    return os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else str(path)


def _log(error: BaseException) -> str | None:
    if 'mmengine.logging' not in sys.modules:
        return None
    from mmengine.logging import MMLogger

    logger = MMLogger.get_current_instance()
    handler = next((handler for handler in logger.handlers if isinstance(handler, logging.FileHandler)), None)
    if handler is None:
        return None
    info = (type(error), error, error.__traceback__)
    handler.handle(logger.makeRecord(logger.name, logging.ERROR, __file__, 0, 'The run has failed', (), info))
    return handler.baseFilename


def _exit(code: int, message: str) -> NoReturn:
    distributed: Any = sys.modules.get('torch.distributed')
    initialized = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if initialized:
        from mmattn._compat import process_store  # late: it imports mmengine

        with suppress(Exception):  # the process that held the store may have been killed
            first = process_store(distributed).add('mmattn/failed', 1) == 1
            message = message if first else ''
    elif any(os.environ.get(f'{name}', '0') != '0' for name in LOCAL_RANKS):
        time.sleep(HEAD_START)  # the first process usually fails in the same way; the launcher then ends this one
    if not initialized and code == 1:
        raise SystemExit(message)  # Python prints the message
    if message:
        print(message, file=sys.stderr)
    if not initialized:
        raise SystemExit(code)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    if message:
        time.sleep(1.0)  # keep the store alive while the other processes read it
    os._exit(code)  # a normal exit would abort in gloo, and might wait for other processes in NCCL
