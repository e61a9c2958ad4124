"""The operators with window biases, and ``normalize``: with the z-score of these in front."""

import functools

import torch

from mmattn import ops


def _zscored(operator, support):
    @functools.wraps(operator)
    def call(*args, normalize=False, **kwargs):
        if normalize and kwargs.get('window_bias') is not None:
            shared = {name: kwargs[name] for name in ('key_mask', 'is_causal') if name in kwargs}
            kwargs['window_bias'], kwargs['outside_bias'] = ops.window_zscore(
                kwargs['window_bias'], kwargs['window_size'], kwargs.get('outside_bias', 0.0), support=support, **shared
            )
        return operator(*args, **kwargs)

    return call


def operator(name):
    """Return the operator of a name, with ``normalize`` where it has window biases."""
    return globals().get(name) or getattr(ops, name)


def window_zscore(window_bias, outside_bias, **settings):
    """Both of its results in one tensor."""
    found = ops.window_zscore(window_bias, outside_bias=outside_bias, **settings)
    return torch.cat([found[0], found[1].unsqueeze(-1)], -1)


global_attention = _zscored(ops.global_attention, 'global')
grid_attention = _zscored(ops.grid_attention, 'grid')
global_attention_weights = _zscored(ops.global_attention_weights, 'global')
grid_attention_weights = _zscored(ops.grid_attention_weights, 'grid')
