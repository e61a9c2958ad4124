"""Components for mmdet: a hook that checks the data before training."""

from .data_check_hook import DetDataCheckHook

__all__ = ['DetDataCheckHook']
