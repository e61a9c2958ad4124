"""For mmdet: an inferencer for image files.

The layers for its backbones are in ``mmattn.layers``. Imports ``engine`` and ``utils``, and no other task.
"""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'inferencer': 'DetectionInferencer',
    },
)
