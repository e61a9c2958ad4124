"""The operators by name: with ``normalize``, the z-score of window biases in front."""

import torch

from mmattn import ops

from ..support import operator_calls


def operator(name):
    """Return the operator of a name. The z-score itself has both of its results in one tensor."""
    return unit_variance if name == 'unit_variance' else operator_calls.operator(name)


def unit_variance(window_bias, outside_bias, **settings):
    found = ops.unit_variance(window_bias, outside_bias=outside_bias, **settings)
    return torch.cat([found[0], found[1].unsqueeze(-1)], -1)


global_attention, grid_attention = map(operator, ('global_attention', 'grid_attention'))
