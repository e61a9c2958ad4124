"""What a row of a table computes, by experiments on its model: small, in float64, with parameters drawn at random."""

from hashlib import sha256
from importlib import import_module
from typing import Any, NamedTuple

import torch
from mmcv.cnn import NonLocal2d
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn

from mmattn import layers
from mmattn.language import layers as language_layers
from mmattn.layers.attention_weights import AttentionWeights
from mmattn.utils.command import has_mmcv_operators
from reproduction.protocol import Protocol, adapt
from reproduction.rows import Row

from ..support.tiny_config import shrink

TINY = Protocol(shrink=shrink)
STOCK = (NonLocal2d, *([import_module('mmcv.ops').CrissCrossAttention] if has_mmcv_operators() else []))
# Attention layers, and what replaces them in a table, by the inputs that they take. A map, sequence or clip is larger
# than all ranges and than the windows of positions in 3.3, not than all others.
PLACES = {
    (31, 33): (
        *(*STOCK, layers.BilateralNonLocal2d, layers.BilateralCrissCrossAttention),
        *(layers.LocalBilateralAttention, layers.TransformerAttention2d, layers.DynamicConv2d),
    ),
    (75,): (
        *(nn.MultiheadAttention, language_layers.BilateralMultiheadAttention, language_layers.RegionAttention),
        *(language_layers.TransformerAttention1d, language_layers.DynamicConv1d),
    ),
    (4, 6, 8): (layers.GridAttention3d, layers.StridedAttention3d, layers.DenseAttention3d),
}
KINDS = tuple(kind for kinds in PLACES.values() for kind in kinds)
LISTS = 'layers', 'blocks', 'sublayers'  # parts of paths that say nothing of the role
LAYERS: dict[str, 'Layer'] = {}


class Layer(NamedTuple):
    """What an attention layer computes."""

    kind: str
    terms: str | None  # which of E1 E2 E3 E4 its logits have; None if it has no logits to ask for
    support: frozenset[tuple[int, ...]]  # offsets of the inputs on which the output of a query depends
    outputs: Tensor  # for the same inputs and, by their names, the same parameters


class Facts(NamedTuple):
    """What a row computes, and by which data, optimizer and schedule it is trained and chosen."""

    attention: dict[str, Layer]  # by role: the path without numbers
    network: dict[str, 'Part']  # all other modules
    optimizer: dict[str, tuple]  # of the same parameters: rate and decay
    settings: dict[str, Any]  # parts of the config, by what they are for
    chosen_on_test: bool


def differences(row: Facts, other: Facts) -> set[str]:
    """Say in words what differs between two rows."""
    found = {name for name, value in row.settings.items() if value != other.settings[name]}
    shared = row.optimizer.keys() & other.optimizer.keys()
    if any(row.optimizer[name] != other.optimizer[name] for name in shared):
        found.add('optimizer')
    if not is_same(row.network, other.network):
        found.add('network')
    for role in row.attention.keys() | other.attention.keys():
        a, b = row.attention.get(role), other.attention.get(role)
        if a is None or b is None or a.kind != b.kind:
            found.add('attention')
        elif a.terms != b.terms:
            found.add('terms')
        elif a.outputs.shape != b.outputs.shape or not torch.allclose(a.outputs, b.outputs, rtol=0, atol=1e-9):
            found.add('attention')
        if a is not None and b is not None and a.support != b.support:
            found.add('range')
    return found


