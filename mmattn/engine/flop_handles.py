"""Let mmengine's counter of multiply-accumulates count the operators of this package."""

from collections.abc import Callable
from typing import Any

import torch
from mmengine.analysis.jit_handles import get_shape
from torch.utils.flop_counter import flop_registry

import mmattn.ops  # noqa: F401  # registers the formulas
from mmattn._compat import default_flop_handles


def add_flop_handles() -> None:
    """Let ``mmengine.analysis.get_model_complexity_info`` count the operators of this package.

    mmengine's counter, on which mmseg's and mmdet's ``tools/analysis_tools/get_flops.py`` rely, leaves out operators
    that it does not know, with a warning. Call this function once before, for example in your copy of the tool. It
    counts the multiply-accumulates of the matrix products, as ``tools/analysis_tools/get_flops.py`` of this project.

    Example:
        >>> from mmengine.analysis import get_model_complexity_info
        >>> from mmattn.layers import BilateralCrissCrossAttention
        >>> add_flop_handles()
        >>> layer = BilateralCrissCrossAttention(8, window_size=3)
        >>> get_model_complexity_info(layer, (8, 16, 16), show_table=False, show_arch=False)['flops']
        95488
    """
    for op, formula in flop_registry.items():
        namespace, _, name = str(op).partition('.')
        if namespace == 'mmattn':
            default_flop_handles()[f'mmattn::{name}'] = _handle(formula)


def _handle(formula: Callable[..., int]) -> Callable[[list, list], int]:
    return lambda inputs, outputs: formula(*map(_argument, inputs)) // 2


def _argument(value: Any) -> Any:
    """Convert an argument in a traced graph: a constant, a tensor without data, or a list of them."""
    if value.node().kind() == 'prim::ListConstruct':
        return [_argument(item) for item in value.node().inputs()]
    return torch.empty(get_shape(value), device='meta') if value.isCompleteTensor() else value.toIValue()
