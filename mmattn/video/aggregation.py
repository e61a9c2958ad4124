"""Combine the probabilities of several objects."""

import torch
from torch import Tensor

from mmattn.utils.checks import check_choice

AGGREGATIONS = ('soft', 'min', 'max')
EPSILON = 1e-7


def aggregate(foreground: Tensor, how: str = 'soft') -> Tensor:
    """Combine the probabilities of objects, each computed against its own background.

    Args:
        foreground (Tensor): float ``(O, *S)``, the probability p_o of each of the O objects, from 0 to 1.
        how (str): how the probability of the background is computed. Defaults to 'soft'.

            * 'soft': normalise the odds p / (1 − p) of the objects and of the background with p = Π(1 − p_o), as in
              later work. The results sum to 1. With 'min' and 'max', they need not.
            * 'min': the smallest 1 − p_o.
            * 'max': the largest 1 − p_o, the literal rule of the thesis (section 5.3). With it, an object loses the
              pixels that another object certainly does not cover.

    Returns:
        Tensor: ``(1 + O, *S)`` of the same dtype, the background first. Without objects, the background is 1.

    Example:
        >>> aggregate(torch.tensor([[0.75, 0.25], [0.5, 0.0]]), 'min')
        tensor([[0.2500, 0.7500],
                [0.7500, 0.2500],
                [0.5000, 0.0000]])
    """
    check_choice('aggregation', how, AGGREGATIONS)
    if not len(foreground):
        return foreground.new_ones(1, *foreground.shape[1:])
    if how != 'soft':
        backgrounds = 1 - foreground
        background = backgrounds.amin(0) if how == 'min' else backgrounds.amax(0)
        return torch.cat([background.unsqueeze(0), foreground])
    wide = foreground.to(torch.promote_types(foreground.dtype, torch.float32))  # in 16 bit, 1 − EPSILON is 1
    p = torch.cat([(1 - wide).prod(0, keepdim=True), wide]).clamp(EPSILON, 1 - EPSILON)
    return torch.log(p / (1 - p)).softmax(0).to(foreground.dtype)
