"""Captioning: models, data sets, metrics and self-critical training. Packages of the metrics are imported on use.

Configs name the components, which load on first use. Imports ``language``'s ``text``, ``regions``, ``layers`` and
``models``, and no other task. Start with ``captioner.py``, the base of the models in ``san.py`` and ``eta.py``, then
``datasets.py``; ``self_critical.py`` is the second stage of training, and ``cider.py`` its reward.
"""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'annotations': 'caption_words',
        'caption_metric': 'CaptionMetric caption_bleu rouge_l',
        'captioner': 'CaptionEnsemble Captioner',
        'cider': 'CiderD',
        'datasets': 'COCOCaptionDataset VATEXDataset',
        'eta': 'ETACaptioner EntangledDecoder',
        'inferencer': 'CaptionInferencer',
        'san': 'SANCaptioner',
        'self_critical': 'CiderReward SelfCriticalHook end_mask mean_baseline self_critical_loss',
        'transforms': 'EncodeCaptions',
    },
)
