"""Local bilateral attention (BA), chapter 4 of the bilateral-attention thesis."""

from collections import OrderedDict
from typing import Any

import torch
from mmcv.cnn import build_activation_layer, build_norm_layer
from torch import Tensor, nn

from mmattn.ops import local_attention, projection
from mmattn.ops.arguments import as_window_size, under_autocast
from mmattn.ops.layouts import copy_for_inductor
from mmattn.ops.tables import is_transformed
from mmattn.registry import MODELS
from mmattn.utils.checks import check_choice, check_count, check_divisor, check_map, check_number
from mmattn.utils.component_type import type_name

from .attention_weights import KINDS, AttentionWeights

# In evaluation, projections that take more bytes than this are computed in strips of rows: an eighth of it in 16 bit.
# Strips of smaller maps would take more time than the map as a whole.
WHOLE_BYTES = 2**25
STRIP_BYTES = 2**22
LEAST_ROWS = 8  # per strip, because the rows around it are projected, too
GROUPED = 'GN', 'GroupNorm', 'LN', 'LayerNorm', 'LN2d'  # norms over several channels


@MODELS.register_module()
class LocalBilateralAttention(AttentionWeights, nn.Module):
    """Attention over the k×k neighbourhood of each position, by content, by geometry, or by both.

    y_i = W_out Σ_j softmax_j [(W_σ x_i)ᵀ(W_φ x_j) + W_γ[j,·]·(W_σ x_i)] W_β x_j for each of M heads (Eq. 4.2, 4.6 to
    4.9), over the neighbours j inside the map. The thesis does not specify the following details, which reproduce the
    ten parameter counts of Table 4.2. W_γ is one 1×1 layer from all channels of the projected query to M·k² logits.
    Each projection has a bias and a norm. With ``share``, one projection is used for σ, φ and β. This projection and γ
    have no bias and no norm, and the output projection has both.

    In evaluation without gradients, large maps are processed in strips of rows: the extra memory does not depend on the
    height, and the values are the same, except for rounding.
    Source: "The Attention Mechanism in Vision and Language Analysis", PhD thesis, UTS, 2021, chapter 4.

    Args:
        in_channels (int): channels of the map.
        out_channels (int, optional): channels of the output and of the projections. Defaults to ``in_channels``.
        kernel_size (int or tuple[int, int]): odd side k of the neighbourhood, or (vertical, horizontal). Defaults to 3.
        num_heads (int): M, a divisor of ``out_channels``. Defaults to 8.
        content (bool): use the content logits. Defaults to True.
        geometric (bool): use the geometric logits, required without ``content``. Defaults to True.
        iterations (int): T, number of softmax passes. Passes after the first refine the content logits (Algorithm 1).
            More than one requires ``content``, and ``share``, because keys and values must lie in one space. Defaults
            to 1.
        share (bool): one projection for query, key and value. Defaults to False.
        dilation (int): step between the positions of a neighbourhood. Defaults to 1.
        factorised (bool): γ = (W_σ x_i)ᵀ[r_row, r_column] with k vectors per axis and head, in place of W_γ (section
            4.2.3). The first ⌈d/2⌉ channels belong to the row. Requires ``geometric``. Defaults to False.
        late_fusion (bool): content and geometry have a softmax each, and W_out reads the concatenation of both outputs,
            in place of Eq. 4.6 (section 4.3.1). Requires ``content`` and ``geometric``. Defaults to False.
        matching (str): what content compares: 'linear' (default), projections σ and φ, 'same', one projection σ = φ, or
            'identity', the features, with ``geometric`` as many as ``out_channels`` (section 4.2.2). The latter two
            require ``content``, and ``share=False``.
        scale (float, optional): factor of the content logits. None means 1/√d, d = out_channels / num_heads. Defaults
            to 1.0: the thesis uses no factor.
        norm_cfg (dict, optional): norm of the projections. It must normalise each channel separately: 'BN', 'SyncBN' or
            'IN'. With None, also pass ``scale=None``. Otherwise the content logits are not scaled. Defaults to batch
            norm.
        act_cfg (dict, optional): activation of the output. Defaults to ReLU.

    Example:
        >>> layer = LocalBilateralAttention(16, 32, num_heads=4, share=True, iterations=2)
        >>> layer(torch.randn(1, 16, 8, 8)).shape
        torch.Size([1, 32, 8, 8])
    """

    operator = staticmethod(local_attention)

    def __init__(
        self,
        in_channels: int,
        out_channels: int | None = None,
        kernel_size: int | tuple[int, int] = 3,
        num_heads: int = 8,
        content: bool = True,
        geometric: bool = True,
        iterations: int = 1,
        share: bool = False,
        dilation: int = 1,
        scale: float | None = 1.0,
        norm_cfg: dict | None = dict(type='BN'),
        act_cfg: dict | None = dict(type='ReLU'),
        factorised: bool = False,
        late_fusion: bool = False,
        matching: str = 'linear',
    ) -> None:
        super().__init__()
        out_channels = in_channels if out_channels is None else out_channels
        sizes = as_window_size(kernel_size, axes=2, name='kernel_size')
        check_count('in_channels', in_channels)
        check_divisor('num_heads', num_heads, 'out_channels', out_channels)
        if scale is not None:
            check_number('scale', scale)
        if not (content or geometric):
            raise ValueError('content and geometric cannot both be False')
        if factorised and not geometric:
            raise ValueError('factorised=True requires geometric=True')
        if late_fusion and not (content and geometric):
            raise ValueError(
                f'late_fusion=True requires content=True and geometric=True; got content={content}, '
                f'geometric={geometric}'
            )
        check_choice('matching', matching, ('linear', 'same', 'identity'))
        if matching != 'linear' and (share or not content):
            raise ValueError(f'matching={matching!r} requires content=True and share=False')
        check_count('dilation', dilation)
        check_count('iterations', iterations)
        if iterations > 1 and not (content and share):
            raise ValueError(
                f'iterations={iterations} refines content logits in one shared space: it requires content=True and '
                f'share=True; got content={content}, share={share}'
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.num_heads = num_heads
        self.content = content
        self.geometric = geometric
        self.share = share
        self.factorised = factorised
        self.late_fusion = late_fusion
        self.matching = matching
        self.scale = scale
        self.reach = dilation * (sizes[0] // 2)  # rows above and below a position that it attends to
        self.settings = dict(kernel_size=sizes, dilation=dilation, iterations=iterations)
        # σ, φ and β have the same input: one layer computes them, in this order. Without content there is no φ.
        parts = 1 if share or matching == 'identity' else 3 if content and matching == 'linear' else 2
        inner: dict[str, Any] = dict(bias=not share, norm_cfg=None if share else norm_cfg)
        self.num_projected = parts * out_channels
        self.projection = pointwise(in_channels, self.num_projected, **inner)
        if geometric:
            self.gamma: nn.Module = (
                FactorisedGamma(out_channels, num_heads, sizes)
                if factorised
                else pointwise(out_channels, num_heads * sizes[0] * sizes[1], **inner)
            )
        self.attended = 2 * out_channels if late_fusion else out_channels  # channels that W_out reads
        self.output = pointwise(self.attended, out_channels, bias=True, norm_cfg=norm_cfg)
        if act_cfg is not None and type_name(act_cfg) == 'ReLU':
            act_cfg = {'inplace': True, **act_cfg}  # as in ConvModule
        self.activate = nn.Identity() if act_cfg is None else build_activation_layer(act_cfg)

    def init_weights(self) -> None:
        """Reset every parameter. ``ConvModule`` does not initialise a layer that has this method."""
        for module in self.modules():
            reset = getattr(module, 'reset_parameters', None)
            if reset is not None:
                reset()

    @property
    def attention_kinds(self) -> tuple[str, ...]:
        """The values of ``kind`` that ``attention_weights`` accepts."""
        if self.content and self.geometric:
            return KINDS[:2] if self.late_fusion else KINDS
        return KINDS[:1] if self.content else KINDS[1:2]

    def extra_repr(self) -> str:
        """List the settings for ``repr``."""
        names = 'num_heads', 'content', 'geometric', 'share', 'matching', 'factorised', 'late_fusion', 'scale'
        switches = {name: getattr(self, name) for name in names}
        return ', '.join(f'{name}={value}' for name, value in {**self.settings, **switches}.items())

    def forward(self, x: Tensor) -> Tensor:
        """Attend to each neighbourhood, from float ``(B, in_channels, H, W)`` to ``(B, out_channels, H, W)``."""
        check_map(self, x, self.in_channels)
        rows = self._rows_of_a_strip(x)
        if rows is not None:
            return self._in_strips(x, rows)
        return self._finish(self._attend(self.operands(x)))

    def operands(self, x: Tensor) -> dict:
        """Compute the arguments of ``local_attention`` for a map ``x`` of ``(B, in_channels, H, W)``."""
        (x,) = under_autocast(x, always=True)
        if x.element_size() == 2:
            # In 16 bit, transposing projections, and their gradients, would take as long as the rest of the layer.
            x = _channels_last(x)
        projected = self.projection(x).split(self.out_channels, 1)
        if self.matching == 'identity':
            projected = (x, *projected)
        window = self._heads(self.gamma(projected[0])) if self.geometric else None
        heads = [self._heads(part) for part in projected]
        query, key = (heads[0], heads[1 if len(heads) == 3 else 0]) if self.content else (None, None)
        return dict(query=query, key=key, value=heads[-1], scale=self.scale, window_bias=window, **self.settings)

    def _attend(self, operands: dict) -> Tensor:
        calls = [operands]
        if self.late_fusion:
            calls = [dict(operands, window_bias=None), dict(operands, query=None, key=None, iterations=1)]
        maps = [local_attention(**call).movedim(1, -2).flatten(-2).movedim(-1, 1) for call in calls]
        return torch.cat(maps, 1) if self.late_fusion else maps[0]

    def _finish(self, y: Tensor) -> Tensor:
        return self.activate(self.output(y))

    def _rows_of_a_strip(self, x: Tensor) -> int | None:
        if self.training or torch.is_grad_enabled() or torch.jit.is_tracing() or torch.compiler.is_compiling():
            return None
        if is_transformed(x):  # no rows of it can be written in place
            return None
        row = x.shape[0] * x.shape[3] * self.num_projected * x.element_size()
        if row * x.shape[2] <= (WHOLE_BYTES // 8 if x.element_size() == 2 else WHOLE_BYTES):
            return None
        norms = [module for name, module in self.named_modules() if name.endswith('.norm')]
        if not all(isinstance(norm, nn.Identity) or _has_fixed_statistics(norm) for norm in norms):
            return None
        return max(LEAST_ROWS, 2 * self.reach, STRIP_BYTES // row)

    def _in_strips(self, x: Tensor, rows: int) -> Tensor:
        layout = torch.channels_last if x.stride(1) == 1 else torch.contiguous_format
        for top in range(0, x.shape[2], rows):
            first = max(top - self.reach, 0)
            strip = _channels_last(x[:, :, first : top + rows + self.reach])
            inner = slice(top - first, top - first + rows)
            y = self._finish(self._attend(self.operands(strip))[:, :, inner])
            if top == 0:  # under autocast, x has another dtype
                size = len(x), self.out_channels, *x.shape[2:]
                out = torch.empty(size, dtype=y.dtype, device=y.device, memory_format=layout)
            out[:, :, top : top + rows] = y
        return out

    def _heads(self, x: Tensor) -> Tensor:
        # (B, M·C, H, W) → (B, M, H, W, C). Channels move first: a view next to a batch of 1 has a stride that does not
        # show the layout.
        return x.movedim(1, -1).unflatten(-1, (self.num_heads, -1)).movedim(-2, 1)


def _channels_last(x: Tensor) -> Tensor:
    return x.movedim(1, -1).contiguous().movedim(-1, 1)  # vmap has no `contiguous(memory_format=…)`


def _has_fixed_statistics(norm: nn.Module) -> bool:
    return not norm.training and getattr(norm, 'running_mean', None) is not None


class Pointwise(nn.Conv2d):
    """A 1×1 convolution that computes a channels-last map, or a slice of its channels, as a product of rows."""

    def forward(self, x: Tensor) -> Tensor:
        """Project a map ``(B, C, H, W)`` to ``(B, O, H, W)``."""
        copy = copy_for_inductor(x)
        if copy is not x or x.stride(1) != 1:
            return super().forward(copy)
        # `nn.Conv2d` would first copy a slice of channels.
        return projection(x.movedim(1, -1), self.weight.flatten(1), self.bias).movedim(-1, 1)


class FactorisedGamma(nn.Module):
    """Geometric logits from one vector for each row and each column of the k0×k1 neighbourhood, of each head."""

    def __init__(self, channels: int, num_heads: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        d = channels // num_heads
        self.rows = nn.Parameter(torch.empty(num_heads, sizes[0], (d + 1) // 2))
        self.columns = nn.Parameter(torch.empty(num_heads, sizes[1], d // 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors from N(0, 1/d), with d channels per head."""
        for table in (self.rows, self.columns):
            nn.init.normal_(table, std=(self.rows.shape[-1] + self.columns.shape[-1]) ** -0.5)

    def forward(self, query: Tensor) -> Tensor:
        """Compute the logits ``(B, M · k0 · k1, H, W)`` of a projected query ``(B, M · d, H, W)``."""
        heads = query.unflatten(1, (len(self.rows), -1))
        row, column = heads.split([self.rows.shape[-1], self.columns.shape[-1]], 2)
        by_row = torch.einsum('bmdhw,mkd->bmkhw', row, self.rows.to(query.dtype))
        by_column = torch.einsum('bmdhw,mkd->bmkhw', column, self.columns.to(query.dtype))
        return (by_row.unsqueeze(3) + by_column.unsqueeze(2)).flatten(1, 3)


def pointwise(in_channels: int, out_channels: int, *, bias: bool, norm_cfg: dict | None = None) -> nn.Sequential:
    """Build a 1×1 convolution and its norm. ``ConvModule`` would warn about the bias before a norm (Table 4.2)."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(conv=Pointwise(in_channels, out_channels, 1, bias=bias))
    if norm_cfg is not None:
        if type_name(norm_cfg) in GROUPED:
            # One layer computes several projections, and the channels of γ are rarely a multiple of the groups.
            raise ValueError(f'norm_cfg must normalise each channel separately, such as BN; got {norm_cfg}')
        layers['norm'] = build_norm_layer(norm_cfg, out_channels)[1]
    return nn.Sequential(layers)
