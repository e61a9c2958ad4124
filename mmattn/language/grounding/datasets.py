"""Data set of phrase grounding: captions whose phrases are linked to boxes, with the features of regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.structures import BaseDataElement
from torch import Tensor

from mmattn.language.layers.object_counter import box_iou
from mmattn.language.regions.image_inputs import check_images, check_regions, image_inputs, open_store
from mmattn.language.regions.region_store import RegionStore
from mmattn.language.text.annotation_files import in_folder
from mmattn.language.text.text_dataset import Indices, PackedSequences, TextDataset, select_indices
from mmattn.language.text.vocabulary import PAD, SPECIALS, Vocabulary
from mmattn.language.text.words import unspaced_fault
from mmattn.registry import DATASETS
from mmattn.utils.checks import check_fraction
from mmattn.utils.faults import Faults

from .entities import rank_words, read_entities


@DATASETS.register_module()
class EntitiesDataset(TextDataset):
    """Captions with phrases and their boxes: Flickr30k Entities.

    A sample is a caption with its phrases that have a box. Captions without such a phrase are left out. The vocabulary
    has the four special symbols and all words of the captions in ``vocab_file``. An unknown word is read as padding,
    whose vector is 0. ``metainfo`` holds the vocabulary, and checkpoints contain it. Faults of a file, such as an image
    that is not in the region store, are a ValueError, whose message lists all of them.

    Args:
        ann_file (str): file that ``tools/dataset_converters/flickr_entities.py`` has written.
        regions (str or object): as in :class:`mmattn.language.captioning.COCOCaptionDataset`, with boxes.
        vocab_file (str, optional): file of the training data, whose words make the vocabulary. Defaults to
            ``ann_file``.
        min_iou (float): a region is a target of a phrase if its IoU with a box of the entity is at least ``min_iou``,
            above 0 and up to 1. Defaults to 0.5.
        indices (int or sequence of int, optional): use these captions, see :func:`select_indices`. Defaults to None.
        test_mode (bool): samples for tests. Defaults to False.
        data_root (str): folder of the files. Defaults to '', the working directory.

    Example:
        >>> import json
        >>> from types import SimpleNamespace
        >>> from mmattn.language.grounding.entities import EntityBoxes, parse_caption, prepared
        >>> from mmattn.utils.files import write_text
        >>> boxes = EntityBoxes((50, 40), {'7': [[0, 0, 9, 9]]}, set(), set())
        >>> image = '42', [parse_caption('[/EN#7/people A man] runs')], boxes
        >>> write_text('entities_train.json', json.dumps(prepared([image])))
        >>> regions = torch.tensor([[0.0, 0.0, 50.0, 40.0], [0.0, 0.0, 9.0, 8.0]])
        >>> store = {'42': SimpleNamespace(features=torch.zeros(2, 16), boxes=regions, size=(50, 40))}
        >>> inputs = EntitiesDataset('entities_train.json', store)[0]['inputs']
        >>> inputs['caption'], inputs['phrases'], inputs['targets']
        (tensor([4, 5, 6]), tensor([1]), tensor([[0., 1.]]))
    """

    def __init__(
        self,
        ann_file: str,
        regions: Any,
        vocab_file: str | None = None,
        min_iou: float = 0.5,
        test_mode: bool = False,
        data_root: str = '',
        indices: Indices = None,
    ) -> None:
        check_fraction('min_iou', min_iou)
        if not min_iou:
            raise ValueError('min_iou must be above 0; got 0')
        path, words_path, regions = in_folder(data_root, ann_file, vocab_file or ann_file, regions)
        faults, symbols, grounded = Faults(), [], []
        self.sizes: dict[str, tuple[int, int]] = {}
        with faults.catch(path):
            entities = read_entities(path)
            grounded = [(caption, phrases) for caption in entities.captions if (phrases := entities.grounded(caption))]
            grounded = select_indices(grounded, indices)
            self.sizes = entities.sizes
            if not grounded:
                faults.add(path, 'no caption with a phrase that has a box')
        with faults.catch(words_path):
            symbols = rank_words(entities if words_path == path and grounded else read_entities(words_path))
        self.ids = [(caption.caption_id, caption.image_id) for caption, _ in grounded]
        self.image_ids = [name for _, name in self.ids]
        self._region_options = dict(allow_empty=True, sizes=self.sizes)
        with faults.catch(regions):
            self.store = open_store(regions)
            check_images(self.store, regions, path, self.image_ids, faults, **self._region_options)
        faults.check()
        self.vocabulary = Vocabulary(symbols)
        self.metainfo = dict(symbols=symbols)
        self.min_iou, self.test_mode, self._regions = min_iou, test_mode, regions
        self.sources = dict(symbols=words_path)
        self.needs = dict(vocab_size=(len(self.vocabulary), words_path))
        if isinstance(self.store, RegionStore):
            self.needs['num_features'] = (self.store.num_features, str(regions))
        self._path, self._unspaced = path, unspaced_fault([' '.join(caption.caption.words) for caption, _ in grounded])
        self._words = PackedSequences(word_numbers(self.vocabulary, caption.caption.words) for caption, _ in grounded)
        self._ends = PackedSequences([phrase.end - 1 for phrase in phrases] for _, phrases in grounded)
        # The coordinates of the boxes of each phrase, phrase by phrase.
        self._boxes = PackedSequences(
            [int(x) for box in entities.boxes[caption.image_id][phrase.entity] for x in box]
            for caption, phrases in grounded
            for phrase in phrases
        )
        self._captions = grounded if test_mode else None

    def check_for_model(self, model: Any, faults: Faults) -> None:
        """Add the faults of regions and text, and what the model does not accept. Region features are not read."""
        super().check_for_model(model, faults)
        if self._unspaced:
            faults.add(self._path, self._unspaced)
        check_regions(self.store, self._regions, self.image_ids, faults, **self._region_options)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Load ``inputs`` and ``data_samples`` of a caption.

        ``inputs`` has 'caption', int64 ``(L)``, and 'phrases', int64 ``(P)``, the position of the last word of each
        phrase. The regions have 'features', float32 ``(N, D)``, 'boxes', float32 ``(N, 4)``, and 'sizes', width and
        height of the image, int64 ``(2)``. In training, :func:`phrase_targets` makes 'targets', float32 ``(P, N)``. The
        data sample has ``caption_id``, ``image_id`` and ``size`` (width, height). In tests it also has ``regions``
        (boxes) and ``phrases``, a list of dict with 'text', 'types' and 'boxes', float32 ``(M, 4)``.
        """
        number = range(len(self))[index]
        caption_id, image_id = self.ids[number]
        regions = self.store[image_id]
        if regions.boxes is None:
            raise ValueError(f'image {image_id}: no boxes in the region store')
        if tuple(regions.size) != self.sizes[image_id]:
            (width, height), (w, h) = self.sizes[image_id], regions.size
            raise ValueError(f'image {image_id}: {width}×{height} in the annotations, {w}×{h} in the region store')
        inputs = dict(image_inputs(regions), caption=self._words[number], phrases=self._ends[number])
        sample = BaseDataElement(metainfo=dict(caption_id=caption_id, image_id=image_id, size=regions.size))
        boxes = self._phrase_boxes(number)
        if self._captions is None:
            inputs['targets'] = phrase_targets(regions.boxes, boxes, self.min_iou)
        else:
            caption, phrases = self._captions[number]
            sample.regions = regions.boxes
            sample.phrases = [
                dict(text=' '.join(caption.caption.words[phrase.start : phrase.end]), types=phrase.types, boxes=box)
                for phrase, box in zip(phrases, boxes)
            ]
        return dict(inputs=inputs, data_samples=sample)

    def _phrase_boxes(self, number: int) -> list[Tensor]:
        first, last = self._ends.ends[number : number + 2].tolist()
        return [self._boxes[i].float().view(-1, 4) for i in range(first, last)]


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
