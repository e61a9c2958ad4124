"""Components for mmdet: a hook that checks the data before training, and an inferencer for image files."""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'inferencer': 'DetectionInferencer',
        'mmattn.data_check.boxes': 'DetDataCheckHook',
    },
)
