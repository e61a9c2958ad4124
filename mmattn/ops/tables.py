"""Tables that depend on sizes alone, such as the indices of keys: computed once for a device, and kept.

On a GPU, computing a small table takes several launches, in each pass of each call. A table that is kept takes none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

MOST, MOST_BYTES = 512, 2**25  # results, and their bytes; the oldest go first, and the newest always stays

Result = TypeVar('Result', bound='Tensor | tuple[Tensor, ...]')
_kept: dict[tuple, Any] = {}
_storing = threading.Lock()


def kept(function: Callable[..., Result], like: Tensor, *arguments: Any) -> Result:
    """Return ``function(*arguments, device=like.device)``, which is computed at the first call and kept.

    The result must depend on nothing but the hashable arguments. It is shared: nobody may change it in place. While
    PyTorch traces, compiles or captures a call, the function is called, and nothing is kept.

    Example:
        >>> def positions(length, device):
        ...     return torch.arange(length, device=device)
        >>> kept(positions, torch.zeros(2), 5) is kept(positions, torch.ones(3), 5)
        True
    """
    device = like.device
    key = None
    if not torch.compiler.is_compiling() and type(like) in (Tensor, torch.nn.Parameter) and not torch.jit.is_tracing():
        key = _key(function, device, arguments)
    if key is None:
        return function(*arguments, device=device)
    result = _kept.get(key)
    if result is None:
        with torch.inference_mode(False):  # autograd saves no tensors of inference mode
            result = function(*arguments, device=device)
        _store(key, result)
    return result


def _key(function: Callable, device: torch.device, arguments: tuple) -> tuple | None:
    if device.type == 'cuda':
        if torch.cuda.is_current_stream_capturing():
            return None  # a graph must hold its tables itself, and a capture computes nothing
        # Another stream may read a table before it is written. torch.compile warms up its graphs on a stream of its
        # own, whose memory ends with them.
        if torch.cuda.current_stream(device) != torch.cuda.default_stream(device):
            return None
    return (function, device, arguments) if device.type in ('cpu', 'meta', 'cuda') else None


def is_transformed(x: Tensor) -> bool:
    """Tell whether a transform of ``torch.func``, such as ``vmap``, has made a tensor."""
    return torch._C._functorch.is_functorch_wrapped_tensor(x)


def _store(key: tuple, result: Any) -> None:
    tensors = result if isinstance(result, tuple) else (result,)
    lasting = all(type(x) is Tensor and not is_transformed(x) for x in tensors)  # fake ones end with the call, too
    if not lasting or not _storing.acquire(blocking=False):
        return  # the lock may never be free: a process may have been forked while another thread held it
    try:
        _kept[key] = result
        while len(_kept) > MOST or (len(_kept) > 1 and sum(map(_bytes, _kept.values())) > MOST_BYTES):
            del _kept[next(iter(_kept))]
    finally:
        _storing.release()


def _bytes(result: Any) -> int:
    return sum(x.untyped_storage().nbytes() for x in (result if isinstance(result, tuple) else (result,)))
