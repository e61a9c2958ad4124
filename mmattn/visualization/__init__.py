"""Attention maps as in Fig. 3.4 of the bilateral-attention thesis: captured from any model, drawn, a hook."""
from .attention_map_hook import AttentionMapHook
from .attention_maps import AttentionMaps, attention_layers, attention_maps, capture_attention
from .figure import draw_attention_maps, read_image

__all__ = [
    'AttentionMapHook', 'AttentionMaps', 'attention_layers', 'attention_maps', 'capture_attention',
    'draw_attention_maps', 'read_image'
]
