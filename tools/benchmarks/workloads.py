"""What the benchmarks measure: operators (P1 to P8), layers and networks, each beside what a user would take instead.

Operators are called as the tests call them (``tests/support/operator_calls.py``), so a checkout is required. A builder
returns a workload at full size, or a small one, on which ours must agree with its reference, and its peers with ours.
"""

import copy
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import alternatives
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmattn import layers
from mmattn.ops import triton
from mmattn.ops.autograd import list_tensors
from mmattn.utils import profiling
from mmattn.utils.profiling import BOTH, FORWARD

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support.operator_calls import QKV, WINDOW, Call, Tensors, cast, each, make, operator

TRAINING, TEST = 'training step', 'test'  # of a network


@dataclass
class Contender:
    """What is measured for each pass, and what must agree: values, and gradients if there is a backward pass."""

    functions: dict[str, Callable[[], Any]]
    results: Callable[[], dict[str, Tensor]]


def contender(
    function: Callable[..., Tensor], tensors: Tensors, passes: tuple[str, ...] = (FORWARD, BOTH)
) -> Contender:
    """Call a function with tensors by name. Gradients are computed for all that require them."""
    call = partial(function, **tensors)
    wanted = [x for x in list_tensors(tuple(tensors.values())) if x.requires_grad]
    functions = profiling.passes(call, wanted)

    def results() -> dict[str, Tensor]:
        with torch.set_grad_enabled(BOTH in passes):
            out = call()
        loss = out.float().square().mean()
        grads = torch.autograd.grad(loss, wanted, allow_unused=True) if BOTH in passes else ()
        return {'output': out.detach(), **{str(i): x for i, x in enumerate(grads) if x is not None}}

    return Contender({name: functions[name] for name in passes}, results)


@dataclass
class Workload:
    """One line of a benchmark: ours, its peers, and targets.

    ``targets`` are upper limits of the ratios of time and of extra memory, by peer and pass. ``equivalent`` gives, for
    a peer that computes less than ours, what must agree with it instead, or None if the peer computes something else.
    The ``slow`` peers are measured only with ``--full``.
    """

    title: str
    operator: str
    ours: Contender
    peers: dict[str, Contender]
    targets: dict[tuple[str, str], tuple[float | None, float | None]] = field(default_factory=dict)
    equivalent: dict[str, Contender | None] = field(default_factory=dict)
    slow: tuple[str, ...] = ()


Builder = Callable[[bool, torch.dtype, str], Workload]  # small, dtype, device
OPERATORS: dict[str, Builder] = {}
LAYERS: dict[str, Builder] = {}


def workload(
    table: dict[str, Builder], name: str, /, **settings: object
) -> Callable[[Callable[..., Workload]], Callable[..., Workload]]:
    """Register a builder under a name, with some of its arguments set."""

    def register(builder: Callable[..., Workload]) -> Callable[..., Workload]:
        table[name] = partial(builder, **settings)
        return builder

    return register


def both_passes(peer: str, *ratios: float | None) -> dict[tuple[str, str], tuple[float | None, float | None]]:
    """Return targets of time and memory that apply to the forward pass and to forward and backward pass."""
    time, memory = ratios
    return {(peer, of): (time, memory) for of in (FORWARD, BOTH)}


# Operators


def leaves(call: Call, dtype: torch.dtype, device: str, channels_first: bool = False) -> Tensors:
    """Return the tensors of a call, which need gradients; on request in the layout of a convolution's output."""

    def leaf(x: Tensor) -> Tensor:
        x = x.to(device)
        return (x.movedim(-1, 2).contiguous().movedim(2, -1) if channels_first else x).requires_grad_()

    return each(cast(call.tensors, dtype), leaf)


def some(tensors: Tensors, *names: str) -> Tensors:
    """Return some tensors of a call."""
    return {name: tensors[name] for name in names}


def ours(call: Call, tensors: Tensors) -> Contender:
    """Call our operator."""
    return contender(partial(operator(call.operator), **call.settings), tensors)


LARGEST_TABLE = 97  # side of a map whose pairs of positions have a table


