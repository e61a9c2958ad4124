"""Pictures as rows of panels, and attention maps of any model: capture, figure, web page, hook.

The names below are functions of models with attention layers. Imports ``ops``, ``registry.py`` and ``utils``, and no
task. Start with ``panels.py``, which draws the pictures of all tasks, and ``attention_maps.py``, which captures what
``figure.py`` and ``attention_explorer.py`` draw.
"""

from .attention_explorer import attention_explorer
from .attention_map_hook import AttentionMapHook
from .attention_maps import (
    AttentionMaps,
    AttentionRun,
    attention_layers,
    attention_maps,
    attention_runs,
    capture_attention,
)
from .figure import draw_attention_maps, image_loader, read_image
from .picture_hook import PictureHook, picture_names

__all__ = [
    'AttentionMapHook',
    'AttentionMaps',
    'AttentionRun',
    'PictureHook',
    'attention_explorer',
    'attention_layers',
    'attention_maps',
    'attention_runs',
    'capture_attention',
    'draw_attention_maps',
    'image_loader',
    'picture_names',
    'read_image',
]
