"""Data sets of captions: COCO, Flickr and VATEX, with the features of regions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from mmengine.logging import print_log

from mmattn.language.regions.datasets import ImageTextDataset
from mmattn.language.text.vocabulary import UNK, Vocabulary
from mmattn.registry import DATASETS
from mmattn.utils.checks import check_count, check_counts
from mmattn.utils.faults import Faults, FaultsError

from .annotations import (
    MIN_COUNT,
    Annotation,
    caption_words,
    frequent_words,
    read_annotations,
    read_attributes,
    select_splits,
)
from .caption_metric import NO_CIDER
from .cider import CiderD
from .transforms import encode_captions


class CaptionDataset(ImageTextDataset):
    """Base of the data sets of images or videos with region features and captions. See :class:`COCOCaptionDataset`."""

    paths = *ImageTextDataset.paths, 'vocab_file', 'attributes'

    def __init__(
        self,
        ann_file: str,
        regions: Any,
        split: str | None = None,
        vocab_file: str | None = None,
        vocab_splits: Sequence[str] | None = None,
        *,
        min_count: int = MIN_COUNT,
        max_words: int = 16,
        captions_per_image: int = 5,
        attributes: str | None = None,
        num_attributes: int = 20,
        oracle_attributes: bool = False,
        **options: Any,
    ) -> None:
        check_counts(max_words=max_words, captions_per_image=captions_per_image, num_attributes=num_attributes)
        check_count('min_count', min_count, 0)
        if oracle_attributes and (attributes is not None or not options.get('test_mode')):
            raise ValueError('oracle_attributes requires test_mode=True and attributes=None')
        self.split, self.vocab_file, self.vocab_splits = split, vocab_file or ann_file, vocab_splits
        self.min_count, self.max_words, self.captions_per_image = min_count, max_words, captions_per_image
        self.attributes, self.num_attributes, self.oracle_attributes = attributes, num_attributes, oracle_attributes
        super().__init__(ann_file, regions, **options)

    def default_pipeline(self) -> list[dict]:
        """Load the regions of an image and, in training, choose captions and convert them to numbers."""
        captions = [] if self.test_mode else [dict(type='mmattn.EncodeCaptions')]
        return [dict(type='mmattn.LoadRegions', allow_empty=False), *captions, dict(type='mmattn.PackText')]

    def load_data_list(self) -> list[dict]:
        """Read the captions and attributes of the images, and count the words of the captions."""
        published = read_annotations(self.ann_file)
        splits = None if self.split is None else [self.split]
        annotations = select_splits('split', published, splits, self.ann_file)
        if not annotations[0].captions and (not self.test_mode or self.oracle_attributes):
            raise FaultsError(self.ann_file, 'no captions, which training and oracle attributes require')
        counted = published if self.vocab_file == self.ann_file else read_annotations(self.vocab_file)
        counted = select_splits('vocab_splits', counted, self.vocab_splits, self.vocab_file, every=True)
        meta: dict[str, Any] = (
            dict(symbols=frequent_words(counted, self.min_count), max_words=self.max_words) | self._metainfo
        )
        self._metainfo, self.vocabulary = meta, Vocabulary(meta['symbols'])
        self.sources = dict(symbols=self.vocab_file)
        self.needs = dict(vocab_size=(len(self.vocabulary), self.vocab_file))
        self.shared.update(
            vocabulary=self.vocabulary, max_words=meta['max_words'], captions_per_image=self.captions_per_image
        )
        self._open_regions(self.ann_file, [annotation.image_id for annotation in annotations])
        texts = [caption for annotation in annotations for caption in annotation.captions]
        self._check_spaces(self.ann_file, texts)
        if self.test_mode:
            warn_of_equal_references(self.ann_file, [annotation.captions for annotation in annotations])
        entries = [self._entry(annotation) for annotation in annotations]
        if self.attributes is not None:
            if not meta['symbols']:
                fault = f'no word occurs more than {self.min_count} times, so attributes have no numbers; see min_count'
                raise FaultsError(self.vocab_file, fault)
            numbers = read_attributes(self.attributes, self.image_ids, self.vocabulary, self.num_attributes)
            for entry in entries:
                entry['attributes'] = numbers[entry['image_id']]
            self._metainfo['num_attributes'] = self.num_attributes
        return entries

    def get_data_info(self, idx: int) -> dict[str, Any]:
        """Get an entry for the transforms, with its ``index``, by which the reward knows its references."""
        info = super().get_data_info(idx)
        return info | dict(index=int(info['sample_idx']))

    def _entry(self, annotation: Annotation) -> dict[str, Any]:
        """Keep an image with the published captions in tests, and with their words, joined, in training."""
        words = [' '.join(words) for words in annotation.words]
        if not self.test_mode:
            return dict(image_id=annotation.image_id, words=words)
        entry: dict[str, Any] = dict(image_id=annotation.image_id, words=words, captions=annotation.captions)
        if self.oracle_attributes:
            numbers = dict.fromkeys(number for line in words for number in self.vocabulary.encode(line)[:-1])
            entry['attributes'] = [number for number in numbers if number != UNK]
        return entry

    def check_for_model(self, model: Any, faults: Faults) -> None:
        """Add the faults of text and regions, and what the model does not accept. Region features are not read.

        The model must have ``reads_attributes`` and ``num_features``, the width of the regions or None.
        """
        super().check_for_model(model, faults)
        if model.reads_attributes and self.attributes is None and not self.oracle_attributes:
            faults.add(
                self.ann_file, 'the model reads attributes, but the data set has none: set its option attributes'
            )

    def references(self) -> list[list[list[int]]]:
        """List the captions of each image as numbers, cut as in training and with ``</s>``, for the reward."""
        return [encode_captions(self.get_data_info(i)) for i in range(len(self))]


def warn_of_equal_references(path: str, captions: Sequence[Sequence[str]]) -> None:
    """Log a warning if CIDEr-D of these images cannot be computed."""
    references = [[caption_words(text) for text in texts] for texts in captions]
    words = {frozenset(word for caption in captions for word in caption) for captions in references}
    if len(words) == 1 and all(references) and CiderD(references).is_zero:
        print_log(f'{path}: {NO_CIDER.format(len(references))}', 'current', logging.WARNING)


@DATASETS.register_module()
class COCOCaptionDataset(CaptionDataset):
    """Images with captions: COCO, Flickr8k and Flickr30k, in Karpathy's splits or in the layout of COCO.

    A training sample is an image with ``captions_per_image`` captions. If the image has fewer or more, all are repeated
    as often as they fit, and the rest are chosen at random. With the samplers of mmattn, the choice depends only on
    seed and position. A test sample is an image with its published captions.

    The vocabulary has the four special symbols and the frequent words. Other words are ``<unk>``. ``metainfo`` holds
    the vocabulary, and checkpoints contain it. Faults of a file, such as an image that is not in the region store, are
    a ValueError, whose message lists those of the file.

    Args:
        ann_file (str): ``dataset_*.json`` of Karpathy's splits, or ``captions_*.json`` of COCO, possibly ``.gz``.
        regions (str or object): region store or its path. ``store[image_id]`` has ``features``, float32 ``(N, D)``,
            ``boxes``, float32 ``(N, 4)`` or None, and ``size``, and ``image_id in store`` works.
        split (str, optional): 'train', which includes 'restval', 'val' or 'test'. None for a file without splits.
        vocab_file (str, optional): annotation file whose words make the vocabulary. Set it if validation data are in
            another file than training data. Defaults to ``ann_file``.
        vocab_splits (sequence of str, optional): splits of ``vocab_file`` whose words are counted, such as
            ``('train',)``. Defaults to all, including the test captions, as in the published code.
        min_count (int): words that occur ``min_count`` times or less are unknown. Defaults to 5.
        max_words (int): training captions are cut after ``max_words`` words. Defaults to 16.
        captions_per_image (int): captions of a training sample. Defaults to 5.
        attributes (str, optional): file for :func:`mmattn.language.captioning.annotations.read_attributes`.
        num_attributes (int): maximum number of attributes per image. The best are used. Defaults to 20.
        oracle_attributes (bool): with ``test_mode``, use all words of the captions as attributes. Defaults to False.
        **options: those of mmengine's ``BaseDataset``, such as ``data_root``, the folder of the files, ``indices`` and
            ``test_mode``, for samples of tests, whose captions may be absent from the whole file. ``pipeline`` defaults
            to :meth:`~CaptionDataset.default_pipeline`.

    Example:
        >>> import json
        >>> import torch
        >>> from types import SimpleNamespace
        >>> from mmattn.utils.files import write_text
        >>> sentences = [dict(raw=text + '.', tokens=text.lower().split()) for text in ('A dog', 'A dog runs')]
        >>> image = dict(cocoid=42, split='train', sentences=sentences)
        >>> write_text('dataset_coco.json', json.dumps(dict(images=[image])))
        >>> store = {'42': SimpleNamespace(features=torch.zeros(9, 16), boxes=None, size=(640, 480))}
        >>> data = COCOCaptionDataset('dataset_coco.json', store, 'train', min_count=1, captions_per_image=2)
        >>> data.metainfo['symbols'], data[0]['inputs']['captions']
        (['a', 'dog'], tensor([[4, 5, 2, 1],
                [4, 5, 3, 2]]))
    """


@DATASETS.register_module()
class VATEXDataset(CaptionDataset):
    """Videos with English captions: VATEX. A region is a time step.

    Args:
        ann_file (str): VATEX's list of videos, such as ``vatex_training_v1.0.json``.
        regions (str or object): as in :class:`COCOCaptionDataset`. The ids are ``videoID``.
        vocab_file (str, optional): training file, needed for validation and test. Defaults to ``ann_file``.
        min_count, max_words, captions_per_image, options: as in :class:`COCOCaptionDataset`.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> from mmattn.utils.files import write_text
        >>> write_text('vatex.json', '[{"videoID": "x_000_010", "enCap": ["A man sings.", "He sings."]}]')
        >>> store = {'x_000_010': SimpleNamespace(features=torch.zeros(32, 1024), boxes=None, size=None)}
        >>> VATEXDataset('vatex.json', store, min_count=0, captions_per_image=2)[0]['inputs']['captions']
        tensor([[5, 7, 4, 2],
                [6, 4, 2, 1]])
    """
