"""The self-attention network for captions, with normalised and geometry-aware attention (NG-SAN)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mmattn.language.layers.position_encodings import relative_geometry, sinusoids
from mmattn.language.models.transformer import ATTENTION
from mmattn.registry import MODELS
from mmattn.utils.checks import check_choice, check_count

from .captioner import Captioner

PLAIN = dict(type='mmattn.RegionAttention')
SCALE = 100  # multiplies relative coordinates before their sinusoids


@MODELS.register_module()
class SANCaptioner(Captioner):
    """Transformer from regions to words, with configurable attention between the regions.

    With plain ``mmattn.RegionAttention``, the model is SAN. ``query_norm='instance'`` makes it N-SAN,
    ``geometry='query_dependent'`` G-SAN, and both together NG-SAN. The regions pass a linear layer, ReLU and dropout.

    Source: "Normalized and Geometry-Aware Self-Attention Network for Image Captioning", 2020.

    Args:
        vocab_size, embed_dim, dropout, ``**kwargs``: as in :class:`Captioner`. ``embed_dim`` defaults to 512, and
            ``dropout`` to 0.1. The dropout of attention weights between regions is an option of ``encoder_attention``.
        num_features (int): channels D of the region features. Defaults to 2048.
        num_layers, num_heads (int): layers of encoder and decoder, and heads of each layer. Default to 4 and 8.
        feedforward_dim (int): channels of the feed-forward networks. Defaults to 2048.
        encoder_attention (dict): attention between the regions, without ``embed_dim`` and ``num_heads``. Defaults to
            plain ``mmattn.RegionAttention``.
        positions (str): sinusoids added to the regions. 'absolute' encodes centre and size of the boxes, relative to
            the image (Table 4). 'sinusoidal' encodes the number of a region, for video frames. Defaults to 'none'.
        norm_first (bool): the norms precede the sub-layers (pre-norm). Defaults to False.
        stack (str): 'Sequence' (default), the layers of mmattn, or 'Torch', the layers of ``nn.Transformer``, which
            accept only plain attention, and drop attention weights with probability ``dropout``.
        attention_dropout (float, optional): dropout probability of the attention weights in the decoder of mmattn,
            from 0 to 1. Defaults to ``dropout``, which ``stack='Torch'`` always uses.

    Example:
        >>> attention = dict(type='mmattn.RegionAttention', query_norm='instance', geometry='query_dependent')
        >>> model = SANCaptioner(100, num_features=32, num_layers=1, embed_dim=16, num_heads=4, feedforward_dim=32,
        ...                      encoder_attention=attention).eval()
        >>> boxes = torch.tensor([[[0.0, 0.0, 40.0, 30.0], [5.0, 5.0, 20.0, 20.0]]])
        >>> captions = model.describe(dict(features=torch.randn(1, 2, 32), boxes=boxes))
        >>> len(captions[0][0].tokens) <= 20
        True
    """

    def __init__(
        self,
        vocab_size: int,
        num_features: int = 2048,
        num_layers: int = 4,
        embed_dim: int = 512,
        num_heads: int = 8,
        feedforward_dim: int = 2048,
        encoder_attention: dict = PLAIN,
        positions: str = 'none',
        dropout: float = 0.1,
        norm_first: bool = False,
        stack: str = 'Sequence',
        attention_dropout: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(vocab_size, embed_dim, dropout, **kwargs)
        check_count('num_features', num_features)
        check_choice('positions', positions, ('none', 'absolute', 'sinusoidal'))
        if positions == 'absolute' and embed_dim % 8:
            raise ValueError(f"embed_dim must be a multiple of 8 with positions='absolute'; got {embed_dim}")
        check_choice('stack', stack, ('Sequence', 'Torch'))
        if stack == 'Torch' and encoder_attention != PLAIN:
            raise ValueError(f"encoder_attention must be {PLAIN} with stack='Torch'; got {encoder_attention}")
        layer: dict[str, Any] = dict(
            embed_dim=embed_dim,
            num_heads=num_heads,
            feedforward_dim=feedforward_dim,
            dropout=dropout,
            norm_first=norm_first,
        )
        self.num_features = num_features
        self.positions = positions
        self.geometry = bool(encoder_attention.get('geometry'))
        self.region_embedding = nn.Sequential(nn.Linear(num_features, embed_dim), nn.ReLU(), nn.Dropout(dropout))
        encoder_layer = decoder_layer = layer
        if stack == 'Sequence':
            attention = dict(ATTENTION, dropout=dropout if attention_dropout is None else attention_dropout)
            encoder_layer = dict(layer, self_attention=encoder_attention)
            decoder_layer = dict(layer, self_attention=attention, cross_attention=attention)
        self.encoder = MODELS.build(dict(type=f'mmattn.{stack}Encoder', num_layers=num_layers, layer=encoder_layer))
        self.decoder = MODELS.build(dict(type=f'mmattn.{stack}Decoder', num_layers=num_layers, layer=decoder_layer))

    def encode(self, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Encode the regions as float ``(B, N, E)``, with their padding mask, bool ``(B, N)``.

        'absolute' positions also read the input 'sizes', ``(B, 2)``, width and height of the images.
        """
        mask = inputs.get('region_mask')
        x = self.region_embedding(inputs['features'])
        if self.positions == 'absolute':
            x = x + box_sinusoids(inputs['boxes'], inputs['sizes'], x.shape[-1]).to(x.dtype)
        elif self.positions == 'sinusoidal':
            x = x + sinusoids(torch.arange(x.shape[1], device=x.device), x.shape[-1]).to(x.dtype)
        context = dict(relative_geometry=relative_geometry(inputs['boxes'], mask)) if self.geometry else {}
        return self.encoder(x, mask, **context), mask


def box_sinusoids(boxes: Tensor, sizes: Tensor, channels: int) -> Tensor:
    """Encode boxes by sinusoids of 100 · (x, y, width, height), with a quarter of the channels for each number.

    ``boxes`` are ``(B, N, 4)``, left, top, right, bottom in pixels. The centre (x, y) and the sides are relative to
    ``sizes``, width and height of the images. The result is ``(B, N, channels)``, where channels is a multiple of 8.
    """
    first, last = boxes.chunk(2, -1)
    size = sizes[:, None].to(boxes.dtype)
    relative = torch.cat([(first + last) / 2 / size, (last - first) / size], -1)
    return sinusoids(SCALE * relative, channels // 4).flatten(-2)
