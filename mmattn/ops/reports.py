"""What runs an operator, said to a person."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from .dispatch import TABLE, Kind, call_kind, choose, failure, is_verified
from .operator import record_call

PASSES = ('forward', 'backward')


def describe(operator: str, device: torch.device) -> str:
    """Name what runs an operator on a device, in 16 bit and float32, forward and backward, with the reasons."""
    failed = f'; for some calls, {reason}' if (reason := failure(operator)) else ''
    texts: dict[str, list[str]] = {}
    kinds = {'16 bit': Kind(device, torch.bfloat16), 'float32': Kind(device, torch.float32)}
    for row in TABLE:
        if (row.operator, row.device) == (operator, device.type) and row.channels is not None:
            kinds[f'16 bit with {row.channels} channels'] = Kind(device, torch.bfloat16, row.channels)
    for title, kind in kinds.items():
        for pass_, name in zip(PASSES, (operator, f'{operator}_backward')):
            chosen, against = _chosen(name, kind)
            reasons = '; '.join(f'{x}: {reason}' for x, reason in against.items())
            texts.setdefault(f'{chosen}{f" ({reasons})" if reasons else ""}', []).append(f'{title} {pass_}')
    if len(texts) == 1:
        return next(iter(texts)) + failed
    listed = ', '.join(f'{" and ".join(calls)}: {text}' for text, calls in texts.items())
    return listed + failed


def _chosen(name: str, kind: Kind, **lacking: str) -> tuple[str, dict[str, str]]:
    """Say what runs, and the reasons against what comes before it. ``lacking`` has what kernels lack, or ''."""
    reasons = dict(choose(name, *kind))
    reasons |= {kernel: f'no {x}' for kernel, x in lacking.items() if x and not reasons.get(kernel, x)}
    chosen = next((x for x, reason in reasons.items() if not reason), list(reasons)[-1])
    against = dict(itertools.takewhile(lambda x: x[0] != chosen, reasons.items()))
    is_kernel = chosen in ('native', 'triton')
    return f'{chosen}, not verified on this GPU' if is_kernel and not is_verified(kind.device) else chosen, against


def explain(operator: Callable, *args: Any, **kwargs: Any) -> str:
    """Explain which implementation runs a call of an operator, and why the others do not.

    ``operator`` is a function of ``mmattn.ops``, such as :func:`global_attention`, followed by the arguments of the
    call. For the forward and the backward pass, the result has a line for each implementation, up to the one that runs.

    Example:
        >>> from mmattn.ops import dynamic_conv
        >>> value, logits = torch.randn(1, 8, 32, 32, 16).half(), torch.randn(1, 8, 32, 32, 9)
        >>> print(explain(dynamic_conv, value, logits, kernel_size=3))
        dynamic_conv, torch.float16 on cpu
        forward: reference
        backward: reference
    """
    declared, arguments = record_call(operator, *args, **kwargs)
    name = declared.name
    kind = call_kind(name, arguments)
    lacking = {}
    if kind.device.type == 'cuda':
        options = {x: getattr(arguments, x) for x in declared.cuda_lacks}
        given = (x for x, value in options.items() if value is not None and value is not False)  # or it is a tensor
        lacking['native'] = next(given, '')
    lines = [f'{name}, {kind.dtype} on {kind.device}']
    for pass_, full_name in zip(PASSES, (name, f'{name}_backward')):
        chosen, against = _chosen(full_name, kind, **lacking)
        lines += [f'{pass_}: {chosen}', *(f'    not {x}: {reason}' for x, reason in against.items())]
    return '\n'.join(lines)
