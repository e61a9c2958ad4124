"""Components for mmdet: a hook that checks the data before training."""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'mmattn.data_check.boxes': 'DetDataCheckHook',
    },
)
