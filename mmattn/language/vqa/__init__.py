"""Visual question answering."""

from .mcan import MCAN, AttentionPooling, GuidedEncoder

__all__ = ['MCAN', 'AttentionPooling', 'GuidedEncoder']
