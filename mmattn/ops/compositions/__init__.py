"""Compositions: the operators in PyTorch's own operations, in the dtype of the operands, with memory linear in the map.

They run on GPUs without a check, because PyTorch has tested these operations. ``export.py`` is for exported networks.
"""

from . import dynamic_conv, global_attention, grid_attention, local_attention, strided_attention

__all__ = ['dynamic_conv', 'global_attention', 'grid_attention', 'local_attention', 'strided_attention']
