"""Captioning: models, data sets, metrics and self-critical training. Importing it imports no metric's package."""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'caption_metric': 'CaptionMetric',
        'captioner': 'Captioner',
        'cider': 'CiderD',
        'datasets': 'COCOCaptionDataset VATEXDataset',
        'ensemble': 'CaptionEnsemble',
        'eta': 'ETACaptioner EntangledDecoder',
        'inferencer': 'CaptionInferencer',
        'overlap': 'caption_bleu rouge_l',
        'san': 'SANCaptioner',
        'self_critical': 'CiderReward end_mask mean_baseline self_critical_loss',
        'self_critical_hook': 'SelfCriticalHook',
        'words': 'caption_words',
    },
)