def facts(row: Row) -> Facts:
    """Find out what a row computes."""
    stages = adapt(row, TINY, None)
    cfg = stages[-1]
    model = build(cfg)
    found, inside = {}, []
    for name, module in model.named_modules():
        if isinstance(module, KINDS) and not any(name.startswith(f'{path}.') for path in inside):
            inside.append(name)
            parts = (part.strip('0123456789') for part in name.split('.') if part not in LISTS)
            role = '.'.join(part for part in parts if part)
            found.setdefault(role, module)
    attention = {role: layer(module) for role, module in found.items()}
    outside = {
        name: x for name, x in model.named_modules() if not f'{name}.'.startswith(tuple(f'{x}.' for x in inside))
    }
    parameters = {
        f'{name}.{key}': x for name, part in outside.items() for key, x in part.named_parameters(recurse=False)
    }
    groups = build_optim_wrapper(model, cfg.optim_wrapper).param_groups
    rates = {id(x): (group['lr'], group['weight_decay']) for group in groups for x in group['params']}
    return Facts(
        attention,
        {name: describe(part) for name, part in outside.items()},
        {name: rates[id(x)] for name, x in parameters.items() if id(x) in rates},
        settings(row, stages),
        cfg.get('val_evaluator') is not None and chooses_on_the_test(cfg),
    )


class Part(NamedTuple):
    """A module without those in it."""

    kind: str  # '' if it has others in it
    options: dict[str, Any]  # plain attributes
    shapes: dict[str, tuple[int, ...]]  # of parameters


def describe(module: nn.Module) -> Part:
    """Describe a module without those in it. Plugins are layers of attention."""
    options = {
        name: x
        for name, x in vars(module).items()
        if isinstance(x, bool | int | float | str | tuple) and 'plugin' not in name
    }
    shapes = {name: tuple(x.shape) for name, x in module.named_parameters(recurse=False)}
    return Part('' if [*module.children()] else type(module).__name__, options, shapes)


def is_same(a: dict[str, Part], b: dict[str, Part]) -> bool:
    """Check whether networks have the same parts, with the same options as far as both have them."""
    if any(part.kind for name in a.keys() ^ b.keys() for part in (a.get(name) or b[name],)):
        return False
    pairs = [(a[name], b[name]) for name in a.keys() & b.keys()]
    return all(
        x.kind == y.kind
        and x.shapes == y.shapes
        and all(str(x.options[key]) == str(y.options[key]) for key in x.options.keys() & y.options.keys())
        for x, y in pairs
    )


def chooses_on_the_test(cfg: Config) -> bool:
    """Check whether a best checkpoint is saved that the samples of the test choose, however they are prepared."""
    validated, tested = (
        {key: x for key, x in loader.dataset.items() if key not in ('pipeline', 'test_mode')}
        for loader in (cfg.val_dataloader, cfg.test_dataloader)
    )
    return bool(cfg.default_hooks.checkpoint.get('save_best')) and validated == tested


def settings(row: Row, stages: list[Config]) -> dict[str, Any]:
    cfg = stages[-1]
    names = dict(
        data=['train_dataloader'],
        test=['test_dataloader', 'test_evaluator', 'test_cfg', 'tta_model', 'tta_pipeline'],
        schedule=['param_scheduler', 'train_cfg'],
    )
    parts = {word: {name: cfg.get(name) for name in parts} for word, parts in names.items()}
    parts['choice'] = cfg.default_hooks.checkpoint.get('save_best'), cfg.get('val_dataloader'), cfg.get('val_evaluator')
    parts['test'] |= dict(options=row.test, model=cfg.model.get('test_cfg'))
    parts['stages'] = len(stages)
    parts['optimizer'] = {
        key: x for key, x in cfg.optim_wrapper.items() if key != 'paramwise_cfg'
    }  # see Facts.optimizer
    parts['loss'] = {key: value for key, value in cfg.model.items() if 'loss' in key or 'smoothing' in key}
    return {word: str(part) for word, part in parts.items()}


def build(cfg: Config) -> nn.Module:
    init_default_scope(cfg.default_scope)
    return MODELS.build(cfg.model)


def draw(module: nn.Module) -> nn.Module:
    """Draw all parameters and statistics of norms, those of one name alike in all modules."""
    module = module.double().eval()
    for name, x in [*module.named_parameters(), *module.named_buffers()]:
        if x.is_floating_point():
            generator = torch.Generator().manual_seed(int.from_bytes(sha256(name.encode()).digest()[:4]))
            drawn = torch.randn(x.shape, generator=generator, dtype=x.dtype)
            drawn /= max(1, x[0].numel()) ** 0.5 if x.ndim > 1 else 3
            x.data.copy_(drawn.abs() + 0.5 if name.endswith('running_var') else drawn)
    return module


