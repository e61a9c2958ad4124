"""What the check of the kernels found on a kind of GPU: files that are written, read and compared.

A finding is about a kernel of an operator, in a dtype class and a pass. It is valid for one kind of GPU with its torch
and Triton, and for the sources of the kernel, so that verdicts can be installed with the package.
"""

import functools
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mmattn.ops import library, triton
from mmattn.utils.files import write_text

COMMAND = 'python -m mmattn.utils.check_gpu'
DTYPE_CLASSES = ('16 bit', 'float32')
PASSES = ('forward', 'backward')
KERNELS = ('cuda', 'triton')
NOT_CHECKED = 'not checked on this GPU'
OPS = Path(__file__).parents[1]
SHIPPED = OPS / 'verdicts'


class Key(NamedTuple):
    """What a finding is about."""

    operator: str
    kernel: str  # 'cuda' or 'triton'
    dtypes: str
    pass_: str


class Finding(NamedTuple):
    """What the check found."""

    state: str  # 'faster' or 'slower' than the composition, 'incorrect', or 'not measured'
    time: float | None = None  # ms, on the workload with the worst ratio
    composition: float | None = None  # ms, of the composition on this workload
    message: str = ''  # this workload, or why the kernel is incorrect or not measured


def machine(device: int) -> dict[str, str]:
    """Describe a GPU and its software."""
    properties = torch.cuda.get_device_properties(device)
    return {
        'gpu': properties.name,
        'capability': f'{properties.major}.{properties.minor}',
        'torch': torch.__version__.partition('+')[0],
        'cuda': str(torch.version.cuda),
        'triton': '' if triton.unavailable_reason() else triton.version(),
    }


def machines() -> list[dict[str, str]]:
    """Describe all GPUs, without duplicates."""
    if not torch.cuda.is_available():
        return []
    kinds = {str(kind): kind for kind in map(machine, range(torch.cuda.device_count()))}
    return [kinds[key] for key in sorted(kinds)]


@functools.cache
def sources() -> dict[str, str]:
    """Hash the sources of the CUDA and of the Triton kernels."""
    files = {
        'cuda': [*(OPS / 'csrc').glob('*.h'), *(OPS / 'csrc/cuda').glob('*')],
        'triton': [*(OPS / 'triton').glob('*.py')],
    }
    return {
        kernel: hashlib.sha256(b''.join(path.read_bytes() for path in sorted(paths))).hexdigest()[:16]
        for kernel, paths in files.items()
    }


def verdict_path(kind: dict[str, str]) -> Path:
    """Name the file of the verdict for a kind of GPU, in the user's cache."""
    caches = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')  # without a home, a folder named ~
    cache = os.environ.get('MMATTN_CACHE') or Path(caches, 'mmattn')
    key = hashlib.sha256(json.dumps(kind, sort_keys=True).encode()).hexdigest()[:12]
    return Path(cache, 'verdicts', f'{"-".join(kind["gpu"].split()).replace("/", "-")}-{key}.json')


def read(kind: dict[str, str]) -> dict[Key, Finding]:
    """Read the findings on a kind of GPU with the present sources. The user's findings precede the package's."""
    findings: dict[Key, Finding] = {}
    for path in (*sorted(SHIPPED.glob('*.json')), verdict_path(kind)):
        findings |= _read(path, kind)
    return findings


def _read(path: Path, kind: dict[str, str]) -> dict[Key, Finding]:
    try:
        record = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError):  # no file, or not a verdict
        return {}
    if not isinstance(record, dict) or record.get('machine') != kind:
        return {}
    current: dict[Key, Finding] = {}
    for item in record.get('findings', []):
        key = Key(*item['key'])
        if item['sources'] == sources().get(key.kernel):
            current[key] = Finding(**item['finding'])
    return current


def write(kind: dict[str, str], findings: dict[Key, Finding]) -> Path:
    """Add findings to the verdict in the user's cache, and return its path."""
    path = verdict_path(kind)
    items: list[dict[str, Any]] = [
        {'key': key, 'sources': sources()[key.kernel], 'finding': finding._asdict()}
        for key, finding in (_read(path, kind) | findings).items()
    ]
    lines = ',\n'.join(json.dumps(item, ensure_ascii=False) for item in items)
    write_text(path, f'{{"machine": {json.dumps(kind)},\n"findings": [\n{lines}\n]}}\n')
    return path


def explain(finding: Finding | None) -> str:
    """Say why a kernel with this finding does not replace the composition, or return ''."""
    if finding is None:
        return NOT_CHECKED
    if finding.state == 'slower' and finding.time and finding.composition:
        return f'slower: {finding.time / finding.composition:.2f} times the time of the composition'
    return '' if finding.state == 'faster' else f'{finding.state}: {finding.message}'


def select(
    findings: dict[Key, Finding], operator: str, dtypes: str, pass_: str, kernels: Sequence[str]
) -> tuple[str, dict[str, str]]:
    """Select the fastest of the kernels that are faster than the composition, or 'composition'.

    Returns its name, and the reason against each of the other kernels.
    """
    by_kernel = {kernel: findings.get(Key(operator, kernel, dtypes, pass_)) for kernel in kernels}
    reasons = {kernel: explain(finding) for kernel, finding in by_kernel.items()}
    faster = {kernel: finding for kernel, finding in by_kernel.items() if finding is not None and not reasons[kernel]}
    if not faster:
        return 'composition', reasons
    # The worst workloads of two kernels may differ: compare the kernels by their ratios to the composition.
    selected = min(faster, key=lambda kernel: _ratio(faster[kernel]))
    for kernel in faster:
        reasons[kernel] = (
            f'slower than {selected}: {_ratio(faster[kernel]):.2f} and {_ratio(faster[selected]):.2f} times '
        )
        reasons[kernel] += 'the time of the composition'
    del reasons[selected]
    return selected, reasons


def _ratio(finding: Finding) -> float:
    return (finding.time or 0.0) / (finding.composition or 1.0)


def unusable_kernel(operator: str, kernel: str) -> str:
    """Say why a kernel cannot run in this installation, or return ''."""
    if kernel == 'cuda':
        return '' if library.has_kernel(operator, 'cuda') else library.UNAVAILABLE_REASON or 'not built for CUDA'
    return 'there is none' if operator not in triton.OPERATORS else triton.unavailable_reason()
