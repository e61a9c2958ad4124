"""Attention maps of any model, as in Fig. 3.4 of the bilateral-attention thesis: capture, figure, web page, hook.

The names below are functions of models with attention layers. Imports ``ops``, ``registry.py`` and ``utils``, and no
task. Start with ``attention_maps.py``, which captures; ``figure.py`` and ``attention_explorer.py`` draw what it
returns. ``picture_hook.py`` is the base of hooks that draw during a run.
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
from .figure import draw_attention_maps, read_image
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
    'picture_names',
    'read_image',
]
