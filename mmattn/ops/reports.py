"""What runs an operator, said to a person."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from .dispatch import choose, device_and_dtype, failure, is_verified
from .operator import record_call

PASSES = ('forward', 'backward')


def describe(operator: str, device: torch.device) -> str:
    """Name what runs an operator on a device, in 16 bit and float32, forward and backward, with the reasons."""
    failed = f'; for some calls, {reason}' if (reason := failure(operator)) else ''
    texts: dict[str, list[str]] = {}
    for dtype, dtypes in ((torch.bfloat16, '16 bit'), (torch.float32, 'float32')):
        for pass_, name in zip(PASSES, (operator, f'{operator}_backward')):
            chosen, against = _chosen(name, device, dtype)
            reasons = '; '.join(f'{x}: {reason}' for x, reason in against.items())
            texts.setdefault(f'{chosen}{f" ({reasons})" if reasons else ""}', []).append(f'{dtypes} {pass_}')
    if len(texts) == 1:
        return next(iter(texts)) + failed
    listed = ', '.join(f'{" and ".join(calls)}: {text}' for text, calls in texts.items())
    return listed + failed


def _chosen(name: str, device: torch.device, dtype: torch.dtype, **lacking: str) -> tuple[str, dict[str, str]]:
    """Say what runs, and the reasons against what comes before it. ``lacking`` has what kernels lack, or ''."""
    reasons = dict(choose(name, device, dtype))
    reasons |= {kernel: f'no {x}' for kernel, x in lacking.items() if x and not reasons.get(kernel, x)}
    chosen = next((x for x, reason in reasons.items() if not reason), list(reasons)[-1])
    against = dict(itertools.takewhile(lambda x: x[0] != chosen, reasons.items()))
    is_kernel = chosen in ('native', 'triton')
    return f'{chosen}, not verified on this GPU' if is_kernel and not is_verified(device) else chosen, against


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
    device, dtype = device_and_dtype(arguments)
    lacking = {}
    if device.type == 'cuda':
        options = {x: getattr(arguments, x) for x in declared.cuda_lacks}
        given = (x for x, value in options.items() if value is not None and value is not False)  # or it is a tensor
        lacking['native'] = next(given, '')
    lines = [f'{name}, {dtype} on {device}']
    for pass_, full_name in zip(PASSES, (name, f'{name}_backward')):
        chosen, against = _chosen(full_name, device, dtype, **lacking)
        lines += [f'{pass_}: {chosen}', *(f'    not {x}: {reason}' for x, reason in against.items())]
    return '\n'.join(lines)
