"""Transforms that make a sample of phrase grounding: the numbers of the words, and the targets of the phrases."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mmcv.transforms import BaseTransform
from torch import Tensor

from mmattn.language.layers.object_counter import box_iou
from mmattn.language.text.vocabulary import PAD, SPECIALS, Vocabulary
from mmattn.registry import TRANSFORMS


@TRANSFORMS.register_module()
class EncodePhrases(BaseTransform):
    """Convert a caption with phrases to numbers, after ``LoadRegions``.

    To ``inputs``, it adds 'caption', int64 ``(L)``, and 'phrases', int64 ``(P)``, the position of the last word of each
    phrase. The entry gets ``regions``, the boxes, and ``phrases``, a list of dict with 'text', 'types' and 'boxes',
    float32 ``(M, 4)``. Regions without boxes, or of an image of another size, raise a ValueError.

    Example:
        >>> from mmattn.language import Vocabulary
        >>> phrases = [dict(start=0, end=2, types=['people'], boxes=[[0, 0, 9, 9]])]
        >>> inputs = dict(boxes=torch.zeros(3, 4))
        >>> entry = dict(image_id='42', words='a man runs', phrases=phrases, size=(50, 40), image_size=(50, 40))
        >>> results = EncodePhrases()(dict(entry, vocabulary=Vocabulary(['a', 'man']), inputs=inputs))
        >>> results['inputs']['caption'], results['inputs']['phrases'], results['phrases'][0]['text']
        (tensor([4, 5, 1]), tensor([1]), 'a man')
    """

    def transform(self, results: dict) -> dict:
        """Add the numbers."""
        inputs, image = results['inputs'], f'image {results["image_id"]}'
        if 'boxes' not in inputs:
            raise ValueError(f'{image}: no boxes in the region store')
        if tuple(results['size']) != tuple(results['image_size']):
            (width, height), (w, h) = results['image_size'], results['size']
            raise ValueError(f'{image}: {width}×{height} in the annotations, {w}×{h} in the region store')
        words = results['words'].split(' ')
        inputs['caption'] = torch.tensor(word_numbers(results['vocabulary'], words))
        inputs['phrases'] = torch.tensor([phrase['end'] - 1 for phrase in results['phrases']])
        results['regions'] = inputs['boxes']
        results['phrases'] = [
            dict(
                text=' '.join(words[phrase['start'] : phrase['end']]),
                types=phrase['types'],
                boxes=torch.tensor(phrase['boxes']).float(),
            )
            for phrase in results['phrases']
        ]
        return results


@TRANSFORMS.register_module()
class PhraseTargets(BaseTransform):
    """Mark the regions that phrases describe, in place of what tests have of the phrases.

    To ``inputs``, it adds 'targets', float32 ``(P, N)``, by :func:`phrase_targets` with ``min_iou`` of the data set.

    Example:
        >>> boxes = torch.tensor([[0.0, 0.0, 9.0, 8.0], [20.0, 20.0, 30.0, 30.0]])
        >>> phrases = [dict(boxes=torch.tensor([[0.0, 0.0, 9.0, 9.0]]))]
        >>> PhraseTargets()(dict(regions=boxes, phrases=phrases, min_iou=0.5, inputs={}))['inputs']['targets']
        tensor([[1., 0.]])
    """

    def transform(self, results: dict) -> dict:
        """Add the targets."""
        boxes = [phrase['boxes'] for phrase in results.pop('phrases')]
        results['inputs']['targets'] = phrase_targets(results.pop('regions'), boxes, results['min_iou'])
        return results


def word_numbers(vocabulary: Vocabulary, words: Sequence[str]) -> list[int]:
    """Convert words to numbers. An unknown word is padding, whose vector is 0."""
    numbers = vocabulary.encode(' '.join(words))[:-1]
    return [number if number >= len(SPECIALS) else PAD for number in numbers]


def phrase_targets(regions: Tensor, boxes: Sequence[Tensor], min_iou: float) -> Tensor:
    """Mark the correct regions of each phrase, where the IoU with one of its boxes is at least ``min_iou``.

    ``regions`` are boxes ``(N, 4)``: left, top, right, bottom. ``boxes`` has ``(M, 4)`` for each phrase, M at least 1.
    The result is float32 ``(P, N)``, 1 for a correct region, otherwise 0.
    """
    return torch.stack([(box_iou(regions, phrase_boxes).amax(1) >= min_iou).float() for phrase_boxes in boxes])
