"""Data sets of captions: COCO, Flickr and VATEX, with the features of regions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from mmengine.logging import print_log
from mmengine.structures import BaseDataElement
from torch.nn.utils.rnn import pad_sequence

from mmattn.engine.data_sampling import index_generator
from mmattn.language.regions.image_inputs import check_images, check_regions, image_inputs, open_store
from mmattn.language.regions.region_store import RegionStore
from mmattn.language.text.annotation_files import in_folder
from mmattn.language.text.text_dataset import Indices, PackedSequences, TextDataset, select_indices
from mmattn.language.text.vocabulary import PAD, UNK, Vocabulary
from mmattn.language.text.words import unspaced_fault
from mmattn.registry import DATASETS
from mmattn.utils.checks import check_count, check_counts
from mmattn.utils.faults import Faults

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


class CaptionDataset(TextDataset):
    """Base of the data sets of images or videos with region features and captions. See :class:`COCOCaptionDataset`."""

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
        test_mode: bool = False,
        data_root: str = '',
        indices: Indices = None,
    ) -> None:
        check_counts(max_words=max_words, captions_per_image=captions_per_image, num_attributes=num_attributes)
        check_count('min_count', min_count, 0)
        if oracle_attributes and (attributes is not None or not test_mode):
            raise ValueError('oracle_attributes requires test_mode=True and attributes=None')
        names = ann_file, vocab_file or ann_file, regions, attributes
        path, words_path, regions, attributes = in_folder(data_root, *names)
        faults, annotations, symbols = Faults(), [], []
        with faults.catch(path):
            published = read_annotations(path)
            annotations = select_splits('split', published, None if split is None else [split], path)
            annotations = select_indices(annotations, indices)
            if not annotations[0].captions and (not test_mode or oracle_attributes):
                faults.add(path, 'no captions, which training and oracle attributes require')
        with faults.catch(words_path):
            counted = published if words_path == path and annotations else read_annotations(words_path)
            counted = select_splits('vocab_splits', counted, vocab_splits, words_path, every=True)
            symbols = frequent_words(counted, min_count)
        self.image_ids = self.ids = [annotation.image_id for annotation in annotations]
        with faults.catch(regions):
            self.store = open_store(regions)
            check_images(self.store, regions, path, self.ids, faults)
        numbers: dict[str, list[int]] = {}
        if attributes is not None and not symbols and not faults:
            faults.add(
                words_path, f'no word occurs more than {min_count} times, so attributes have no numbers; see min_count'
            )
        if attributes is not None and symbols and self.ids:
            with faults.catch(attributes):
                numbers = read_attributes(attributes, self.ids, Vocabulary(symbols), num_attributes)
        faults.check()
        self.vocabulary = Vocabulary(symbols)
        self.metainfo = dict(symbols=symbols, max_words=max_words)
        self.needs = dict(vocab_size=(len(self.vocabulary), words_path))
        self.sources = dict(symbols=words_path)
        if isinstance(regions, str) and isinstance(self.store, RegionStore):
            self.needs['num_features'] = (self.store.num_features, regions)
        self.captions_per_image = captions_per_image
        self.test_mode = test_mode
        self._paths = path, regions
        self._unspaced = unspaced_fault([caption for annotation in annotations for caption in annotation.captions])
        self._captions = [annotation.captions for annotation in annotations] if test_mode else None
        self._first = [0]
        for annotation in annotations:
            self._first.append(self._first[-1] + len(annotation.words))
        self._numbers = PackedSequences(
            self.vocabulary.encode(' '.join(words[:max_words]))
            for annotation in annotations
            for words in annotation.words
        )
        self._attributes: PackedSequences | None = None
        if attributes is not None:
            self._attributes = PackedSequences(numbers[name] for name in self.ids)
            self.metainfo['num_attributes'] = num_attributes
        elif oracle_attributes:
            self._attributes = PackedSequences(self._encode_words(annotation) for annotation in annotations)

    def check_for_model(self, model: Any, faults: Faults) -> None:
        """Add the faults of regions, and what the model does not accept. Region features are not read.

        The model must have ``reads_attributes`` and ``num_features``, the width of the regions or None.
        """
        super().check_for_model(model, faults)
        path, regions = self._paths
        if self._unspaced:
            faults.add(path, self._unspaced)
        if model.reads_attributes and self._attributes is None:
            faults.add(path, 'the model reads attributes, but the data set has none: set its option attributes')
        if self._captions is not None:
            warn_of_equal_references(path, self._captions)
        check_regions(self.store, regions, self.ids, faults)

    def _encode_words(self, annotation: Annotation) -> list[int]:
        numbers = (self.vocabulary.encode(' '.join(words))[:-1] for words in annotation.words)
        return [number for number in dict.fromkeys(n for caption in numbers for n in caption) if number != UNK]

    def __len__(self) -> int:
        return len(self.ids)

    def references(self) -> list[list[list[int]]]:
        """List the captions of each image as numbers, cut as in training and with ``</s>``, for the reward."""
        captions = [self._numbers[i].tolist() for i in range(self._first[-1])]
        return [captions[first:last] for first, last in zip(self._first, self._first[1:])]

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Load ``inputs`` and ``data_samples`` of an image. An image without regions is a ValueError.

        ``inputs`` has 'features', float32 ``(N, D)``. If the store has boxes, it also has 'boxes', float32 ``(N, 4)``,
        and 'sizes', width and height, int64 ``(2)``. If requested, it has 'attributes', int64 ``(A)``, possibly empty.
        In training it has 'captions', int64 ``(captions_per_image, L)``, padded, with ``</s>``. The data sample has
        ``image_id``, ``index`` in the data set, ``size`` (width, height) and, in tests, the published ``captions``.
        """
        number = range(len(self))[index]
        name = self.ids[number]
        regions = self.store[name]
        if not len(regions.features):
            raise ValueError(f'image {name}: no region in the region store')
        inputs = image_inputs(regions, None if self._attributes is None else self._attributes[number])
        sample = BaseDataElement(metainfo=dict(image_id=name, index=number, size=regions.size))
        if self._captions is not None:
            sample.captions = self._captions[number]
        else:
            chosen = [self._numbers[i] for i in self._choose(index, number)]
            inputs['captions'] = pad_sequence(chosen, batch_first=True, padding_value=PAD)
        return dict(inputs=inputs, data_samples=sample)

    def _choose(self, index: int, number: int) -> list[int]:
        captions = range(self._first[number], self._first[number + 1])
        times, rest = divmod(self.captions_per_image, len(captions))
        return [*captions] * times + sorted(index_generator(index).sample(captions, rest))


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
    a ValueError, whose message lists all of them.

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
        test_mode (bool): samples for tests. Captions may be absent from the whole file. Defaults to False.
        data_root (str): folder of the files. Defaults to '', the working directory.
        indices (int or sequence of int, optional): use these images, see :func:`select_indices`. Defaults to None.

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
        min_count, max_words, captions_per_image, test_mode, data_root, indices: as in :class:`COCOCaptionDataset`.

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
