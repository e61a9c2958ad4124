"""Position-aware attention for MMSegmentation and MMDetection.

Importing this package loads neither torch nor any OpenMMLab package. Components register themselves when a config first
names one (``type='mmattn.BiCCHead'``). Data flows from a config to ``registry.py``, a component of a task
(``segmentation``, ``video``, ``language``), a layer (``layers``), an operator (``ops``), and its kernel. Imports go the
same way, and every folder may import ``utils``. ``_compat.py`` has what belongs to other packages.
"""

from importlib import import_module
from types import ModuleType

__version__ = '0.5.0.dev0'
SUBPACKAGES = (
    'check',
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
