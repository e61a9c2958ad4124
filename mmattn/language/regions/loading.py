"""Transforms that begin and end the pipelines of texts about images: load the regions of an image, pack a sample."""

from __future__ import annotations

from typing import Any

import torch
from mmcv.transforms import BaseTransform
from mmengine.structures import BaseDataElement
from torch import Tensor

from mmattn.registry import TRANSFORMS

from .image_inputs import image_inputs
from .image_regions import Regions

META_KEYS = (
    'question_id',
    'caption_id',
    'image_id',
    'index',
    'question',
    'question_type',
    'answer_type',
    'size',
)
DATA_KEYS = ('answers', 'captions', 'regions', 'phrases')


@TRANSFORMS.register_module()
class LoadRegions(BaseTransform):
    """Load the regions of an image from the region store of the data set.

    To ``inputs``, it adds 'features', float32 ``(N, D)``, and, if the store has them, 'boxes', float32 ``(N, 4)``, and
    'sizes', width and height, int64 ``(2)``, also ``size``. If the entry has ``attributes``, numbers of words, it adds
    'attributes', int64 ``(A)``, possibly empty. If the data set has ``max_regions``, it loads the best.

    Args:
        allow_empty (bool): accept an image without regions, which otherwise is a ValueError. Defaults to True.

    Example:
        >>> store = {'42': Regions(torch.ones(9, 16), torch.ones(9, 4), (640, 480), None, None)}
        >>> results = LoadRegions()(dict(image_id='42', store=store, max_regions=5, inputs={}))
        >>> results['inputs']['features'].shape, results['size']
        (torch.Size([5, 16]), (640, 480))
    """

    def __init__(self, allow_empty: bool = True) -> None:
        self.allow_empty = allow_empty

    def transform(self, results: dict) -> dict:
        """Add the regions of ``image_id``."""
        regions = best_regions(results['store'][results['image_id']], results.get('max_regions'))
        if not self.allow_empty and not len(regions.features):
            raise ValueError(f'image {results["image_id"]}: no region in the region store')
        numbers = results.get('attributes')
        attributes = None if numbers is None else torch.tensor(numbers, dtype=torch.int64)
        results['inputs'].update(image_inputs(regions, attributes))
        results['size'] = regions.size
        return results


@TRANSFORMS.register_module()
class PackText(BaseTransform):
    """End a pipeline of texts about images: keep ``inputs``, and make ``data_samples`` of what metrics read.

    A sample has as metainfo, where the entry has them, the ids, the text and types of a question, and the size of the
    image. Its data are the published answers or captions, and, of a caption with phrases, ``regions`` and ``phrases``.

    Example:
        >>> PackText()(dict(image_id='42', answers=['dog'], store=None, inputs={}))['data_samples'].answers
        ['dog']
    """

    def transform(self, results: dict) -> dict:
        """Return ``inputs`` and ``data_samples``, a ``BaseDataElement``."""
        sample = BaseDataElement(metainfo={key: results[key] for key in META_KEYS if key in results})
        sample.set_data({key: results[key] for key in DATA_KEYS if key in results})
        return dict(inputs=results['inputs'], data_samples=sample)


def best_regions(regions: Regions, most: int | None) -> Regions:
    """Select the best regions of an image, at most ``most``, in their order. Regions without class are preferred."""
    count = len(regions.features)
    if most is None or count <= most:
        return regions
    chosen = torch.arange(most)  # without scores
    if regions.scores is not None:
        scores = regions.scores
        if regions.classes is not None:
            scores = scores.masked_fill(regions.classes < 0, torch.inf)
        chosen = scores.sort(descending=True, stable=True).indices[:most].sort().values
    fields: dict[str, Any] = {name: x[chosen] for name, x in regions._asdict().items() if isinstance(x, Tensor)}
    return regions._replace(**fields)
