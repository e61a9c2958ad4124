"""Attention operators: exact, differentiable, with extra memory linear in the number of positions."""
from .global_attention import global_attention
from .grid_attention import grid_attention

__all__ = ['global_attention', 'grid_attention']
