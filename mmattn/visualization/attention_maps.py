"""Attention maps of a model for points of its input image. Only the rows of these queries are computed."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mmattn.utils.model_wrappers import unwrapped


@dataclass
class AttentionMaps:
    """Attention maps of Q queries, from one forward pass of an attention layer.

    Attributes:
        layer (str): name of the layer in the model.
        run (int): 1 for the layer's first pass in the model's forward pass, 2 for the next (recurrence), …
        weights (dict[str, Tensor]): kind → float ``(Q, H, W)`` on the CPU, the mean over heads. Each map sums to 1. The
            kinds are 'content', 'position' and 'bilateral', as far as the layer has them, or those that you choose.
        extent (tuple[float, float]): width and height of a map relative to the image: 1, or more if the model's input
            was padded at the right and at the bottom.
    """

    layer: str
    run: int
    weights: dict[str, Tensor]
    extent: tuple[float, float] = (1.0, 1.0)


@dataclass
class AttentionRun:
    """One forward pass of an attention layer over a map, from which the map of any query can be computed.

    Attributes:
        layer, run, extent: as in :class:`AttentionMaps`.
        module (nn.Module): the layer.
        feature (Tensor): float ``(1, C, H, W)``, the layer's input for the first image.
    """

    layer: str
    run: int
    module: Any
    feature: Tensor
    extent: tuple[float, float] = (1.0, 1.0)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of weights that the layer has, among 'content', 'position' and 'bilateral'."""
        return self.module.attention_kinds

    def weights(self, points: Sequence[tuple[float, float]], kind: str) -> Tensor:
        """Compute the attention weights of queries over all keys: float ``(heads, Q, H, W)`` on the CPU.

        Each map sums to 1.

        Args:
            points (sequence of tuple[float, float]): (x, y) of each query, in [0, 1), relative to the image.
            kind (str): one of ``kinds``, or a term of the logits that the layer has, 'E1' to 'E4'.
        """
        height, width = self.feature.shape[-2:]
        across, down = self.extent
        queries = torch.tensor([[int(y / down * height), int(x / across * width)] for x, y in points])
        return self.module.attention_weights(self.feature, queries=queries, kind=kind)[0].float().cpu()


def attention_layers(
    model: nn.Module, name: str | None = None, kinds: Sequence[str] | None = None, clips: bool = False
) -> dict[str, nn.Module]:
    """Map names to the layers of a model that have ``attention_weights``: to all of them, or only to ``name``.

    Args:
        model (nn.Module): any model. For mmengine's distributed wrappers, names are relative to the wrapped model.
        name (str, optional): name of the layer to select. If there is none, the error lists the names. Defaults to all.
        kinds (sequence of str, optional): kinds of weights that each layer must have. Defaults to none.
        clips (bool): the layers for clips, and not those for maps. Defaults to False.

    Example:
        >>> from mmattn.layers import BilateralNonLocal2d
        >>> list(attention_layers(nn.Sequential(nn.Conv2d(3, 8, 1), BilateralNonLocal2d(8))))
        ['1']
    """
    model = unwrapped(model)
    layers = {
        key: module
        for key, module in model.named_modules()
        if getattr(module, 'attention_kinds', ()) and hasattr(module, 'reach') == clips
    }
    if not layers:
        raise ValueError(f'{type(model).__name__} has no attention layer: none of its modules has attention_weights')
    if name is not None:
        if name not in layers:
            raise ValueError(f'layer must be one of {", ".join(layers)}; got {name}')
        layers = {name: layers[name]}
    for key, module in layers.items():
        accepted = (*module.attention_kinds, *getattr(module, 'attention_terms', ()))
        unknown = [kind for kind in kinds or () if kind not in accepted]
        if unknown:
            raise ValueError(f'kinds of {key} must be among {", ".join(accepted)}; got {", ".join(unknown)}')
    return layers