def bi_nl_calls(
    side: int, channels: int, k: int, dtype: torch.dtype, device: str, **settings: Any
) -> tuple[Contender, dict[str, Contender], Tensors]:
    """Return Bi-NL's core and its peers on a side × side map, and their tensors."""
    size, both = (side, side), dict(channels=channels, value_channels=channels)
    call = make('global_attention', size, *WINDOW, window_size=k, **both, **settings)
    tensors = leaves(call, dtype, device)
    peers = {}
    if side <= LARGEST_TABLE:
        entry = alternatives.window_entry(side, k, device)
        for name, function in (('literal', alternatives.literal), ('SDPA with a table', alternatives.sdpa_with_table)):
            peers[name] = contender(partial(function, entry=entry, **settings), tensors)
    peers['SDPA, content only'] = contender(alternatives.sdpa, some(tensors, *QKV))
    flex = partial(alternatives.flex_attention, size=k)
    given = each(tensors, torch.Tensor.detach)  # FlexAttention has no backward pass on a CPU
    if device != 'cpu':  # all pairs would add to the gradient of the bias outside, by atomics
        given = tensors | some(given, 'outside_bias')
    peers['FlexAttention'] = contender(flex, given, (FORWARD,) if device == 'cpu' else (FORWARD, BOTH))
    return ours(call, tensors), peers, tensors


def bi_nl_size(small: bool) -> tuple[int, int, int]:
    """Return side, channels and window. Triton's interpreter is slow."""
    return ((5, 16, 3) if triton.interpreted() else (21, 256, 7)) if small else (97, 256, 31)


@workload(OPERATORS, 'P1')
def bi_nl(small: bool, dtype: torch.dtype, device: str) -> Workload:
    """Bi-NL's core: a 31×31 window of position logits and a learned logit for positions outside."""
    core, peers, tensors = bi_nl_calls(*bi_nl_size(small), dtype, device)
    return Workload(
        'Bi-NL core, 1×97×97×256, k = 31',
        'global_attention',
        core,
        peers,
        both_passes('SDPA, content only', 0.9, None),
        {'SDPA, content only': contender(operator('global_attention'), some(tensors, *QKV))},
        slow=('literal', 'FlexAttention') if device == 'cpu' else ('FlexAttention',),  # compiles for half a minute
    )


@workload(OPERATORS, 'P1z')
def bi_nl_zscore(small: bool, dtype: torch.dtype, device: str) -> Workload:
    """Bi-NL's core after the z-score of its window logits."""
    core, peers, _ = bi_nl_calls(*bi_nl_size(small), dtype, device, normalize=True)
    return Workload(
        'Bi-NL core with the z-score, 1×97×97×256, k = 31',
        'global_attention',
        core,
        {name: peers[name] for name in ('SDPA with a table', 'SDPA, content only')},
        equivalent={'SDPA, content only': None},
        slow=('SDPA with a table',),
    )


