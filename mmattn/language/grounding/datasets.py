"""Data set of phrase grounding: captions whose phrases are linked to boxes, with the features of regions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.structures import BaseDataElement
from torch import Tensor

from mmattn.language.layers.object_counter import box_iou
from mmattn.language.regions.image_inputs import image_inputs, open_store, warn_of_shared_images, with_region_faults
from mmattn.language.text.annotation_files import in_folder
from mmattn.language.text.text_dataset import Indices, PackedSequences, TextDataset, select_indices
from mmattn.language.text.vocabulary import PAD, SPECIALS, Vocabulary
from mmattn.registry import DATASETS
from mmattn.utils.checks import check_number
from mmattn.utils.faults import collect_faults, raise_faults

from .entities import Entities, rank_words, read_entities


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
        check_number('min_iou', min_iou, 0, 1)
        if not min_iou:
            raise ValueError('min_iou must be above 0; got 0')
        path, words_path, regions = in_folder(data_root, ann_file, vocab_file, regions)
        entities = read_entities(path)
        symbols = rank_words(entities if vocab_file is None else read_entities(words_path))
        self.vocabulary = Vocabulary(symbols)
        self.metainfo = dict(symbols=symbols)
        self.min_iou, self.test_mode = min_iou, test_mode
        grounded = [(caption, phrases) for caption in entities.captions if (phrases := entities.grounded(caption))]
        grounded = select_indices(grounded, indices)
        self.ids = [(caption.caption_id, caption.image_id) for caption, _ in grounded]
        self.sizes = entities.sizes
        self.store = open_store(regions)
        missing = dict.fromkeys(name for _, name in self.ids if name not in self.store)
        faults = [f'image {name}: not in the region store' for name in missing]
        raise_faults(path, faults if grounded else ['no caption with a phrase that has a box'])
        self._words = PackedSequences(word_numbers(self.vocabulary, caption.caption.words) for caption, _ in grounded)
        self._ends = PackedSequences([phrase.end - 1 for phrase in phrases] for _, phrases in grounded)
        # The coordinates of the boxes of each phrase, phrase by phrase.
        self._boxes = PackedSequences(
            [int(x) for box in entities.boxes[caption.image_id][phrase.entity] for x in box]
            for caption, phrases in grounded
            for phrase in phrases
        )
        self._captions = grounded if test_mode else None

    @classmethod
    def vocabulary_source(cls, cfg: dict) -> tuple[Path, Any]:
        """Locate the file whose words are the vocabulary. No other setting has an effect."""
        return Path(cfg.get('data_root', ''), cfg.get('vocab_file') or cfg['ann_file']), None

    @classmethod
    def read_vocabulary(cls, cfg: dict) -> Vocabulary:
        """Read the vocabulary of a data set with this config."""
        return Vocabulary(rank_words(read_entities(cls.vocabulary_source(cfg)[0])))

    @classmethod
    def find_faults(cls, cfgs: Sequence[dict], model: Any) -> dict[str, list[str]]:
        """Find faults of files and regions, and conflicts with ``num_features`` of the model, by path."""
        faults: dict[str, list[str]] = {}
        images: dict[str, list[str]] = {}  # by region store
        sizes: dict[str, dict[str, tuple[int, int]]] = {}
        files: dict[str, Entities] = {}
        used: dict[bool, list[str]] = {False: [], True: []}  # by test_mode
        for cfg in cfgs:
            path, regions = in_folder(cfg.get('data_root', ''), cfg['ann_file'], cfg['regions'])
            with collect_faults(faults, path):
                files[path] = files.get(path) or read_entities(path)
                used[cfg.get('test_mode', False)] += files[path].sizes
                if isinstance(regions, str):
                    image_ids = [caption.image_id for caption in files[path].captions if files[path].grounded(caption)]
                    images.setdefault(regions, []).extend(image_ids)
                    sizes.setdefault(regions, {}).update(files[path].sizes)
        warn_of_shared_images(used[False], used[True])
        return with_region_faults(faults, images, model.num_features, allow_empty=True, sizes=sizes)

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
