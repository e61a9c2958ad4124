"""Position-aware attention for MMSegmentation and MMDetection.

Importing this package loads neither torch nor any OpenMMLab package. Components register themselves when a config first
names one (``type='mmattn.BiCCHead'``).
"""

from importlib import import_module
from types import ModuleType

__version__ = '0.4.0.dev0'
SUBPACKAGES = (
    'annotations',
    'data_check',
    'deployment',
    'detection',
    'engine',
    'language',
    'layers',
    'ops',
    'registry',
    'segmentation',
    'utils',
    'video',
    'visualization',
)


def __getattr__(name: str) -> ModuleType:
    """Import a subpackage when it is first named: ``import mmattn; mmattn.ops.global_attention``."""
    if name in SUBPACKAGES:
        return import_module(f'{__name__}.{name}')
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}; there are {", ".join(SUBPACKAGES)}')
