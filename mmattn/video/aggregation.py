"""From each object's probability to one label a pixel."""

import torch
from torch import Tensor

AGGREGATIONS = ('soft', 'min', 'max')
EPSILON = 1e-7


def aggregate(foreground: Tensor, how: str = 'soft') -> Tensor:
    """Return the probabilities of background and objects from those of each object against its own background.

    Args:
        foreground (Tensor): float ``(O, *S)``, probabilities p_o of 0 to 1.
        how (str): 'soft', the odds p/(1 − p) of the objects and of the background's Π(1 − p_o), normalised, as in
            later work; 'min', the background's is the least of the 1 − p_o; 'max', it is the largest, the thesis's
            rule to the letter (section 5.3), by which an object loses the pixels that another is sure not to have.
            Those of 'min' and 'max' need not add up to 1. Defaults to 'soft'.

    Returns:
        Tensor: ``(1 + O, *S)``, the background first; without objects it is 1.

    Raises:
        ValueError: an unknown ``how``.
    """
    if how not in AGGREGATIONS:
        raise ValueError(f'aggregation must be one of {AGGREGATIONS}; got {how!r}')
    if not len(foreground):
        return foreground.new_ones(1, *foreground.shape[1:])
    others = 1 - foreground
    if how != 'soft':
        background = others.amin(0) if how == 'min' else others.amax(0)
        return torch.cat([background.unsqueeze(0), foreground])
    p = torch.cat([others.prod(0, keepdim=True), foreground]).clamp(EPSILON, 1 - EPSILON)
    return torch.log(p / (1 - p)).softmax(0)
