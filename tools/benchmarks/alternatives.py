"""Alternatives to the operators: PyTorch's attention, einsum, unfolded maps, mmcv's block.

Query, key and value are ``(B, heads, *positions, C)``. Other tensors have the layout of the operator that is replaced.
Arguments that depend only on sizes are keywords.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mmcv
import torch
from torch import Tensor, nn
from torch.nn import functional as F


def sdpa(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Global attention without positions, by ``F.scaled_dot_product_attention``."""
    q, k, v = (x.flatten(2, -2) for x in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v).view_as(value)


def window_entry(side: int, k: int, device: str) -> Tensor:
    """Index each key in each query's window, or k² outside the window: ``(1, 1, N, N)``."""
    y, x = (c.flatten() for c in torch.meshgrid(*[torch.arange(side, device=device)] * 2, indexing='ij'))
    dy, dx = y - y[:, None] + k // 2, x - x[:, None] + k // 2
    inside = (dy >= 0) & (dy < k) & (dx >= 0) & (dx < k)
    return (dy * k + dx).where(inside, k * k)[None, None]


def position_table(window_bias: Tensor, outside_bias: Tensor, entry: Tensor, normalize: bool = False) -> Tensor:
    """Expand the position logits of all pairs, ``(1, 1, N, N)``. ``entry`` comes from :func:`window_entry`."""
    table = torch.cat([window_bias, outside_bias.unsqueeze(-1)], -1).flatten(2, 3).gather(-1, entry)
    if not normalize:
        return table
    mean, var = table.mean(-1, keepdim=True), table.var(-1, correction=0, keepdim=True)
    return (table - mean) / (var + 1e-5).sqrt()


def literal(query: Tensor, key: Tensor, value: Tensor, window_bias: Tensor, outside_bias: Tensor, **of: Any) -> Tensor:
    """Global attention with the logits of all pairs."""
    logits = query.flatten(2, 3) @ key.flatten(2, 3).transpose(-1, -2) / query.shape[-1] ** 0.5
    logits = logits + position_table(window_bias, outside_bias, **of)
    return (logits.softmax(-1) @ value.flatten(2, 3)).view_as(value)


def sdpa_with_table(
    query: Tensor, key: Tensor, value: Tensor, window_bias: Tensor, outside_bias: Tensor, **of: Any
) -> Tensor:
    """Global attention with a table of the position logits of all pairs, by ``F.scaled_dot_product_attention``."""
    table = position_table(window_bias, outside_bias, **of).to(query.dtype)
    queries, keys, values = (x.flatten(2, 3) for x in (query, key, value))
    return F.scaled_dot_product_attention(queries, keys, values, table).view_as(value)


