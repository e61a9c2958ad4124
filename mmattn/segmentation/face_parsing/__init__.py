"""Face parsing: the data sets HELEN and LFW-PL, their metric, and an inferencer."""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'datasets': 'HELENDataset LFWPLDataset',
        'inferencer': 'FaceParsingInferencer',
        'metric': 'FaceParsingMetric',
    },
)
