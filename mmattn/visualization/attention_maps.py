"""Attention maps of a model for points of its input image: captured as it runs, only the rows of the asked points."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from mmengine.model import is_model_wrapper
from torch import Tensor, nn


@dataclass
class AttentionMaps:
    """What an attention layer attends to from each of Q points, in one of its runs.

    Attributes:
        layer (str): name of the layer in the model.
        run (int): 1 for the layer's first run in the forward pass, 2 for the next (recurrence), …
        weights (dict[str, Tensor]): float ``(Q, H, W)`` on the CPU, the mean over heads, for each of 'content',
            'position' and 'bilateral' that the layer has. Each map sums to 1.
        extent (tuple[float, float]): width and height that a map covers, in those of the image: 1, or more where the
            model's input was padded, to the right and below.
    """

    layer: str
    run: int
    weights: dict[str, Tensor]
    extent: tuple[float, float] = (1.0, 1.0)


@dataclass
class AttentionRun:
    """One run of an attention layer over a map, from which the rows of any query can be computed.

    Attributes:
        layer (str): name of the layer in the model.
        run (int): 1 for the layer's first run in the forward pass, 2 for the next (recurrence), …
        module (nn.Module): the layer.
        feature (Tensor): float ``(1, C, H, W)``, the layer's input for the first image.
        extent (tuple[float, float]): as of :class:`AttentionMaps`.
    """

    layer: str
    run: int
    module: Any
    feature: Tensor
    extent: tuple[float, float] = (1.0, 1.0)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those of 'content', 'position' and 'bilateral' that the layer has."""
        return self.module.attention_kinds

    def weights(self, points: Sequence[tuple[float, float]], kind: str) -> Tensor:
        """Return the weights of some queries over all keys.

        Args:
            points (sequence of tuple[float, float]): (x, y) of each query, from 0 to below 1, relative to the image.
            kind (str): one of ``kinds``.

        Returns:
            Tensor: float ``(heads, Q, H, W)`` on the CPU; each map sums to 1.
        """
        height, width = self.feature.shape[-2:]
        across, down = self.extent
        queries = torch.tensor([[int(y / down * height), int(x / across * width)] for x, y in points])
        return self.module.attention_weights(self.feature, queries=queries, kind=kind)[0].float().cpu()


def attention_layers(model: nn.Module, name: str | None = None) -> dict[str, nn.Module]:
    """Return the layers of a model that have ``attention_weights``, by name: all of them, or the one called ``name``.

    Args:
        model (nn.Module): any model; if in mmengine's wrapper for distributed training, names are those within.
        name (str, optional): the only layer to return.

    Raises:
        ValueError: there is none, or none called ``name``; the message lists those there are.
    """
    model = _unwrapped(model)
    layers = {key: module for key, module in model.named_modules() if getattr(module, 'attention_kinds', ())}
    if not layers:
        raise ValueError(f'{type(model).__name__} has no attention layer: none of its modules has attention_weights')
    if name is None:
        return layers
    if name not in layers:
        raise ValueError(f'layer must be one of {", ".join(layers)}; got {name}')
    return {name: layers[name]}


def _unwrapped(model: nn.Module) -> Any:
    return model.module if is_model_wrapper(model) else model


@contextmanager
def capture_attention(
    model: nn.Module, points: Sequence[tuple[float, float]], layer: str | None = None
) -> Iterator[list[AttentionMaps]]:
    """Capture the attention maps of everything that runs within the context, one entry a run of a layer, in order.

    A feature map is taken to cover the model's input evenly, as where mmseg scales logits up. So the input must be the
    whole image: what a model in mode 'slide' runs are crops. Only the first image of a batch counts, and only layers
    over maps; sequences have no image coordinates.

    Args:
        model (nn.Module): any model.
        points (sequence of tuple[float, float]): (x, y) of each query, each from 0 (left, top) to below 1, relative to
            the model's input.
        layer (str, optional): name of the only layer to look at. Defaults to all.

    Yields:
        list[AttentionMaps]: filled as the model runs.

    Raises:
        ValueError: as :func:`attention_layers`.
    """
    maps: list[AttentionMaps] = []

    def capture(run: AttentionRun) -> None:
        maps.append(AttentionMaps(run.layer, run.run, {kind: run.weights(points, kind).mean(0) for kind in run.kinds}))

    with _watch(model, layer, capture):
        yield maps


@contextmanager
def _watch(model: nn.Module, layer: str | None, look: Callable[[AttentionRun], None]) -> Iterator[None]:
    """Call ``look`` before each run of a layer over a map."""
    counts: Counter[str] = Counter()

    def before(name: str, module: Any, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].dim() == 4:
            counts[name] += 1
            look(AttentionRun(name, counts[name], module, inputs[0][:1]))

    handles = [
        module.register_forward_pre_hook(partial(before, name))
        for name, module in attention_layers(model, layer).items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def attention_maps(
    model: nn.Module, data: dict, points: Sequence[tuple[float, float]], layer: str | None = None
) -> list[AttentionMaps]:
    """Run a model of mmseg, or of mmdet, on a whole image, whatever its test mode, and return its attention maps.

    Args:
        model (nn.Module): an mmengine ``BaseModel``, or a wrapper of one, in evaluation mode.
        data (dict): a batch as a data loader gives it. Only its first image counts.
        points (sequence of tuple[float, float]): (x, y) of each query, from 0 to below 1, relative to the image.
        layer (str, optional): name of the only layer to look at. Defaults to all.

    Returns:
        list[AttentionMaps]: one for each run of a layer, in order.

    Raises:
        ValueError: as :func:`attention_layers`, or none of the layers ran over a map.
    """
    data, extent = _first_image(model, data)
    with capture_attention(model, [(x / extent[0], y / extent[1]) for x, y in points], layer) as maps:
        model(**data, mode='tensor')
    _check_any(maps, model, layer)
    return [replace(entry, extent=extent) for entry in maps]


@torch.no_grad()
def attention_runs(model: nn.Module, data: dict, layer: str | None = None) -> list[AttentionRun]:
    """Run a model as :func:`attention_maps` does, and return what it takes to compute the maps of any query later.

    Args:
        model (nn.Module): as there, and its parameters all on this device: not sharded.
        data (dict): as there.
        layer (str, optional): as there.

    Returns:
        list[AttentionRun]: one for each run of a layer, in order.

    Raises:
        ValueError: as :func:`attention_maps`.
    """
    data, extent = _first_image(model, data)
    runs: list[AttentionRun] = []
    # Copies: a layer may change its input in place.
    with _watch(model, layer, lambda run: runs.append(replace(run, feature=run.feature.clone(), extent=extent))):
        model(**data, mode='tensor')
    _check_any(runs, model, layer)
    return runs


def _first_image(model: nn.Module, data: dict) -> tuple[dict, tuple[float, float]]:
    """Return a batch's first image as the model takes it, and its width and height in those before padding."""
    data = _unwrapped(model).data_preprocessor({name: batch[:1] for name, batch in data.items()}, False)
    height, width = data['data_samples'][0].img_shape[:2]
    return data, (data['inputs'].shape[-1] / width, data['inputs'].shape[-2] / height)


def _check_any(found: Sequence, model: nn.Module, layer: str | None) -> None:
    if not found:
        raise ValueError(
            f'no attention over a map ran in {type(model).__name__}; it has {", ".join(attention_layers(model, layer))}'
        )
