"""Data set of phrase grounding: captions whose phrases are linked to boxes, with the features of regions."""

from __future__ import annotations

from typing import Any

from mmattn.language.regions.datasets import ImageTextDataset
from mmattn.language.text.vocabulary import Vocabulary
from mmattn.registry import DATASETS
from mmattn.utils.checks import check_fraction
from mmattn.utils.faults import FaultsError

from .entities import Entities, ImageCaption, Phrase, rank_words, read_entities


@DATASETS.register_module()
class EntitiesDataset(ImageTextDataset):
    """Captions with phrases and their boxes: Flickr30k Entities.

    A sample is a caption with its phrases that have a box. Captions without such a phrase are left out. The vocabulary
    has the four special symbols and all words of the captions in ``vocab_file``. An unknown word is read as padding,
    whose vector is 0. ``metainfo`` holds the vocabulary, and checkpoints contain it. Faults of a file, such as an image
    that is not in the region store, are a ValueError, whose message lists those of the file.

    Args:
        ann_file (str): file that ``tools/dataset_converters/flickr_entities.py`` has written.
        regions (str or object): as in :class:`mmattn.language.captioning.COCOCaptionDataset`, with boxes.
        vocab_file (str, optional): file of the training data, whose words make the vocabulary. Defaults to
            ``ann_file``.
        min_iou (float): a region is a target of a phrase if its IoU with a box of the entity is at least ``min_iou``,
            above 0 and up to 1. Defaults to 0.5.
        **options: those of mmengine's ``BaseDataset``, such as ``data_root``, the folder of the files, ``indices`` and
            ``test_mode``, for samples of tests. ``pipeline`` defaults to :meth:`default_pipeline`.

    Example:
        >>> import json
        >>> import torch
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

    paths = *ImageTextDataset.paths, 'vocab_file'

    def __init__(
        self,
        ann_file: str,
        regions: Any,
        vocab_file: str | None = None,
        min_iou: float = 0.5,
        **options: Any,
    ) -> None:
        check_fraction('min_iou', min_iou)
        if not min_iou:
            raise ValueError('min_iou must be above 0; got 0')
        self.vocab_file, self.min_iou = vocab_file or ann_file, min_iou
        super().__init__(ann_file, regions, **options)

    def default_pipeline(self) -> list[dict]:
        """Load the regions, and convert the caption to numbers and, in training, the boxes to targets."""
        kinds = ['LoadRegions', 'EncodePhrases', *([] if self.test_mode else ['PhraseTargets']), 'PackText']
        return [dict(type=f'mmattn.{kind}') for kind in kinds]

    def load_data_list(self) -> list[dict]:
        """Read the captions with a phrase that has a box, and rank the words of all captions."""
        entities = read_entities(self.ann_file)
        grounded = [(caption, phrases) for caption in entities.captions if (phrases := entities.grounded(caption))]
        if not grounded:
            raise FaultsError(self.ann_file, 'no caption with a phrase that has a box')
        counted = entities if self.vocab_file == self.ann_file else read_entities(self.vocab_file)
        self._metainfo = dict(symbols=rank_words(counted)) | self._metainfo
        self.vocabulary = Vocabulary(self._metainfo['symbols'])
        self.sources = dict(symbols=self.vocab_file)
        self.needs = dict(vocab_size=(len(self.vocabulary), self.vocab_file))
        self.shared.update(vocabulary=self.vocabulary, min_iou=self.min_iou)
        image_ids = [caption.image_id for caption, _ in grounded]
        self._open_regions(self.ann_file, image_ids, allow_empty=True, sizes=entities.sizes)
        self._check_spaces(self.ann_file, [' '.join(caption.caption.words) for caption, _ in grounded])
        return [_entry(entities, *pair) for pair in grounded]


def _entry(entities: Entities, caption: ImageCaption, phrases: list[Phrase]) -> dict[str, Any]:
    boxes = entities.boxes[caption.image_id]
    return dict(
        caption_id=caption.caption_id,
        image_id=caption.image_id,
        image_size=entities.sizes[caption.image_id],
        words=' '.join(caption.caption.words),
        phrases=[phrase._asdict() | dict(boxes=boxes[phrase.entity]) for phrase in phrases],
    )