@contextmanager
def capture_attention(
    model: nn.Module,
    points: Sequence[tuple[float, float]],
    layer: str | None = None,
    kinds: Sequence[str] | None = None,
) -> Iterator[list[AttentionMaps]]:
    """Capture the attention maps of all forward passes within the context. The list is filled while the model runs.

    The maps are in the order of the layers' passes. Each feature map is assumed to cover the model's input evenly, so
    the input must be the whole image: in mode 'slide', a model receives crops. Only the first image of a batch is used,
    and only layers that attend over maps, because sequences have no image coordinates.

    Args:
        model (nn.Module): any model with attention layers.
        points (sequence of tuple[float, float]): (x, y) of each query, in [0, 1), from the top left, relative to the
            model's input.
        layer (str, optional): name of the only layer to capture. Defaults to all.
        kinds (sequence of str, optional): kinds of weights to compute. Transformer attention also has its terms, 'E1'
            to 'E4'. Defaults to the kinds of the layer among 'content', 'position' and 'bilateral'.

    Example:
        >>> from mmattn.layers import BilateralNonLocal2d
        >>> model = nn.Sequential(BilateralNonLocal2d(8, window_size=3))
        >>> with capture_attention(model, points=[(0.5, 0.5)]) as maps:
        ...     _ = model(torch.randn(1, 8, 6, 9))
        >>> maps[0].layer, list(maps[0].weights), maps[0].weights['position'].shape
        ('0', ['content', 'position', 'bilateral'], torch.Size([1, 6, 9]))
    """
    maps: list[AttentionMaps] = []

    def capture(run: AttentionRun) -> None:
        weights = {kind: run.weights(points, kind).mean(0) for kind in kinds or run.kinds}
        maps.append(AttentionMaps(run.layer, run.run, weights))

    attention_layers(model, layer, kinds)
    with _watch(model, layer, capture):
        yield maps


@contextmanager
def _watch(model: nn.Module, layer: str | None, look: Callable[[AttentionRun], None]) -> Iterator[None]:
    counts: Counter[str] = Counter()

    def before(name: str, module: Any, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        x = next(iter((*inputs, *named.values())))
        if x.dim() == 4 and len(x):
            counts[name] += 1
            look(AttentionRun(name, counts[name], module, x[:1]))

    handles = [
        module.register_forward_pre_hook(partial(before, name), with_kwargs=True)
        for name, module in attention_layers(model, layer).items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def attention_maps(
    model: nn.Module,
    data: dict,
    points: Sequence[tuple[float, float]],
    layer: str | None = None,
    kinds: Sequence[str] | None = None,
) -> list[AttentionMaps]:
    """Run a model of mmseg or mmdet on a whole image, regardless of its test mode, and return its attention maps.

    There is one entry per pass of a layer, in order. At least one attention layer must run over a map.

    Args:
        model (nn.Module): an mmengine ``BaseModel``, or a wrapper of one, in evaluation mode.
        data (dict): a batch of the test data loader. Only its first image is used.
        points (sequence of tuple[float, float]): (x, y) of each query, in [0, 1), relative to the image.
        layer (str, optional): name of the only layer to capture. Defaults to all.
        kinds (sequence of str, optional): kinds of weights, as in :func:`capture_attention`.
    """
    data, extent = _first_image(model, data)
    with capture_attention(model, [(x / extent[0], y / extent[1]) for x, y in points], layer, kinds) as maps:
        model(**data, mode='tensor')
    _check_any(maps, model, layer)
    return [replace(entry, extent=extent) for entry in maps]


@torch.no_grad()
def attention_runs(model: nn.Module, data: dict, layer: str | None = None) -> list[AttentionRun]:
    """Run a model as :func:`attention_maps` does, and return the inputs from which any query's maps can be computed.

    There is one entry per pass of a layer, in order. Arguments are as in :func:`attention_maps`. The parameters of the
    model must not be sharded.
    """
    data, extent = _first_image(model, data)
    runs: list[AttentionRun] = []
    # Clone: a layer may modify its input in place.
    with _watch(model, layer, lambda run: runs.append(replace(run, feature=run.feature.clone(), extent=extent))):
        model(**data, mode='tensor')
    _check_any(runs, model, layer)
    return runs


def _first_image(model: nn.Module, data: dict) -> tuple[dict, tuple[float, float]]:
    height, width = _size_without_padding(data['data_samples'][0])  # first: preprocessors write pad_shape, too
    data = unwrapped(model).data_preprocessor({name: batch[:1] for name, batch in data.items()}, False)
    return data, (data['inputs'].shape[-1] / width, data['inputs'].shape[-2] / height)


def _size_without_padding(sample: Any) -> Sequence[int]:
    """Return height and width of the image in a sample of a pipeline, of which a ``Pad`` changes ``img_shape``."""
    shape = sample.img_shape[:2]
    # mmcv's Pad writes three sides, mmseg's ResizeToMultiple two; mmdet does not keep them
    if len(getattr(sample, 'pad_shape', ())) != 3 and not hasattr(type(sample), 'gt_instances'):
        return shape
    across, down = getattr(sample, 'scale_factor', (1, 1))
    return [min(side, round(stored * scale)) for side, stored, scale in zip(shape, sample.ori_shape, (down, across))]


def _check_any(layers: Sequence, model: nn.Module, layer: str | None) -> None:
    if not layers:
        raise ValueError(
            f'no attention layer of {type(model).__name__} ran over a map; '
            f'it has {", ".join(attention_layers(model, layer))}'
        )
