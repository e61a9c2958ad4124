"""Captioning: data sets, metrics and the reward of self-critical training. Importing it imports no metric's package."""

from .caption_metric import CaptionMetric
from .cider import CiderD
from .datasets import COCOCaptionDataset, VATEXDataset
from .overlap import caption_bleu, rouge_l
from .self_critical import CiderReward, end_mask, mean_baseline, self_critical_loss
from .words import caption_words

__all__ = [
    'COCOCaptionDataset',
    'CaptionMetric',
    'CiderD',
    'CiderReward',
    'VATEXDataset',
    'caption_bleu',
    'caption_words',
    'end_mask',
    'mean_baseline',
    'rouge_l',
    'self_critical_loss',
]