def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, window_bias: Tensor, outside_bias: Tensor, *, size: int
) -> Tensor:
    """Global attention on a map with windows of size×size, by FlexAttention, compiled."""
    width = query.shape[3]
    window, outside = window_bias[0, 0].flatten(0, 1), outside_bias[0, 0].flatten()

    def add_position(score: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        dy, dx = j // width - i // width + size // 2, j % width - i % width + size // 2
        inside = (dy >= 0) & (dy < size) & (dx >= 0) & (dx < size)
        entry = dy % size * size + dx % size  # outside: any, not the same one, as each pair adds 0 to its gradient
        return score + torch.where(inside, window[i, entry], outside[i])

    maps = (x.flatten(2, 3) for x in (query, key, value))
    return _compiled_flex_attention()(*maps, score_mod=add_position).view_as(value)


@cache
def _compiled_flex_attention() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention  # torch 2.5

    return torch.compile(flex_attention, dynamic=False)


@cache
def criss_cross_attention() -> type[nn.Module]:
    """Import mmcv's class. It is pure PyTorch, but ``mmcv.ops`` cannot be imported without compiled operators."""
    try:
        from mmcv.ops import CrissCrossAttention
    except ImportError:
        spec = spec_from_file_location('cc_attention', Path(mmcv.__file__).parent / 'ops/cc_attention.py')
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.CrissCrossAttention
    return CrissCrossAttention


def criss_cross(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """mmcv's CrissCrossAttention without its projections and its residual."""
    maps = {'query': query, 'key': key, 'value': value}
    without = {f'{name}_conv': lambda _, x=x: x.squeeze(1).movedim(-1, 1) for name, x in maps.items()}
    nothing = value.new_zeros(()).expand(len(value), value.shape[-1], *value.shape[2:4])
    # Its mask is float32; in 16 bits it runs only under autocast.
    with torch.autocast(value.device.type, value.dtype, enabled=value.dtype in (torch.float16, torch.bfloat16)):
        out = criss_cross_attention().forward(SimpleNamespace(**without, gamma=lambda out: out), nothing)
    return out.movedim(1, -1).unsqueeze(1)


def axes_einsum(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Grid attention by one product per axis. The position itself is counted once."""
    logits = []
    for axis, (keys, pairs) in enumerate((('nyx', 'tyxn'), ('tnx', 'tyxn'), ('tyn', 'tyxn'))):
        arm = torch.einsum(f'bhtyxc,bh{keys}c->bh{pairs}', query, key) * query.shape[-1] ** -0.5
        if axis < 2:  # only the last axis includes the position itself
            length = query.shape[2 + axis]
            same = torch.eye(length, dtype=torch.bool, device=query.device)
            arm = arm.masked_fill(same.view(*(length if a == axis else 1 for a in range(3)), length), -torch.inf)
        logits.append(arm)
    weights = torch.cat(logits, -1).softmax(-1).split(query.shape[2:5], -1)
    arms = [torch.einsum(f'bhtyxn,bh{keys}c->bhtyxc', w, value) for w, keys in zip(weights, ('nyx', 'tnx', 'tyn'))]
    return arms[0] + arms[1] + arms[2]


def _unfolded(x: Tensor, k: int) -> Tensor:
    """Copy the k² neighbours ``(B, heads, C, k², H, W)`` of ``(B, heads, H, W, C)``."""
    batch, heads, height, width, channels = x.shape
    maps = F.unfold(x.movedim(-1, 2).flatten(1, 2), k, padding=k // 2)
    return maps.view(batch, heads, channels, k * k, height, width)


def unfold_attention(query: Tensor, key: Tensor, value: Tensor, window_bias: Tensor, *, iterations: int) -> Tensor:
    """Local bilateral attention over unfolded 3×3 neighbours."""
    inside = _unfolded(torch.ones_like(query[..., :1]), 3)[:, :, 0] > 0
    keys, towards = _unfolded(key, 3), query.movedim(-1, 2)
    logits = torch.zeros_like(inside, dtype=query.dtype).masked_fill(~inside, -torch.inf)
    for i in range(iterations):
        logits = logits + (keys * towards.unsqueeze(3)).sum(2)
        if i < iterations - 1:
            total = (logits.softmax(2).unsqueeze(2) * keys).sum(3)
            norm = total.norm(dim=2, keepdim=True)
            towards = total * norm / (1 + norm**2)
    weights = (logits + window_bias.movedim(-1, 2)).softmax(2)
    return (weights.unsqueeze(2) * _unfolded(value, 3)).sum(3).movedim(2, -1)


def unfold_dynamic_conv(value: Tensor, logits: Tensor, *, k: int) -> Tensor:
    """Dynamic convolution over k² copies of the map."""
    weights = logits.movedim(-1, 2).softmax(2).unsqueeze(2)
    return (_unfolded(value, k) * weights).sum(3).movedim(2, -1)


def cubes_sdpa(query: Tensor, key: Tensor, value: Tensor, *, step: tuple[int, ...]) -> Tensor:
    """Attention within cubes, by ``F.scaled_dot_product_attention``. Cubes are moved to the dimension of the heads."""
    counts = [side // length for side, length in zip(query.shape[2:5], step)]

    def cubes(x: Tensor) -> Tensor:
        for axis, length in enumerate(step):
            x = x.unflatten(2 + 2 * axis, (-1, length))  # finally (B, heads, T, t, Y, y, X, x, C)
        return x.permute(0, 1, 2, 4, 6, 3, 5, 7, 8).flatten(5, 7).flatten(1, 4)

    out = F.scaled_dot_product_attention(cubes(query), cubes(key), cubes(value))
    out = out.unflatten(1, (query.shape[1], *counts)).unflatten(5, step)
    return out.permute(0, 1, 2, 5, 3, 6, 4, 7, 8).reshape(query.shape)
