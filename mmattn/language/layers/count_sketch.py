"""Count sketch: a random projection of vectors, whose circular convolutions are sketches of outer products."""

import torch
from torch import Tensor

from mmattn.ops.arguments import check_device, under_autocast
from mmattn.ops.dtypes import accumulator
from mmattn.utils.checks import check_count


def count_sketch(x: Tensor, index: Tensor, sign: Tensor, size: int) -> Tensor:
    """Project the channels of x at random: Ψ(x)[k] = Σ_{i: index[i] = k} sign[i] x[i].

    Differentiable in ``x`` and ``sign``. On a GPU, sums of one output may be in any order, as in ``torch.index_add``.
    Sources: Charikar et al., "Finding Frequent Items in Data Streams", 2002, and multimodal compact bilinear pooling
    (MCB), Fukui et al., 2016.

    Args:
        x (Tensor): float ``(*, C)``.
        index (Tensor): int64 ``(C)``, the output of each channel, from 0 to ``size`` − 1. Only values on a CPU are
            checked, because a check on a GPU would synchronise it.
        sign (Tensor): ``(C)``, 1 or −1, the dtype of ``x``.
        size (int): number of outputs d ≥ 1.

    Returns:
        Tensor: ``(*, size)``, dtype of ``x``.

    Example:
        >>> x, index, sign = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 1, 0]), torch.tensor([1.0, 1.0, -1.0])
        >>> count_sketch(x, index, sign, 4)
        tensor([-2.,  2.,  0.,  0.])
    """
    x, sign = under_autocast(x, sign)
    if not x.is_floating_point() or sign.dtype != x.dtype:
        raise TypeError(f'x and sign must share one floating-point dtype; got {x.dtype} and {sign.dtype}')
    if index.dtype != torch.int64:
        raise TypeError(f'index must be int64; got {index.dtype}')
    for name, y in (('index', index), ('sign', sign)):
        if y.shape != x.shape[-1:]:
            raise ValueError(f'{name} must be {tuple(x.shape[-1:])}, one entry per channel; got {tuple(y.shape)}')
    check_count('size', size)
    check_device(x, index=index, sign=sign)
    sums = x.new_zeros(*x.shape[:-1], size, dtype=accumulator(x))
    return sums.index_add(-1, index, (x * sign).to(sums.dtype)).to(x.dtype)