def layer(module: nn.Module) -> Layer:
    """Experiment with an attention layer, once for all that are alike."""
    key = str([(name, describe(part)) for name, part in module.named_modules()])
    if key not in LAYERS:
        LAYERS[key] = experiment(module)
    return LAYERS[key]


def experiment(module: nn.Module) -> Layer:
    module = draw(module)
    (shape,) = (shape for shape, kinds in PLACES.items() if isinstance(module, kinds))
    middle = tuple(side // 2 for side in shape)
    few = tuple(min(side, 7) for side in shape)
    has_terms = isinstance(module, AttentionWeights) and len(shape) < 3
    terms = find_terms(module, few, tuple(side // 2 for side in few)) if has_terms else None
    x = random(module, shape, 1).requires_grad_()
    y = run(module, x)
    (gradient,) = torch.autograd.grad((y[middle] * random(module, (), 2)[: y.shape[-1]]).sum(), x)
    seen = gradient.abs().amax(-1).nonzero()
    support = frozenset(tuple(offset) for offset in (seen - torch.tensor(middle)).tolist())
    return Layer(type(module).__name__, terms, support, y.detach())


def random(module: nn.Module, shape: tuple[int, ...], seed: int) -> Tensor:
    """Draw features of the channels that a layer takes."""
    part: Any = module.glu if isinstance(module, layers.DynamicConv2d) else module
    channels = next(getattr(part, name) for name in ('in_channels', 'embed_dims', 'embed_dim') if hasattr(part, name))
    return torch.randn(*shape, channels, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def arguments(module: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """Return the inputs of a layer for a feature ``(*S, C)``."""
    if x.ndim == 3:
        return (x.movedim(-1, 0)[None],)
    if x.ndim == 4:
        return x[None], x[None], torch.arange(len(x))[None]
    if isinstance(module, language_layers.RegionAttention):
        return x[None], x[None], x[None], None, (x @ x.mT)[None, ..., None].expand(-1, -1, -1, 4).sigmoid()
    return x[None], x[None], x[None]


def run(module: nn.Module, x: Tensor) -> Tensor:
    """Return the output ``(*S, O)`` of a layer for a feature ``(*S, C)``."""
    y = module(*arguments(module, x))
    y = y[0] if isinstance(y, tuple) else y
    return y[0].movedim(0, -1) if x.ndim == 3 else y[0]


def find_terms(module: Any, shape: tuple[int, ...], middle: tuple[int, ...]) -> str:
    """Find the terms of the logits of one query: what remains of a query of zeros is of keys or positions alone."""
    keys, others, query, same = (random(module, shape, seed) for seed in range(3, 7))
    same = same[middle].expand(*shape, -1)

    def logits(content: Tensor | float, keys: Tensor) -> Tensor:
        x = keys.clone()
        x[middle] = content
        queries = torch.tensor([middle])
        kind = (*module.attention_kinds, *module.attention_terms)[len(module.attention_kinds) - 1]
        weights = module.attention_weights(*arguments(module, x), queries=queries, kind=kind)[0, :, 0].clone()
        weights[(slice(None), *middle)] = 0  # the query is a key, too
        found = weights.log().flatten(1)
        return found[:, weights.flatten(1).amin(0) > 0]

    def varies(x: Tensor) -> bool:
        return bool((x - x.mean(1, keepdim=True)).abs().max() > 1e-7)

    content = query[middle]
    found = dict(
        E1=varies(logits(content, keys) - logits(0, keys) - logits(content, others) + logits(0, others)),
        E2=varies(logits(content, same) - logits(0, same)),
        E3=varies(logits(0, keys) - logits(0, others)),
        E4=varies(logits(0, same)),
    )
    return ' '.join(name for name, exists in found.items() if exists)
