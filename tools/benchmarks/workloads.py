"""Workloads P1 to P8 of the operator benchmark: each operator with its alternatives.

A builder returns a workload at full size, or a small one, on which the alternatives must agree with ours.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import alternatives
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmattn.ops import (
    dynamic_conv,
    global_attention,
    grid_attention,
    local_attention,
    strided_attention,
    window_zscore,
)
from mmattn.ops.patterns import strided_offsets
from mmattn.utils import profiling
from mmattn.utils.profiling import BOTH, FORWARD

OURS = 'mmattn'


@dataclass
class Call:
    """A function of tensors, and these tensors; gradients are computed for all that require them."""

    function: Callable[..., Tensor]
    inputs: list[Tensor]
    passes: tuple[str, ...] = (FORWARD, BOTH)

    def functions(self) -> dict[str, Callable[[], Any]]:
        """Return what is measured for each pass."""
        functions = profiling.passes(partial(self.function, *self.inputs), self.inputs)
        return {name: functions[name] for name in self.passes}


@dataclass
class Workload:
    """One line of the benchmark: ours, its peers (the alternatives), and targets.

    ``targets`` are upper limits of the ratios of time and of extra memory, by peer and pass. ``equivalent`` gives, for
    a peer that computes less than ours, the call that must agree with it instead, or None if the peer computes
    something else. The ``slow`` peers are measured only with ``--full``.
    """

    title: str
    ours: Call
    peers: dict[str, Call]
    targets: dict[tuple[str, str], tuple[float | None, float | None]] = field(default_factory=dict)
    equivalent: dict[str, Call | None] = field(default_factory=dict)
    slow: tuple[str, ...] = ()


Builder = Callable[[bool, torch.dtype, str], Workload]
WORKLOADS: dict[str, Builder] = {}


def workload(name: str, **settings: object) -> Callable[[Callable[..., Workload]], Callable[..., Workload]]:
    """Register a builder under a name, with some of its arguments set."""

    def register(builder: Callable[..., Workload]) -> Callable[..., Workload]:
        WORKLOADS[name] = partial(builder, **settings)
        return builder

    return register


def calls(
    ours: Callable[..., Tensor], peers: dict[str, Callable[..., Tensor]], inputs: list[Tensor]
) -> tuple[Call, dict[str, Call]]:
    """Return ours and the peers as calls with the same tensors."""
    return Call(ours, inputs), {name: Call(function, inputs) for name, function in peers.items()}


def both_passes(peer: str, *ratios: float | None) -> dict[tuple[str, str], tuple[float | None, float | None]]:
    """Return targets of time and memory that apply to the forward pass and to forward and backward pass."""
    time, memory = ratios
    return {(peer, of): (time, memory) for of in (FORWARD, BOTH)}


# P1: the core of Bi-NL


LARGEST_TABLE = 97  # side of a map


def bi_nl_calls(side: int, channels: int, k: int, dtype: torch.dtype, device: str) -> tuple[Call, dict[str, Call]]:
    """Return Bi-NL's core and its peers on a side × side map; those with a table of all pairs only up to a size."""
    entry = alternatives.window_entry(side, k, device) if side <= LARGEST_TABLE else None

    def literal(q: Tensor, key: Tensor, v: Tensor, window_bias: Tensor, outside_bias: Tensor) -> Tensor:
        logits = q.flatten(2, 3) @ key.flatten(2, 3).transpose(-1, -2) / q.shape[-1] ** 0.5
        logits = logits + alternatives.position_table(window_bias, outside_bias, entry)
        return (logits.softmax(-1) @ v.flatten(2, 3)).view_as(v)

    def ours(q: Tensor, key: Tensor, v: Tensor, window_bias: Tensor, outside_bias: Tensor) -> Tensor:
        return global_attention(q, key, v, window_bias=window_bias, window_size=k, outside_bias=outside_bias)

    inputs = [
        torch.randn(1, 1, side, side, *rest, dtype=dtype, device=device, requires_grad=True)
        for rest in ((channels,), (channels,), (channels,), (k**2,), ())
    ]
    with_table = partial(alternatives.sdpa_with_table, entry=entry)
    tables = {} if entry is None else {'literal': literal, 'SDPA with a table': with_table}
    our_call, peers = calls(ours, tables, inputs)
    peers['SDPA, content only'] = Call(alternatives.sdpa, inputs[:3])
    flex = partial(alternatives.flex_attention, size=k)
    forward_only = Call(flex, [x.detach() for x in inputs], (FORWARD,))  # FlexAttention has no backward pass on a CPU
    peers['FlexAttention'] = forward_only if device == 'cpu' else Call(flex, inputs)
    return our_call, peers


