"""Components for mmdet: a hook that checks the data before training, and an inferencer for image files.

The layers for its backbones are in ``mmattn.layers``, and the check is in ``data_check/boxes.py``. Imports those,
``engine`` and ``utils``, and no other task. Start with ``inferencer.py``.
"""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'inferencer': 'DetectionInferencer',
        'mmattn.data_check.boxes': 'DetDataCheckHook',
    },
)
