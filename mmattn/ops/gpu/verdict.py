"""Chooses the kernels that run on a GPU: kernels that a check found correct and fast enough on such a GPU.

``python -m mmattn.utils.check_gpu`` writes a verdict: a file in the cache, valid for one kind of GPU, one torch and one
build of the kernels. Without a verdict, the references run. A process chooses once, for all its GPUs: either at the
first call of an operator on a GPU, from the files, or in :func:`agree_on_kernels`, for all processes of a run. A call
of an operator never communicates with other processes: processes that make different calls would deadlock.
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
from mmattn.ops import library, triton

COMMAND = 'python -m mmattn.utils.check_gpu'
SLOWEST = 1.1  # largest accepted ratio of the kernel's time to the time of the best alternative
TRITON = ' (Triton)'  # ends the names of Triton kernels, which run where the CUDA kernel of the operator does not
NOT_VERIFIED = 'not verified on this GPU'
DIFFERENT = 'the processes have different GPUs or builds'
SHIPPED = Path(__file__).parents[1] / 'verdicts'

_lock = threading.RLock()
_choice: dict[str, str] | None = None


def operators() -> list[str]:
    """List the kernels for GPUs: the operators with a CUDA kernel in this build, then the Triton kernels."""
    return [name for name in library.KERNELS if library.has_kernel(name, 'cuda')] + triton_kernels()


def triton_kernels() -> list[str]:
    """List the names of the Triton kernels, whether they can run here or not."""
    return [f'{name}{TRITON}' for name in triton.OPERATORS]


def machine(device: int) -> dict[str, str]:
    """Describe a GPU, its software and the build. A verdict is valid for exactly this description."""
    properties = torch.cuda.get_device_properties(device)
    return {
        'gpu': properties.name,
        'capability': f'{properties.major}.{properties.minor}',
        'torch': torch.__version__,
        'cuda': str(torch.version.cuda),
        'mmattn': mmattn.__version__,
        'library': _library(),
        'triton': triton.build(),
    }


def machines() -> list[dict[str, str]]:
    """Describe all GPUs, without duplicates."""
    if not torch.cuda.is_available():
        return []
    kinds = {str(kind): kind for kind in map(machine, range(torch.cuda.device_count()))}
    return [kinds[key] for key in sorted(kinds)]


def verdict_path(kind: dict[str, str]) -> Path:
    """Return the path of the verdict for a kind of GPU, in the user's cache."""
    caches = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')  # without a home, a folder named ~
    cache = os.environ.get('MMATTN_CACHE') or Path(caches, 'mmattn')
    key = hashlib.sha256(json.dumps(kind, sort_keys=True).encode()).hexdigest()[:12]
    return Path(cache, 'verdicts', f'{"-".join(kind["gpu"].split()).replace("/", "-")}-{key}.json')


def read(kind: dict[str, str]) -> dict[str, Any] | None:
    """Read the findings of the check for each operator, or None if there is no verdict for this kind of GPU."""
    for path in (verdict_path(kind), *sorted(SHIPPED.glob('*.json'))):
        try:
            record = json.loads(path.read_text(encoding='utf-8'))
        except (OSError, ValueError):  # no file, or not a verdict
            continue
        if isinstance(record, dict) and record.get('machine') == kind:
            return record['operators']
    return None


def reason_against(finding: dict[str, Any] | None) -> str:
    """Explain why a kernel with these findings does not run, or return '' if it runs."""
    if finding is None:
        return NOT_VERIFIED
    if not finding['correct']:
        return f'incorrect: {finding["message"]}'
    if finding['ratio'] is None:
        return 'not measured'
    if finding['ratio'] > SLOWEST:
        return f'slower: {finding["ratio"]:.2f} times the time of {finding["alternative"]}'
    return ''


def reasons(kinds: Iterable[dict[str, str]]) -> dict[str, str]:
    """Explain for each kernel why it does not run on these kinds of GPUs, or return '' if it runs."""
    verdicts = [read(kind) for kind in kinds] or [None]
    against = {name: _first(reason_against((verdict or {}).get(name)) for verdict in verdicts) for name in operators()}
    chosen = os.environ.get('MMATTN_BACKEND', 'auto')
    for name in against:
        operator = name.removesuffix(TRITON)
        if name != operator and triton.unavailable_reason():
            against[name] = triton.unavailable_reason()
        elif chosen == 'triton' and operator in triton.OPERATORS and not triton.unavailable_reason():
            against[name] = '' if name != operator else 'MMATTN_BACKEND=triton'
        elif chosen in ('native', 'reference'):
            against[name] = '' if name == operator else f'MMATTN_BACKEND={chosen}'
    return against


def current_choice() -> dict[str, str] | None:
    """Return what this process has chosen, in the form of :func:`reasons`, or None if it has not chosen."""
    return _choice


def apply_choice(against: dict[str, str]) -> None:
    """Run the kernels whose reason is ''. The other operators run their references."""
    global _choice
    for name, reason in against.items():
        if not name.endswith(TRITON):  # `may_run_triton` reads the choice
            for operator in (name, f'{name}_backward'):
                torch.ops.mmattn_native.allow(operator, not reason)
    _choice = against


def may_run_triton(operator: str, backend: str) -> bool:
    """Check whether the Triton kernel of an operator may run: as chosen, unless a backend has been selected."""
    if backend == 'triton':
        return not triton.unavailable_reason()
    return backend == 'auto' and (current_choice() or {}).get(f'{operator}{TRITON}') == ''


def choose_kernels() -> dict[str, str]:
    """Choose the kernels for this process, unless it has chosen. Warns if the GPU was not checked."""
    with _lock:
        if _choice is None:
            against = reasons(machines())
            apply_choice(against)
            running = {name.removesuffix(TRITON) for name, reason in against.items() if not reason}
            unverified = {name.removesuffix(TRITON) for name, reason in against.items() if reason == NOT_VERIFIED}
            if unverified - running:  # an operator whose CUDA kernel runs does not require Triton's
                warnings.warn(
                    f'mmattn: operators run in PyTorch, because their kernels were not checked on this GPU; to check '
                    f'them, run: {COMMAND}',
                    stacklevel=2,
                )
            if os.environ.get('MMATTN_BACKEND') == 'triton' and triton.unavailable_reason():
                warnings.warn(
                    f'mmattn: MMATTN_BACKEND=triton has no effect: {triton.unavailable_reason()}', stacklevel=2
                )
        return _choice or {}


def agree_on_kernels() -> dict[str, str]:
    """Choose the kernels for all processes of a distributed run. All processes must call this function.

    Rank 0 chooses, so only its machine needs a verdict. If a process has another kind of GPU or another build, the
    references run in all processes.
    """
    kinds = machines()
    against = reasons(kinds)
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        gathered: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(gathered, (kinds, against))
        same = all(kinds == gathered[0][0] for kinds, _ in gathered)
        against = gathered[0][1] if same else dict.fromkeys(against, DIFFERENT)
    with _lock:
        apply_choice(against)
    return against


@functools.cache
def _library() -> str:
    return hashlib.sha256(Path(library.FILE).read_bytes()).hexdigest() if library.FILE else ''


def _first(texts: Iterable[str]) -> str:
    return next(filter(None, texts), '')