@workload('P1')
def bi_nl(full: bool, dtype: torch.dtype, device: str) -> Workload:
    """Bi-NL's core: a 31×31 window of position logits and a learned logit for positions outside."""
    our_call, peers = bi_nl_calls(*((97, 256, 31) if full else (21, 256, 7)), dtype, device)
    return Workload(
        'Bi-NL core, 1×97×97×256, k = 31',
        our_call,
        peers,
        both_passes('SDPA, content only', 0.9, None),
        {'SDPA, content only': Call(global_attention, our_call.inputs[:3])},
        slow=('literal', 'FlexAttention'),
    )


@workload('P1z')
def bi_nl_zscore(full: bool, dtype: torch.dtype, device: str) -> Workload:
    """Bi-NL's core after the z-score of its window logits."""
    side, channels, k = (97, 256, 31) if full else (21, 256, 7)
    our_call, peers = bi_nl_calls(side, channels, k, dtype, device)

    def zscored(q: Tensor, key: Tensor, v: Tensor, window: Tensor, outside: Tensor) -> Tensor:
        window, outside = window_zscore(window, k, outside)
        return global_attention(q, key, v, window_bias=window, window_size=k, outside_bias=outside)

    def table(q: Tensor, key: Tensor, v: Tensor, window: Tensor, outside: Tensor) -> Tensor:
        bias = alternatives.position_table(window, outside, alternatives.window_entry(side, k, device))
        mean, var = bias.mean(-1, keepdim=True), bias.var(-1, correction=0, keepdim=True)
        bias = (bias - mean) / (var + 1e-5).sqrt()
        return F.scaled_dot_product_attention(*(x.flatten(2, 3) for x in (q, key, v)), bias.to(q.dtype)).view_as(v)

    return Workload(
        'Bi-NL core with the z-score, 1×97×97×256, k = 31',
        Call(zscored, our_call.inputs),
        {'SDPA with a table': Call(table, our_call.inputs), 'SDPA, content only': peers['SDPA, content only']},
        equivalent={'SDPA, content only': None},
        slow=('SDPA with a table',),
    )


# P2: the core of Bi-CC


