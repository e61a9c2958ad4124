"""Which kernels may run on a GPU: those that a check on such a GPU found correct and fast enough.

``python -m mmattn.utils.check_gpu`` makes a verdict: a file in the cache, for one kind of GPU, one torch and one build
of the kernels. Without a verdict the references run. A process decides once, for all GPUs that it sees: at the first
call of an operator on a GPU, from the files alone, or in :func:`decide_together`, for all processes of a run. A call of
an operator never communicates with other processes, because it would wait forever for those that do not make it.
"""

import functools
import hashlib
import json
import os
import threading
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import distributed

import mmattn

from . import native
from .operator import OPERATORS

COMMAND = 'python -m mmattn.utils.check_gpu'
SLOWEST = 1.1  # of the time of the best alternative
NOT_VERIFIED = 'not verified on this GPU'
DIFFERENT = 'the processes have different GPUs or builds'
SHIPPED = Path(__file__).parent / 'verdicts'

_lock = threading.RLock()
_settled: dict[str, str] | None = None


def operators() -> list[str]:
    """Return the names of the operators that have a kernel for CUDA here."""
    return [name for name in OPERATORS if native.has_kernel(name, 'cuda')]


def machine(device: int) -> dict[str, str]:
    """Return what a verdict holds for, and for nothing else."""
    properties = torch.cuda.get_device_properties(device)
    return {
        'gpu': properties.name,
        'capability': f'{properties.major}.{properties.minor}',
        'torch': torch.__version__,
        'cuda': str(torch.version.cuda),
        'mmattn': mmattn.__version__,
        'library': _library(),
    }


def machines() -> list[dict[str, str]]:
    """Return :func:`machine` of all GPUs, each kind once."""
    if not torch.cuda.is_available():
        return []
    found = {str(kind): kind for kind in map(machine, range(torch.cuda.device_count()))}
    return [found[key] for key in sorted(found)]


def path_of(kind: dict[str, str]) -> Path:
    """Return the file of the verdict for a kind of GPU, in the cache of the user."""
    caches = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')  # without a home, a folder named ~
    cache = os.environ.get('MMATTN_CACHE') or Path(caches, 'mmattn')
    key = hashlib.sha256(json.dumps(kind, sort_keys=True).encode()).hexdigest()[:12]
    return Path(cache, 'verdicts', f'{"-".join(kind["gpu"].split()).replace("/", "-")}-{key}.json')


def read(kind: dict[str, str]) -> dict[str, Any] | None:
    """Return what the check found for each operator, or None if there is no verdict for this kind of GPU."""
    for path in (path_of(kind), *sorted(SHIPPED.glob('*.json'))):
        try:
            found = json.loads(path.read_text(encoding='utf-8'))
        except (OSError, ValueError):  # none, or not one of ours
            continue
        if isinstance(found, dict) and found.get('machine') == kind:
            return found['operators']
    return None


def reason_against(found: dict[str, Any] | None) -> str:
    """Return why a kernel with these findings does not run, or an empty text."""
    if found is None:
        return NOT_VERIFIED
    if not found['correct']:
        return f'incorrect: {found["message"]}'
    if found['ratio'] is None:
        return 'not measured'
    if found['ratio'] > SLOWEST:
        return f'slower: {found["ratio"]:.2f} times the time of {found["beside"]}'
    return ''


def reasons(kinds: Iterable[dict[str, str]]) -> dict[str, str]:
    """Return, for each operator, why its kernel does not run on GPUs of these kinds; an empty text where it runs."""
    if os.environ.get('MMATTN_BACKEND') == 'native':
        return dict.fromkeys(operators(), '')
    verdicts = [read(kind) for kind in kinds] or [None]
    return {name: _first(reason_against((each or {}).get(name)) for each in verdicts) for name in operators()}


def settled() -> dict[str, str] | None:
    """Return the decision of this process, as :func:`reasons`, or None before there is one."""
    return _settled


def settle(against: dict[str, str]) -> None:
    """Let those kernels run that have an empty text here, and the references of the other operators."""
    global _settled
    for name, reason in against.items():
        for each in (name, f'{name}_backward'):
            torch.ops.mmattn_native.allow(each, not reason)
    _settled = against


def decide() -> dict[str, str]:
    """Decide for this process, if it has not been done, and return the decision. Warn if the GPU was not checked."""
    with _lock:
        if _settled is None:
            against = reasons(machines())
            settle(against)
            if NOT_VERIFIED in against.values():
                warnings.warn(
                    f'mmattn: operators run in PyTorch, because their kernels were not checked on this GPU; to check '
                    f'them, run: {COMMAND}',
                    stacklevel=2,
                )
        return _settled or {}


def decide_together() -> dict[str, str]:
    """Decide for all processes of a distributed run, which must all call this, and return the decision.

    It is that of rank 0, so that one machine needs the verdict. Where a process has another kind of GPU or another
    build, the references run in all of them.
    """
    kinds = machines()
    against = reasons(kinds)
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        gathered: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(gathered, (kinds, against))
        alike = all(others == gathered[0][0] for others, _ in gathered)
        against = gathered[0][1] if alike else dict.fromkeys(against, DIFFERENT)
    with _lock:
        settle(against)
    return against


@functools.cache
def _library() -> str:
    return hashlib.sha256(Path(native.FILE).read_bytes()).hexdigest() if native.FILE else ''


def _first(texts: Iterable[str]) -> str:
    return next(filter(None, texts), '')