@workload(OPERATORS, 'P2')
def bi_cc(small: bool, dtype: torch.dtype, device: str) -> Workload:
    """Bi-CC's core with position logits, which mmcv's block does not have."""
    side, channels, k = (11, 16, 5) if small else (97, 512, 31)
    settings = dict(batch=2, channels=channels // 8, value_channels=channels, scale=1.0, window_size=k)
    call = make('grid_attention', (side, side), *WINDOW, **settings)
    maps = {name: x / x.shape[-1] ** 0.25 for name, x in some(call.tensors, *QKV).items()}
    content = leaves(Call('', maps, {}), dtype, device, channels_first=True)
    positions = leaves(Call('', some(call.tensors, *WINDOW), {}), dtype, device)
    peer = 'mmcv CrissCrossAttention, content only'
    return Workload(
        'Bi-CC core, 2×97×97, 64 and 512 channels, k = 31',
        'grid_attention',
        ours(call, content | positions),
        {peer: contender(alternatives.criss_cross, content)},
        both_passes(peer, 0.5, 0.25),
        {peer: ours(Call('grid_attention', {}, dict(scale=1.0)), content)},
    )


@workload(OPERATORS, 'P3, T = 3', iterations=3)
@workload(OPERATORS, 'P3', iterations=1)
def ba_core(small: bool, dtype: torch.dtype, device: str, iterations: int) -> Workload:
    """The core of local bilateral attention over 3×3 neighbours."""
    side, channels = (17, 8) if small else (96, 32)
    settings = dict(
        heads=8, channels=channels, value_channels=channels, kernel_size=3, scale=1.0, iterations=iterations
    )
    call = make('local_attention', (side, side), 'window_bias', **settings)
    tensors = leaves(call, dtype, device, channels_first=True)
    return Workload(
        f'BA core, 256 channels, 8 heads, 96×96, T = {iterations}',
        'local_attention',
        ours(call, tensors),
        {'unfold': contender(partial(alternatives.unfold_attention, iterations=iterations), tensors)},
        both_passes('unfold', 0.05, 0.1),
    )


@workload(OPERATORS, 'dynamic_conv, 13×13', groups=16, side=48, k=13)
@workload(OPERATORS, 'dynamic_conv, 3×3', groups=8, side=96, k=3)
def dynamic(small: bool, dtype: torch.dtype, device: str, groups: int, side: int, k: int) -> Workload:
    """Dynamic convolution with 256 channels."""
    size = (17, 17) if small else (side, side)
    call = make('dynamic_conv', size, heads=groups, value_channels=256 // groups, kernel_size=k)
    tensors = leaves(call, dtype, device, channels_first=True)
    return Workload(
        f'dynamic convolution, 256 channels, {groups} groups, {side}×{side}, {k}×{k}',
        'dynamic_conv',
        ours(call, tensors),
        {'unfold': contender(partial(alternatives.unfold_dynamic_conv, k=k), tensors)},
    )


@workload(OPERATORS, 'P4 i', row=dict(share=True, iterations=3), evaluation=0.6, training=0.8)
@workload(OPERATORS, 'P4 e', row={}, evaluation=0.75, training=1.0)
def ba_block(small: bool, dtype: torch.dtype, device: str, row: dict, evaluation: float, training: float) -> Workload:
    """The block compared with the convolution that it replaces, with norm and ReLU, folded for evaluation."""
    from mmcv.cnn import ConvModule, fuse_conv_bn  # late: without compiled operators, mmcv warns

    side, channels = (9, 32) if small else (96, 256)
    x = torch.randn(1, channels, side, side, dtype=dtype, device=device)

    def block(build: Callable[[], nn.Module], memory_format: torch.memory_format) -> Contender:
        trained = build().to(device, dtype).to(memory_format=memory_format)
        folded = fuse_conv_bn(copy.deepcopy(trained).eval())
        return contender(
            lambda x, **_: (trained if torch.is_grad_enabled() else folded)(x),
            {'x': x.to(memory_format=memory_format).requires_grad_(), **dict(trained.named_parameters())},
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
        'local_attention',
        block(lambda: layers.LocalBilateralAttention(channels, **row), torch.channels_last),
        peers,
        targets,
        dict.fromkeys(peers),
    )


VIDEO = (16, 64, 64)  # voxels


@workload(OPERATORS, 'P5, 8 heads', heads=8, positions=False)
@workload(OPERATORS, 'P5, positions', heads=1, positions=True)
@workload(OPERATORS, 'P5', heads=1, positions=False)
def grid(small: bool, dtype: torch.dtype, device: str, heads: int, positions: bool) -> Workload:
    """Grid attention in 3-D, optionally with windows of 9×9×11 and outside logits, which the peer does not have."""
    settings = dict(heads=heads, channels=32 // heads, value_channels=32 // heads)
    biases, window = (WINDOW, dict(window_size=(9, 9, 11))) if positions else ((), {})
    call = make('grid_attention', (8, 16, 8) if small else VIDEO, *biases, **settings, **window)
    tensors = leaves(call, dtype, device)
    content = some(tensors, *QKV)
    return Workload(
        f'grid attention, 32 channels, heads: {heads}, 16×64×64',
        'grid_attention',
        ours(call, tensors),
        {'einsum': contender(alternatives.axes_einsum, content)},
        both_passes('einsum', 0.3, 0.2),
        {'einsum': ours(Call('grid_attention', {}, {}), content)},
    )


@workload(OPERATORS, 'P6, 8 heads', heads=8, positions=False)
@workload(OPERATORS, 'P6, positions', heads=1, positions=True)
@workload(OPERATORS, 'P6', heads=1, positions=False)
def strided(small: bool, dtype: torch.dtype, device: str, heads: int, positions: bool) -> Workload:
    """The first sub-layer of strided attention, cubes, optionally with offset logits, which the peer does not have."""
    pattern: dict[str, Any] = dict(pattern='block', step=(4, 8, 8))
    settings = dict(heads=heads, channels=32 // heads, value_channels=32 // heads, **pattern)
    biases = ('offset_bias',) if positions else ()
    call = make('strided_attention', (8, 16, 8) if small else VIDEO, *biases, **settings)
    tensors = leaves(call, dtype, device)
    content = some(tensors, *QKV)
    return Workload(
        f'strided attention, cubes of 4×8×8, 32 channels, heads: {heads}, 16×64×64',
        'strided_attention',
        ours(call, tensors),
        {'reshape + SDPA': contender(partial(alternatives.cubes_sdpa, step=(4, 8, 8)), content)},
        both_passes('reshape + SDPA', 0.6, 0.2),
        {'reshape + SDPA': ours(Call('strided_attention', {}, pattern), content)},
    )


@workload(OPERATORS, 'P7 0010', terms='0010')
@workload(OPERATORS, 'P7 1111', terms='1111')
def generalized(small: bool, dtype: torch.dtype, device: str, terms: str) -> Workload:
    """The whole block of mmcv, including its projections, and ours with the same weights."""
    from mmcv.cnn.bricks import GeneralizedAttention  # late: without compiled operators, mmcv warns

    channels, side = (64, 11) if small else (512, 96)
    stock = GeneralizedAttention(channels, num_heads=8, kv_stride=1, attention_type=terms).to(device, dtype)
    nn.init.ones_(stock.gamma)  # the initial 0 would make the block the identity
    block = layers.TransformerAttention2d(channels, 8, terms).to(device, dtype)
    x = torch.randn(1, channels, side, side, dtype=dtype, device=device, requires_grad=True)

    def with_weights(block: nn.Module) -> Contender:
        return contender(
            lambda x, **weights: torch.func.functional_call(block, weights, x, strict=True),
            {'x': x, **dict(stock.named_parameters())},
        )

    peer = 'mmcv GeneralizedAttention'
    return Workload(
        f"generalized attention '{terms}', 512 channels, 8 heads, 96×96",
        'global_attention',
        with_weights(block),
        {peer: with_weights(stock)},
        both_passes(peer, 0.5, 0.05) if terms == '1111' else {},
    )


@workload(OPERATORS, 'P8 local', name='local_attention')
@workload(OPERATORS, 'P8 global', name='global_attention')
def overhead(small: bool, dtype: torch.dtype, device: str, name: str) -> Workload:
    """The overhead of a call: a map so small that the kernels take almost no time."""
    call = make(name, (4, 4), channels=8, value_channels=8)
    maps = leaves(call, dtype, device)
    sequences = each(maps, lambda x: x.detach().flatten(2, 3).requires_grad_())

    def many(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def calls(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            for _ in range(1 if small else 200):
                output = function(query, key, value)
                if output.requires_grad:  # the benchmark computes the gradients of the last call
                    torch.autograd.grad(output.sum(), (query, key, value))
            return function(query, key, value)

        return calls

    peer = 'SDPA'
    return Workload(
        f'{name}, one head of 8 channels, 4×4, 201 calls',
        name,
        contender(many(operator(name)), maps),
        {peer: contender(many(F.scaled_dot_product_attention), sequences)},
        {(peer, FORWARD): (1.6 if name == 'global_attention' else 1.4, None), (peer, BOTH): (1.3, None)},
        {peer: None},
    )


# Layers


class AllPositions(nn.Module):
    """Attention from every position of a clip ``(B, T, H, W, C)`` to every other one, by PyTorch."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(channels, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        rows = x.flatten(1, 3)
        return self.attention(rows, rows, rows, need_weights=False)[0].view_as(x)


class OfClip(nn.Module):
    """A layer for clips, called with the numbers of the frames."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        numbers = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
        return self.layer(x, frame_numbers=numbers)


def under_autocast(layer: nn.Module, x: Tensor, dtype: torch.dtype) -> Contender:
    """Call a layer with weights in float32, under autocast to another dtype."""
    for parameter in layer.parameters():
        if parameter.numel() == 1:
            nn.init.ones_(parameter)  # the initial 0 would make the layer the identity
    layer.to(x.device)

    def function(x: Tensor, **_: Tensor) -> Tensor:
        with torch.autocast(x.device.type, dtype, enabled=dtype != torch.float32):
            return layer(x)

    return contender(function, {'x': x, **dict(layer.named_parameters())})


def non_local(channels: int) -> nn.Module:
    """Return mmcv's non-local block."""
    from mmcv.cnn import NonLocal2d  # late: without compiled operators, mmcv warns

    return NonLocal2d(channels)


MAP, WIDE, CLIP = (2, 512, 97, 97), (8, 256, 96, 96), (1, 8, 32, 56, 256)
SMALL = {MAP: (1, 32, 9, 9), WIDE: (4, 16, 8, 8), CLIP: (1, 2, 4, 4, 16)}
LayerRow = tuple[str, Callable[[int], nn.Module], str, Callable[[int], nn.Module], tuple[int, ...]]
ROWS: dict[str, LayerRow] = {  # operator, ours, the stock layer and its name, shape of the input
    'Bi-NL': ('global_attention', layers.BilateralNonLocal2d, 'NonLocal2d', non_local, MAP),
    'Bi-CC': (
        'grid_attention',
        layers.BilateralCrissCrossAttention,
        'CrissCrossAttention',
        lambda channels: alternatives.criss_cross_attention()(channels),
        MAP,
    ),
    'BA': (
        'local_attention',
        layers.LocalBilateralAttention,
        '3×3 convolution',
        lambda channels: nn.Conv2d(channels, channels, 3, padding=1),
        WIDE,
    ),
    'SST (Grid)': (
        'grid_attention',
        lambda channels: OfClip(layers.GridAttention3d(channels)),
        'all positions',
        AllPositions,
        CLIP,
    ),
    'SST (Strided)': (
        'strided_attention',
        lambda channels: OfClip(layers.StridedAttention3d(channels)),
        'all positions',
        AllPositions,
        CLIP,
    ),
}


@workload(LAYERS, 'SST (Strided)', name='SST (Strided)')
@workload(LAYERS, 'SST (Grid)', name='SST (Grid)')
@workload(LAYERS, 'BA', name='BA')
@workload(LAYERS, 'Bi-CC', name='Bi-CC')
@workload(LAYERS, 'Bi-NL', name='Bi-NL')
def layer(small: bool, dtype: torch.dtype, device: str, name: str) -> Workload:
    """A layer with its default positions, and the stock layer."""
    operator, build, peer, stock, shape = ROWS[name]
    shape = SMALL[shape] if small else shape
    channels = shape[-1] if len(shape) == 5 else shape[1]
    x = torch.randn(shape, device=device).requires_grad_()
    peers = {peer: under_autocast(stock(channels), x, dtype)}
    return Workload(name, operator, under_autocast(build(channels), x, dtype), peers, {}, {peer: None})


# Networks


def drawn_batch(images: int, size: tuple[int, int], classes: int) -> dict[str, list]:
    """Return images of coloured squares with noise, each square a class, as a data loader of mmseg does."""
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    batch: dict[str, list] = {'inputs': [], 'data_samples': []}
    for _ in range(images):
        squares = torch.randint(classes, (size[0] // 16 + 1, size[1] // 16 + 1))
        labels = squares.repeat_interleave(16, 0).repeat_interleave(16, 1)[: size[0], : size[1]]
        image = labels * (255 // classes) + 10 * torch.randn(3, *size)
        shapes = dict(img_shape=size, ori_shape=size, pad_shape=size, scale_factor=(1.0, 1.0), flip=False)
        batch['inputs'].append(image.clamp(0, 255).to(torch.uint8))
        batch['data_samples'].append(SegDataSample(gt_sem_seg=PixelData(data=labels[None]), metainfo=shapes))
    return batch


def trained_network(
    config: str, small: bool, dtype: torch.dtype, device: str, images: int | None, channels_last: bool
) -> Contender:
    """Train and test the network of a config with random weights, on drawn images of the size of its crops.

    Training and test have the options of the tools, ``--amp`` if the dtype is not float32, and ``--fuse-conv-bn``.
    """
    from mmengine.config import Config
    from mmengine.optim import build_optim_wrapper
    from mmengine.registry import MODELS, init_default_scope
    from mmseg.models.decode_heads import cc_head

    from mmattn.engine import enable_amp, fuse_at_first_call, prepare_for_cpu, use_channels_last
    from mmattn.utils import config_path

    logging.disable(logging.WARNING)
    cfg = Config.fromfile(config if Path(config).is_file() else config_path(config))
    init_default_scope(cfg.default_scope)
    cc_head.CrissCrossAttention = alternatives.criss_cross_attention()  # also of an mmcv without compiled operators
    cfg.model.backbone.init_cfg = None
    cfg.model.pop('pretrained', None)
    if small:
        cfg.model.data_preprocessor.size = (65, 65)
    amp = dtype != torch.float32
    if amp:
        enable_amp(cfg.optim_wrapper)
        cfg.optim_wrapper.dtype = str(dtype).removeprefix('torch.')
    prepare_for_cpu(cfg)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model).to(device)
    for parameter in model.parameters():
        if parameter.numel() == 1:
            nn.init.ones_(parameter)  # the initial 0 would hide what an attention computes
    if channels_last:
        try:
            use_channels_last(model)
        except ValueError as error:  # an operator of mmcv that cannot read channels last
            print(error)
    trained = copy.deepcopy(model).eval()
    fuse_at_first_call(trained)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    size, classes = cfg.model.data_preprocessor.size, cfg.model.decode_head.num_classes
    images = 2 if small else images or cfg.train_dataloader.batch_size
    batch, image = drawn_batch(images, size, classes), drawn_batch(1, size, classes)

    def train() -> Tensor:
        model.train_step(copy.deepcopy(batch), wrapper)
        return torch.empty(0)

    def test() -> Tensor:
        with torch.autocast(device, dtype, enabled=amp):
            trained.test_step(copy.deepcopy(image))
        return torch.empty(0)

    def results() -> dict[str, Tensor]:
        torch.manual_seed(0)  # of dropout
        with wrapper.optim_context(model):
            data = model.data_preprocessor(copy.deepcopy(batch), training=True)
            loss, _ = model.parse_losses(model(**data, mode='loss'))
        if amp:  # in 16 bit, batch norms of small maps multiply the roundings of gradients
            return {'loss': loss.detach()}
        parameters = dict(model.decode_head.named_parameters())
        grads = torch.autograd.grad(loss, [*parameters.values()], allow_unused=True)
        return {'loss': loss.detach(), **{name: x for name, x in zip(parameters, grads) if x is not None}}

    return Contender({TRAINING: train, TEST: test}, results)


def network(
    small: bool,
    dtype: torch.dtype,
    device: str,
    stock: str,
    ours: str,
    operator: str = '',
    images: int | None = None,
    channels_last: bool = False,
) -> Workload:
    """A network beside a stock one: a training step, and a test of one image."""
    built = {config: trained_network(config, small, dtype, device, images, channels_last) for config in (stock, ours)}
    peer = Path(stock).stem
    return Workload(Path(ours).stem, operator, built[ours], {peer: built[stock]}, {}, {peer: None})


CITYSCAPES, CAMVID = '4xb2-80k_cityscapes-769x769.py', '1xb8-4k_camvid-360x360.py'
FACES, FASSEG = 'r18-d8_1xb12-100e_lfw-pl-224x224.py', 'r18-d8-half_1xb8-480_fasseg-192x160.py'
# A CPU trains smaller networks. {} stands for backbone, schedule and data. 2 images a step, or those of the config.
NETWORKS: dict[str, dict[str, Builder]] = {
    device: {
        name: partial(network, stock=stock.format(data), ours=ours.format(data), operator=operator, images=images)
        for name, stock, ours, data, operator, images in (
            ('Bi-NL', 'bi_nl/nl_r50-d8_{}', 'bi_nl/bi-nl_r50-d8_{}', streets, 'global_attention', 2),
            ('Bi-CC', 'bi_cc/cc_r50-d8_{}', 'bi_cc/bi-cc_r50-d8_{}', streets, 'grid_attention', 2),
            ('U-Net-BA', 'unet_ba/unet_{}', 'unet_ba/unet-ba_{}', faces, 'local_attention', None),
        )
    }
    for device, streets, faces in (('cpu', CAMVID, FASSEG), ('cuda', CITYSCAPES, FACES))
}
