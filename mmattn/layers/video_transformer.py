"""A transformer layer for video: sparse attention and a feed-forward network, each with a norm and a residual."""

from mmcv.cnn.bricks.transformer import FFN
from torch import Tensor, nn

from mmattn.registry import MODELS
from mmattn.utils.checks import check_choice, check_count, check_fraction

from .multihead_attention_3d import check_maps


@MODELS.register_module()
class VideoTransformerLayer(nn.Module):
    """Transformer layer for video: x ← x + attention(norm(x), …), then x ← x + FFN(norm(x)).

    Without a memory it is self-attention, with a memory cross-attention.
    Source: "Attention and Fusion of Deep Representations for Computer Vision", thesis, Guelph, 2020, chapter 5.

    Args:
        embed_dims (int): channels C.
        attention (dict): config of ``GridAttention3d``, ``StridedAttention3d`` or another layer with the same
            interface. ``embed_dims`` is added to it.
        feedforward_channels (int, optional): hidden channels of the feed-forward network. Defaults to 4 · C.
        dropout (float): dropout probability after attention and feed-forward network, from 0 to 1. Defaults to 0.
        query (str): the input that provides the queries in cross-attention: 'memory' (x provides keys and values, as in
            the signature of section 5.3 and in Eq. 5.5) or 'x' (the memory provides keys and values, as in the text
            below Eq. 5.1). Defaults to 'memory'.

    Example:
        >>> attention = dict(type='mmattn.GridAttention3d', num_heads=2, temporal_position='none')
        >>> layer = VideoTransformerLayer(16, attention)
        >>> layer(torch.randn(1, 3, 8, 8, 16)).shape  # 3 frames of 8×8 voxels with 16 channels
        torch.Size([1, 3, 8, 8, 16])
    """

    def __init__(
        self,
        embed_dims: int,
        attention: dict,
        feedforward_channels: int | None = None,
        dropout: float = 0.0,
        query: str = 'memory',
    ) -> None:
        super().__init__()
        check_choice('query', query, ('memory', 'x'))
        if feedforward_channels is not None:
            check_count('feedforward_channels', feedforward_channels)
        check_fraction('dropout', dropout)
        self.embed_dims, self.query = embed_dims, query
        self.attention = MODELS.build(dict(attention, embed_dims=embed_dims))
        self.norms = nn.ModuleList(nn.LayerNorm(embed_dims) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        self.ffn = FFN(embed_dims, feedforward_channels or 4 * embed_dims, ffn_drop=dropout, add_identity=False)

    def forward(self, x: Tensor, memory: Tensor | None = None, frame_numbers: Tensor | None = None) -> Tensor:
        """Attend within ``x``, or between ``x`` and ``memory``. All maps are float ``(B, T, H, W, C)``.

        ``memory`` must be normalised already. ``frame_numbers`` is int64 ``(B, T)``, the index of each frame in its
        clip.
        """
        check_maps(x, x, self.embed_dims)
        y = self.norms[0](x)
        if memory is None:
            y = self.attention(y, frame_numbers=frame_numbers)
        elif self.query == 'memory':
            y = self.attention(memory, y, frame_numbers)
        else:
            y = self.attention(y, memory, frame_numbers)
        x = x + self.dropout(y)
        return x + self.ffn(self.norms[1](x))
