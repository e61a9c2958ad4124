"""Transformer attention with four terms, of "An Empirical Study of Spatial Attention Mechanisms in Deep Networks"."""

import math
from typing import Any

import torch
from mmcv.cnn import build_norm_layer
from mmengine.model import kaiming_init
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from mmattn.ops import global_attention, local_attention
from mmattn.ops.arguments import as_window_size
from mmattn.ops.layouts import copy_for_inductor
from mmattn.ops.tables import kept
from mmattn.registry import MODELS
from mmattn.utils.checks import check_count, check_counts, check_divisor, check_map, check_number

from .attention_weights import TermWeights, check_terms


@MODELS.register_module()
class TransformerAttention2d(TermWeights, nn.Module):
    """Residual block of multi-head attention whose logits are the sum of up to four terms, each with a switch.

    y_q = x_q + γ · Σ_m W_m Σ_k softmax_k [Σ_j β_j E_j] W'_m x_k, with these terms (Eq. 1, 2 and 8):

    ====  =====================================  ==========================
    E1    (U_m x_q)ᵀ V_m^C x_k                   query and key content
    E2    (U_m x_q)ᵀ V_m^R R_{q−k} / √2          query content and position
    E3    u_mᵀ V_m^C x_k                         key content
    E4    v_mᵀ V_m^R R_{q−k} / √2                position
    ====  =====================================  ==========================

    V^R R_{q−k} is the sum of the projected encodings of the row offset and of the column offset. E2 and E4 therefore
    need one table of logits for the row of the key and one for its column. γ is a learned scalar that starts at 0: a
    new block is the identity.

    It replaces mmcv's ``GeneralizedAttention``, without the N×N table of attention weights. The ``state_dict`` has the
    same keys and shapes. With the same strides (mmcv's ``kv_stride`` defaults to 2), the outputs equal mmcv's, except
    for two errors of mmcv. It uses the transposed query for 0100, 0110, 1100 and 1110. Its ``spatial_range`` reaches
    one key further to the right and down than to the left and up (and adds a mask to the ``state_dict``).
    Source: "An Empirical Study of Spatial Attention Mechanisms in Deep Networks", 2019.

    Args:
        in_channels (int): channels C of the map.
        num_heads (int): M, a divisor of C. Defaults to 8.
        terms (str): β1 β2 β3 β4, each '0' or '1'. '0000' is the mean of all keys. With '0000' and '0010', all queries
            share the same weights, so attention takes O(N·C). Defaults to '1111'.
        spatial_range (int, optional): odd n_k: a query attends only to keys with |dx|, |dy| ≤ (n_k − 1)/2, with n_k²
            logits per query and head. A range that covers the map costs as much as None (the whole map), the default.
        position_dim (int, optional): even number of sines and cosines that encode an offset along an axis. Defaults to
            C/2, rounded up to an even number.
        wavelength (float): positive. The wavelengths of the encoding are at most 2π · ``wavelength``. The paper cites
            10000. Defaults to 1000, as in mmcv.
        norm_cfg (dict, optional): norm after each of the 1×1 convolutions but the query's, as in the segmentation
            networks of the paper. Defaults to None, as in mmcv.
        q_stride (int): only every ``q_stride``-th row and column has a query. The output is interpolated bilinearly, as
            in mmcv. Not with ``spatial_range``. Defaults to 1.
        kv_stride (int): only every ``kv_stride``-th row and column has a key, as in mmcv. Not with ``spatial_range``.
            Defaults to 1.
        query_bias (bool): with ``norm_cfg``, also a norm of the query. Its mean and shift are a bias, which the
            equation does not have: it adds a key term to E1 and a geometry term to E2, so that '1000' is the model of
            '1010', and '0100' of '0101'. Set it only to load such weights. Layers of 0.3.0 have this norm. Defaults to
            False.

    Example:
        >>> layer = TransformerAttention2d(16, num_heads=4, terms='0010')
        >>> x = torch.randn(1, 16, 8, 8)
        >>> torch.equal(layer(x), x)  # γ is 0
        True
    """

    query_bias_key = 'norms.query_conv.'
    _abbr_ = 'gen_attention_block'  # name of the plugin in mmcv, so that checkpoints of whole backbones load

    def __init__(
        self,
        in_channels: int,
        num_heads: int = 8,
        terms: str = '1111',
        spatial_range: int | None = None,
        position_dim: int | None = None,
        wavelength: float = 1000,
        norm_cfg: dict | None = None,
        q_stride: int = 1,
        kv_stride: int = 1,
        query_bias: bool = False,
    ) -> None:
        super().__init__()
        check_terms(terms)
        check_divisor('num_heads', num_heads, 'in_channels', in_channels)
        if position_dim is None:
            position_dim = 2 * math.ceil(in_channels / 4)
        check_count('position_dim', position_dim)
        if position_dim % 2:
            raise ValueError(f'position_dim must be even, for sines and cosines; got {position_dim}')
        check_number('wavelength', wavelength)
        if wavelength <= 0:
            raise ValueError(f'wavelength must be positive; got {wavelength}')
        if spatial_range is not None:
            (spatial_range,) = as_window_size(spatial_range, axes=1, name='spatial_range')
        check_counts(q_stride=q_stride, kv_stride=kv_stride)
        if spatial_range is not None and (q_stride, kv_stride) != (1, 1):
            raise ValueError(
                f'spatial_range requires q_stride=1 and kv_stride=1, since every position of a range is a key; got '
                f'{q_stride} and {kv_stride}. For fewer keys, use spatial_range=None or a smaller range'
            )
        if query_bias and norm_cfg is None:
            raise ValueError('query_bias requires norm_cfg: the bias is of the norm of the query')
        self.q_stride, self.kv_stride = q_stride, kv_stride
        self.in_channels = in_channels
        self.num_heads = num_heads
        self.terms = terms
        self.spatial_range = spatial_range
        self.wavelength = wavelength
        self.query_bias = query_bias
        self._warn_of_query_bias()
        self.norms = nn.ModuleDict()
        e1, e2, e3, e4 = (term == '1' for term in terms)
        if e1 or e2:
            self.query_conv = nn.Conv2d(in_channels, in_channels, 1, bias=False)  # U
        if e1 or e3:
            self.key_conv = nn.Conv2d(in_channels, in_channels, 1, bias=False)  # V^C
        self.value_conv = nn.Conv2d(in_channels, in_channels, 1, bias=False)  # W'
        if e2 or e4:
            # The encoding gets dtype and device from these weights; quantize_dynamic does not replace this class.
            self.appr_geom_fc_x = NonDynamicallyQuantizableLinear(position_dim, in_channels, bias=False)  # V^R, columns
            self.appr_geom_fc_y = NonDynamicallyQuantizableLinear(position_dim, in_channels, bias=False)  # V^R, rows
        if e3:
            self.appr_bias = nn.Parameter(torch.empty(in_channels))  # u
        if e4:
            self.geom_bias = nn.Parameter(torch.empty(in_channels))  # v
        self.proj_conv = nn.Conv2d(in_channels, in_channels, 1)  # W
        self.gamma = nn.Parameter(torch.empty(1))
        if norm_cfg is not None:
            for name in ('query_conv',) * query_bias + ('key_conv', 'value_conv', 'proj_conv'):
                if hasattr(self, name):
                    self.norms[name] = build_norm_layer(norm_cfg, in_channels)[1]
        self.init_weights()

    def init_weights(self) -> None:
        """Reset every parameter, as in mmcv's block."""
        for module in self.children():
            if module is not self.norms:
                kaiming_init(module, a=1, mode='fan_in', nonlinearity='leaky_relu', distribution='uniform')
        for norm in self.norms.values():
            norm.reset_parameters()  # type: ignore[operator]
        bound = (2 * self.in_channels / self.num_heads) ** -0.5
        for name, parameter in self.named_parameters(recurse=False):
            nn.init.zeros_(parameter) if name == 'gamma' else nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Attend over the map, from float ``(B, C, H, W)`` to ``(B, C, H, W)``."""
        check_map(self, x, self.in_channels)
        operands = self.operands(x)
        if self._is_local(x):
            y = local_attention(**operands)
        elif self.terms in ('0000', '0010'):  # all queries share the weights, hence y
            weights = operands['key_bias'].flatten(2).softmax(-1)
            y = torch.einsum('bmn,bmnd->bmd', weights, operands['value'].flatten(2, 3))[:, :, None, None]
        else:
            y = global_attention(**operands)
        y = self.proj_conv(copy_for_inductor(y.movedim(-1, 2).flatten(1, 2)))
        if 'proj_conv' in self.norms:  # it counts positions, and all may have one output
            y = self.norms['proj_conv'](y.expand_as(_every(self.q_stride, x)))
        if self.q_stride > 1:
            y = F.interpolate(y, x.shape[2:], mode='bilinear', align_corners=False)
        return x + (self.gamma * y).to(x.dtype)

    def operands(self, x: Tensor, used: str = '1111') -> dict:
        """Compute the arguments of ``global_attention``, or of ``local_attention`` if the layer has a range.

        ``used`` has the switches β1 β2 β3 β4 of the terms to use, if ``terms`` has them.
        """
        e1, e2, e3, e4 = self.switches(used)
        local = self._is_local(x)
        at_queries, at_keys = _every(self.q_stride, x), _every(self.kv_stride, x)
        value = self._heads(self._project('value_conv', at_keys))
        query = self._heads(self._project('query_conv', at_queries)) if e1 or e2 else None
        operands: dict = dict(query=None, key=None, value=value, scale=1.0)
        if not local:  # without E1, query and key have no channels: the operator computes no product of them
            operands['query'] = value.new_empty((*value.shape[:2], *at_queries.shape[2:], 0))
            operands['key'] = value.new_empty((*value.shape[:-1], 0))
        if e1 or e3:
            key = self._heads(self._project('key_conv', at_keys))
            towards = self._towards(query if e1 else None, self.appr_bias if e3 else None).to(key.dtype)
            if e1:
                operands.update(query=towards, key=key)
            else:
                logits = torch.einsum('bmhwd,bmhwd->bmhw', towards, key)
                if local:  # as the product of 1 and a key of one channel
                    operands.update(query=torch.ones_like(logits).unsqueeze(-1), key=logits.unsqueeze(-1))
                else:
                    operands.update(key_bias=logits)
        if e2 or e4:
            towards = self._towards(query if e2 else None, self.geom_bias if e4 else None)
            rows = torch.einsum('bmhwd,mhkd->bmhwk', towards, self._vectors(self.appr_geom_fc_y, x.shape[2], local))
            columns = torch.einsum('bmhwd,mwkd->bmhwk', towards, self._vectors(self.appr_geom_fc_x, x.shape[3], local))
            if local:
                window = (rows.unsqueeze(-1) + columns.unsqueeze(-2)).flatten(-2)
                operands.update(window_bias=window.expand(*value.shape[:-1], -1))
            else:
                operands.update(axis_bias=(rows, columns))
        if self.terms == '0000':
            window = value.new_zeros(()).expand(*value.shape[:-1], (self.spatial_range or 0) ** 2)
            operands.update(dict(window_bias=window) if local else dict(key_bias=value.new_zeros(value.shape[:-1])))
        if local:
            operands.update(kernel_size=self.spatial_range)
        return operands

    def attention_weights(
        self, *inputs: Tensor | None, queries: Tensor, kind: str = 'bilateral', **more: Tensor | None
    ) -> Tensor:
        """Compute attention rows as in other layers. With ``q_stride``, ``queries`` are coordinates in the whole map.

        A coordinate without a query takes the query above and to the left of it.
        """
        return super().attention_weights(*inputs, queries=queries // self.q_stride, kind=kind, **more)

    @staticmethod
    def operator(**operands: Any) -> Tensor:
        """Call the operator to which the arguments belong."""
        return (local_attention if 'kernel_size' in operands else global_attention)(**operands)

    def _project(self, name: str, x: Tensor) -> Tensor:
        y = getattr(self, name)(x)
        return self.norms[name](y) if name in self.norms else y

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (self.num_heads, -1)).movedim(2, -1)

    def _towards(self, query: Tensor | None, bias: Tensor | None) -> Tensor:
        """Compute the factor of keys or positions, U z + u ``(B, heads, H, W, D)``, or u ``(1, heads, 1, 1, D)``."""
        if bias is None:
            assert query is not None
            return query
        bias = bias.view(1, self.num_heads, 1, 1, -1)
        return bias if query is None else query + bias

    def _is_local(self, x: Tensor) -> bool:
        """Check whether the range excludes a key of the map, always while exporting, where the size is symbolic."""
        if self.spatial_range is None:
            return False
        exporting = hasattr(torch.compiler, 'is_exporting') and torch.compiler.is_exporting()  # torch 2.7 and later
        return exporting or self.spatial_range // 2 < max(x.shape[2:]) - 1

    def _vectors(self, projection: nn.Linear, length: int, local: bool) -> Tensor:
        """Compute V^R R_{q−k}/√2 on an axis: ``(heads, queries, keys, D)``, or ``(heads, 1, n_k, D)`` if local."""
        weight = projection.weight
        radius = self.spatial_range // 2 if local and self.spatial_range else length - 1
        half = projection.in_features // 2
        encoding = kept(_encoding, weight, radius, half, self.wavelength, weight.dtype)
        vectors = projection(encoding).unflatten(1, (self.num_heads, -1)).movedim(1, 0) / math.sqrt(2)
        if local:
            return vectors.unsqueeze(1)
        return vectors[:, kept(_places, weight, length, self.q_stride, self.kv_stride)]


def _every(stride: int, x: Tensor) -> Tensor:
    """Take every ``stride``-th row and column of ``(B, C, H, W)``."""
    return x if stride == 1 else x[..., ::stride, ::stride]


def _encoding(radius: int, half: int, wavelength: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Compute the sines and cosines ``(2 · radius + 1, 2 · half)`` of q − k, from the first key."""
    exact = torch.promote_types(dtype, torch.float32)
    offsets = torch.arange(radius, -radius - 1, -1, device=device, dtype=exact)
    angles = offsets[:, None] / wavelength ** (torch.arange(half, device=device, dtype=exact) / half)
    return torch.cat([angles.sin(), angles.cos()], 1).to(dtype)


def _places(length: int, q_stride: int, kv_stride: int, device: torch.device) -> Tensor:
    """Index the encodings of all pairs on an axis: ``(queries, keys)``."""
    position = torch.arange(length, device=device)
    return position[::kv_stride] - position[::q_stride, None] + (length - 1)
