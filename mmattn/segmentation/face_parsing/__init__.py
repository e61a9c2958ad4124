"""Face parsing: the data sets HELEN and LFW-PL, and their metric.

Configs name the classes below. Imports ``segmentation``, ``registry.py`` and ``utils``. Start with ``datasets.py``.
"""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'datasets': 'HELENDataset LFWPLDataset',
        'metric': 'FaceParsingMetric',
        'mmattn.segmentation.inferencer': 'FaceParsingInferencer',
    },
)
