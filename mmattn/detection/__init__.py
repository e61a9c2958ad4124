"""Detection on top of mmdet: a check of the data before training."""

from .data_check_hook import DetDataCheckHook

__all__ = ['DetDataCheckHook']
