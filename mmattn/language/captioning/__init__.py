"""Captioning: models, data sets, metrics and self-critical training. Importing it imports no metric's package."""

from .caption_metric import CaptionMetric
from .captioner import Captioner
from .cider import CiderD
from .datasets import COCOCaptionDataset, VATEXDataset
from .ensemble import CaptionEnsemble
from .eta import EntangledDecoder, ETACaptioner
from .inferencer import CaptionInferencer
from .overlap import caption_bleu, rouge_l
from .san import SANCaptioner
from .self_critical import CiderReward, end_mask, mean_baseline, self_critical_loss
from .self_critical_hook import SelfCriticalHook
from .words import caption_words

__all__ = [
    'COCOCaptionDataset',
    'CaptionEnsemble',
    'CaptionInferencer',
    'CaptionMetric',
    'Captioner',
    'CiderD',
    'CiderReward',
    'ETACaptioner',
    'EntangledDecoder',
    'SANCaptioner',
    'SelfCriticalHook',
    'VATEXDataset',
    'caption_bleu',
    'caption_words',
    'end_mask',
    'mean_baseline',
    'rouge_l',
    'self_critical_loss',
]
