"""A layer of the transformers of video: sparse attention and a feed-forward network, each with norm and residual."""

from mmcv.cnn.bricks.transformer import FFN
from torch import Tensor, nn

from mmattn.ops.checks import check_count, check_number
from mmattn.registry import MODELS


@MODELS.register_module()
class VideoTransformerLayer(nn.Module):
    """x ← x + attention(norm(x), …), then x ← x + FFN(norm(x)): self-attention, or cross-attention with a memory.

    Args:
        embed_dims (int): C.
        attention (dict): config of ``GridAttention3d``, ``StridedAttention3d`` or a layer that is called like them; it
            gets ``embed_dims``.
        feedforward_channels (int, optional): width of the feed-forward network. Defaults to 4 · C.
        dropout (float): of what attention and network add. Defaults to 0.
        query (str): in cross-attention, 'memory' (x is key and value, as in the signature of section 5.3 and in
            Eq. 5.5) or 'x' (the memory is, as in the text under Eq. 5.1). Defaults to 'memory'.

    Raises:
        TypeError: channels that are no integers, a dropout that is no number.
        ValueError: an unknown ``query``, channels below 1, a dropout outside 0 … 1.
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
        if query not in ('memory', 'x'):
            raise ValueError(f"query must be 'memory' or 'x'; got {query!r}")
        check_count('embed_dims', embed_dims)
        if feedforward_channels is not None:
            check_count('feedforward_channels', feedforward_channels)
        check_number('dropout', dropout, 0, 1)
        self.query = query
        self.attention = MODELS.build(dict(attention, embed_dims=embed_dims))
        self.norms = nn.ModuleList(nn.LayerNorm(embed_dims) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        self.ffn = FFN(embed_dims, feedforward_channels or 4 * embed_dims, ffn_drop=dropout, add_identity=False)

    def forward(self, x: Tensor, memory: Tensor | None = None, frame_numbers: Tensor | None = None) -> Tensor:
        """Attend within ``x``, or between it and ``memory``.

        Args:
            x (Tensor): float ``(B, T, H, W, C)``.
            memory (Tensor, optional): float ``(B, T, H, W, C)``, normed already.
            frame_numbers (Tensor, optional): int64 ``(B, T)``, numbers of the frames in their clip.

        Returns:
            Tensor: ``(B, T, H, W, C)``.
        """
        y = self.norms[0](x)
        if memory is None:
            y = self.attention(y, frame_numbers=frame_numbers)
        elif self.query == 'memory':
            y = self.attention(memory, y, frame_numbers)
        else:
            y = self.attention(y, memory, frame_numbers)
        x = x + self.dropout(y)
        return x + self.ffn(self.norms[1](x))