@workload('P2')
def bi_cc(full: bool, dtype: torch.dtype, device: str) -> Workload:
    """Bi-CC's core with position logits, which mmcv's block does not have."""
    side, channels, k = (97, 512, 31) if full else (11, 16, 5)

    def ours(q: Tensor, key: Tensor, v: Tensor, window_bias: Tensor, outside_bias: Tensor) -> Tensor:
        return grid_attention(q, key, v, scale=1.0, window_bias=window_bias, window_size=k, outside_bias=outside_bias)

    inputs = [
        torch.randn(2, side, side, c, dtype=dtype, device=device)
        .div_(c**0.25)
        .movedim(-1, 1)
        .contiguous()
        .movedim(1, -1)
        .unsqueeze(1)
        .requires_grad_()
        for c in (channels // 8, channels // 8, channels)
    ]
    positions = [
        torch.randn(2, 1, side, side, *rest, dtype=dtype, device=device, requires_grad=True)
        for rest in ((2 * k - 1,), ())
    ]
    peer = 'mmcv CrissCrossAttention, content only'
    return Workload(
        'Bi-CC core, 2×97×97, 64 and 512 channels, k = 31',
        Call(ours, inputs + positions),
        {peer: Call(alternatives.criss_cross, inputs)},
        both_passes(peer, 0.5, 0.25),
        {peer: Call(partial(grid_attention, scale=1.0), inputs)},
    )


# P3: the core of BA


def channels_first(batch: int, heads: int, side: int, channels: int, dtype: torch.dtype, device: str) -> Tensor:
    """Return a map ``(B, heads, H, W, C)`` in the memory layout of a convolution's output."""
    return torch.randn(batch, heads, channels, side, side, dtype=dtype, device=device).movedim(2, -1).requires_grad_()


@workload('P3', iterations=1)
@workload('P3, T = 3', iterations=3)
def ba_core(full: bool, dtype: torch.dtype, device: str, iterations: int) -> Workload:
    """The core of local bilateral attention over 3×3 neighbours."""
    side, channels = (96, 256) if full else (17, 64)

    def ours(q: Tensor, k: Tensor, v: Tensor, window_bias: Tensor) -> Tensor:
        return local_attention(q, k, v, window_bias=window_bias, kernel_size=3, scale=1.0, iterations=iterations)

    inputs = [channels_first(1, 8, side, c, dtype, device) for c in (*[channels // 8] * 3, 9)]
    our_call, peers = calls(ours, {'unfold': partial(alternatives.unfold_attention, iterations=iterations)}, inputs)
    return Workload(
        f'BA core, 256 channels, 8 heads, 96×96, T = {iterations}', our_call, peers, both_passes('unfold', 0.05, 0.1)
    )


@workload('dynamic_conv, 3×3', groups=8, side=96, k=3)
@workload('dynamic_conv, 13×13', groups=16, side=48, k=13)
def dynamic(full: bool, dtype: torch.dtype, device: str, groups: int, side: int, k: int) -> Workload:
    """Dynamic convolution with 256 channels."""
    inputs = [channels_first(1, groups, side if full else 17, c, dtype, device) for c in (256 // groups, k**2)]
    unfold = partial(alternatives.unfold_dynamic_conv, k=k)
    our_call, peers = calls(partial(dynamic_conv, kernel_size=k), {'unfold': unfold}, inputs)
    return Workload(f'dynamic convolution, 256 channels, {groups} groups, {side}×{side}, {k}×{k}', our_call, peers)


# P4: the whole BA block


@workload('P4 e', row={}, evaluation=0.75, training=1.0)
@workload('P4 i', row=dict(share=True, iterations=3), evaluation=0.6, training=0.8)
def ba_block(full: bool, dtype: torch.dtype, device: str, row: dict, evaluation: float, training: float) -> Workload:
    """The block compared with the convolution that it replaces, with norm and ReLU, folded for evaluation."""
    from mmcv.cnn import ConvModule, fuse_conv_bn  # late: without compiled operators, mmcv warns

    from mmattn.layers import LocalBilateralAttention

    side, channels = (96, 256) if full else (9, 32)
    x = torch.randn(1, channels, side, side, dtype=dtype, device=device)

    def block(build: Callable[[], nn.Module], memory_format: torch.memory_format) -> Call:
        trained = build().to(device, dtype).to(memory_format=memory_format)
        folded = fuse_conv_bn(copy.deepcopy(trained).eval())
        parameters = list(trained.parameters())
        return Call(
            lambda x, *_: (trained if torch.is_grad_enabled() else folded)(x),
            [x.to(memory_format=memory_format).requires_grad_(), *parameters],
        )

    peers = {
        f'3×3 convolution, channels {name}': block(
            lambda: ConvModule(channels, channels, 3, padding=1, norm_cfg=dict(type='BN')), memory_format
        )
        for name, memory_format in (('first', torch.contiguous_format), ('last', torch.channels_last))
    }
    targets = {
        (peer, of): target for peer in peers for of, target in ((FORWARD, (evaluation, 1.5)), (BOTH, (training, 2.0)))
    }
    return Workload(
        f'BA block, 256 channels, 96×96, {"row i" if row else "row e"}, channels last',
        block(lambda: LocalBilateralAttention(channels, **row), torch.channels_last),
        peers,
        targets,
        dict.fromkeys(peers),
    )


# P5 and P6: video


def video_operands(full: bool, heads: int, dtype: torch.dtype, device: str) -> list[Tensor]:
    """Return q, k and v of 16 × 64 × 64 voxels and 32 channels."""
    size = (16, 64, 64) if full else (8, 16, 8)
    return [torch.randn(1, heads, *size, 32 // heads, dtype=dtype, device=device, requires_grad=True) for _ in range(3)]


def with_positions(inputs: list[Tensor], widths: list[int]) -> list[Tensor]:
    """Return the operands and, for each of some widths, logits for each query."""
    size = inputs[0].shape[:-1]
    return inputs + [inputs[0].new_empty(*size, width).normal_().requires_grad_() for width in widths]


@workload('P5', heads=1, positions=False)
@workload('P5, positions', heads=1, positions=True)
@workload('P5, 8 heads', heads=8, positions=False)
def grid(full: bool, dtype: torch.dtype, device: str, heads: int, positions: bool) -> Workload:
    """Grid attention in 3-D, optionally with windows of 9×9×11 and outside logits, which the peer does not have."""
    inputs = video_operands(full, heads, dtype, device)

    def ours(q: Tensor, k: Tensor, v: Tensor, window_bias: Tensor, outside_bias: Tensor) -> Tensor:
        return grid_attention(
            q, k, v, window_bias=window_bias, window_size=(9, 9, 11), outside_bias=outside_bias.squeeze(-1)
        )

    our_call, peers = calls(grid_attention, {'einsum': alternatives.axes_einsum}, inputs)
    return Workload(
        f'grid attention, 32 channels, heads: {heads}, 16×64×64',
        Call(ours, with_positions(inputs, [27, 1])) if positions else our_call,
        peers,
        both_passes('einsum', 0.3, 0.2),
        {'einsum': our_call},
    )


@workload('P6', heads=1, positions=False)
@workload('P6, positions', heads=1, positions=True)
@workload('P6, 8 heads', heads=8, positions=False)
def strided(full: bool, dtype: torch.dtype, device: str, heads: int, positions: bool) -> Workload:
    """The first sub-layer of strided attention, cubes, optionally with offset logits, which the peer does not have."""
    step = (4, 8, 8)
    inputs = video_operands(full, heads, dtype, device)

    def ours(q: Tensor, k: Tensor, v: Tensor, *offset_bias: Tensor) -> Tensor:
        return strided_attention(q, k, v, pattern='block', step=step, offset_bias=offset_bias)

    our_call, peers = calls(ours, {'reshape + SDPA': partial(alternatives.cubes_sdpa, step=step)}, inputs)
    widths = [len(offsets) for offsets in strided_offsets(inputs[0].shape[2:5], step, 'block')]
    return Workload(
        f'strided attention, cubes of 4×8×8, 32 channels, heads: {heads}, 16×64×64',
        Call(ours, with_positions(inputs, widths)) if positions else our_call,
        peers,
        both_passes('reshape + SDPA', 0.6, 0.2),
        {'reshape + SDPA': our_call},
    )


# P7: generalized attention


@workload('P7 1111', terms='1111')
@workload('P7 0010', terms='0010')
def generalized(full: bool, dtype: torch.dtype, device: str, terms: str) -> Workload:
    """The whole block of mmcv, including its projections, and ours with the same weights."""
    from mmcv.cnn.bricks import GeneralizedAttention  # late: without compiled operators, mmcv warns

    from mmattn.layers import TransformerAttention2d

    channels, side = (512, 96) if full else (64, 11)
    stock = GeneralizedAttention(channels, num_heads=8, kv_stride=1, attention_type=terms).to(device, dtype)
    nn.init.ones_(stock.gamma)  # the initial 0 would make the block the identity
    ours = TransformerAttention2d(channels, 8, terms).to(device, dtype)
    names, weights = zip(*stock.named_parameters())
    x = torch.randn(1, channels, side, side, dtype=dtype, device=device, requires_grad=True)

    def function(block: nn.Module) -> Callable[..., Tensor]:
        return lambda x, *weights: torch.func.functional_call(block, dict(zip(names, weights)), x, strict=True)

    peer = 'mmcv GeneralizedAttention'
    our_call, peers = calls(function(ours), {peer: function(stock)}, [x, *weights])
    return Workload(
        f"generalized attention '{terms}', 512 channels, 8 heads, 96×96",
        our_call,
        peers,
        both_passes(peer, 0.5, 0.05) if terms == '1111' else {},
    )


# P8: the overhead of a call, without its kernel


@workload('P8 global', operator='global_attention')
@workload('P8 local', operator='local_attention')
def overhead(full: bool, dtype: torch.dtype, device: str, operator: str) -> Workload:
    """A map so small that the kernels take almost no time."""
    function = {'global_attention': global_attention, 'local_attention': local_attention}[operator]
    maps = [torch.randn(1, 1, 4, 4, 8, dtype=dtype, device=device, requires_grad=True) for _ in range(3)]
    sequences = [x.detach().flatten(2, 3).requires_grad_() for x in maps]

    def many(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def calls(*operands: Tensor) -> Tensor:
            for _ in range(200 if full else 1):
                output = function(*operands)
                if output.requires_grad:  # the benchmark computes the gradients of the last call
                    torch.autograd.grad(output.sum(), operands)
            return function(*operands)

        return calls

    peer = 'SDPA'
    return Workload(
        f'{operator}, one head of 8 channels, 4×4, 201 calls',
        Call(many(function), maps),
        {peer: Call(many(F.scaled_dot_product_attention), sequences)},
        {(peer, FORWARD): (3.0, None), (peer, BOTH): (2.5, None)},
        {peer: None},
    )
