"""Non-localized position attention: window logits predicted from the feature of the query (Eq. 3.11 and 3.12)."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmattn.ops import unit_variance
from mmattn.ops.arguments import as_window_size, window_entries
from mmattn.ops.dtypes import accumulator
from mmattn.ops.zscore import EPS
from mmattn.utils.checks import check_choice, check_positive

PADDINGS = ('learned', 'zero', 'neg_inf', 'mean', 'min')
SMOOTHINGS = ('zscore', 'sqrt_dim')


class WindowPosition(nn.Module):
    """Predict the logits of the window around a position with two linear layers, the compatibility function f.

    Args:
        axes (int): 1 for sequences, 2 for maps.
        in_channels (int): channels of the feature.
        embed_channels (int): channels between the two layers.
        window_size, padding, smoothing: see :class:`.PositionOptions`. 'learned' is one more output of f. 'neg_inf'
            makes attention local. 'mean' and 'min' include entries dropped at the border.
        dim (int): d of 'sqrt_dim', the number of channels of query and key.
        num_heads (int): number of heads, each with separate logits. Defaults to 1.
        support (str): keys of the z-score, as in :func:`mmattn.ops.unit_variance`. Defaults to 'global'.
        is_causal (bool): position i attends only to positions j ≤ i. Defaults to False.
        zero_init (bool): all logits are 0 at the start, so not with 'neg_inf'. Defaults to False.
    """

    def __init__(
        self,
        axes: int,
        in_channels: int,
        embed_channels: int,
        window_size: int | tuple[int, ...],
        dim: int,
        padding: str,
        smoothing: str | float,
        num_heads: int = 1,
        support: str = 'global',
        is_causal: bool = False,
        zero_init: bool = False,
    ) -> None:
        super().__init__()
        check_choice('padding', padding, PADDINGS)
        if isinstance(smoothing, str) and smoothing not in SMOOTHINGS:
            raise ValueError(f'smoothing must be one of {SMOOTHINGS}, or a number; got {smoothing!r}')
        if not isinstance(smoothing, str):
            check_positive('smoothing', smoothing)
        if smoothing == 'zscore' and padding == 'neg_inf':
            raise ValueError("smoothing='zscore' is undefined with padding='neg_inf'; use smoothing='sqrt_dim'")
        if zero_init and padding == 'neg_inf':
            raise ValueError(
                "zero_init=True is impossible with padding='neg_inf', which leaves out keys from the start"
            )
        self.window_size = as_window_size(window_size, axes)
        self.padding = padding
        self.num_heads = num_heads
        self.support: dict | None = dict(support=support, is_causal=is_causal) if smoothing == 'zscore' else None
        self.scale = {'zscore': 1.0, 'sqrt_dim': dim**-0.5}[smoothing] if isinstance(smoothing, str) else 1 / smoothing
        entries = window_entries(self.window_size, is_causal=is_causal, on_grid=support == 'grid')
        entries += padding == 'learned'
        conv = {1: nn.Conv1d, 2: nn.Conv2d}[axes]
        self.embedding = conv(in_channels, embed_channels, 1)
        self.logits = conv(embed_channels, num_heads * entries, 1)
        self.zero_init = zero_init
        self.init_weights()

    def init_weights(self) -> None:
        """Set the logits to 0 with ``zero_init``, also after the ``init_cfg`` of a backbone has set them."""
        if self.zero_init:
            nn.init.zeros_(self.logits.weight)
            nn.init.zeros_(self.logits.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> dict:
        """Compute the position arguments of the operator: ``window_bias``, ``window_size`` and ``outside_bias``.

        ``x`` is float ``(B, in_channels, *S)``. ``key_mask`` is bool ``(B, *S)``, True where a key may be attended to.
        """
        window, outside = self._predicted(x)
        if self.support is not None:
            window, outside = unit_variance(window, self.window_size, outside, key_mask=key_mask, **self.support)
        return dict(window_bias=window, window_size=self.window_size, outside_bias=outside)

    def last_row(self, x: Tensor, length: int) -> Tensor:
        """Compute the position logits ``(B, heads, length)`` of the last position of a causal sequence, for decoding.

        ``x`` is float ``(B, in_channels, 1)``, the feature of that position. ``length`` includes the position.
        """
        window, outside = self._predicted(x)
        inside = window[:, :, 0, -length:]  # the last entry belongs to the position itself
        outer = length - inside.shape[-1]
        if isinstance(outside, float):
            row = F.pad(inside, (outer, 0), value=outside)
        else:
            row = torch.cat([outside.expand(*outside.shape[:2], outer), inside], -1)
        if self.support is not None:
            row = F.layer_norm(row.to(accumulator(row)), (length,), eps=EPS)  # the z-score over all keys
        return row

    def _predicted(self, x: Tensor) -> tuple[Tensor, Tensor | float]:
        """Predict the logits of the windows, ``(B, heads, *S, K)``, and of keys outside, divided by σp."""
        if x.dim() == 3:  # a sequence: nn.Linear is faster than nn.Conv1d
            logits = x.transpose(1, 2)
            for conv in (self.embedding, self.logits):
                logits = F.linear(logits, conv.weight.squeeze(-1), conv.bias)
            window = self._scaled(logits).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        else:
            logits = self._scaled(self.logits(self.embedding(x)))
            window = logits.unflatten(1, (self.num_heads, -1)).movedim(2, -1)  # (B, heads, *S, K or K + 1)
        if self.padding == 'learned':
            window, outside = window.split([window.shape[-1] - 1, 1], -1)  # its derivative is one launch
            return window, outside.squeeze(-1)
        if self.padding == 'mean':
            return window, window.mean(-1)
        if self.padding == 'min':
            return window, window.amin(-1)
        return window, {'zero': 0.0, 'neg_inf': -math.inf}[self.padding]

    def _scaled(self, logits: Tensor) -> Tensor:
        return logits if self.scale == 1 else logits * self.scale
