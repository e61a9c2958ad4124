"""Check of the files of caption data sets before training: annotations, regions and attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmattn.language.regions.image_inputs import warn_of_shared_images, with_region_faults
from mmattn.language.text.annotation_files import in_folder, noting
from mmattn.language.text.vocabulary import Vocabulary

from .annotations import Annotation, read_annotations, read_attributes
from .datasets import MIN_COUNT, frequent_words, of_splits


def find_faults(cfgs: Sequence[dict], model: Any) -> dict[str, list[str]]:
    """Return the faults of data sets and what does not fit the model, by path. Region features are not read.

    Args:
        cfgs (sequence of dict): configs of data sets of captions.
        model (object): ``num_features``, the width of the regions that it accepts, or None, and ``reads_attributes``.

    Returns:
        dict[str, list[str]]: faults of annotation files, region stores and attribute files.

    Example:
        >>> from types import SimpleNamespace
        >>> model = SimpleNamespace(num_features=2048, reads_attributes=False)
        >>> find_faults([dict(ann_file='captions.json', regions='regions')], model)['captions.json']
        ['No such file or directory']
    """
    faults: dict[str, list[str]] = {}
    files: dict[str, list[Annotation]] = {}
    images: dict[str, list[str]] = {}  # by region store
    used: dict[bool, list[str]] = {False: [], True: []}  # by test_mode
    for cfg in cfgs:
        folder, ann_file = cfg.get('data_root', ''), cfg['ann_file']
        paths = in_folder(folder, ann_file, cfg.get('vocab_file') or ann_file, cfg['regions'], cfg.get('attributes'))
        path, words_path, regions, attributes = paths
        for each in (path, words_path):
            if each not in files and each not in faults:
                with noting(faults, each):
                    files[each] = read_annotations(each)
        ids: list[str] = []
        if path in files:
            with noting(faults, path):
                splits = [cfg['split']] if cfg.get('split') else None
                ids = [each.image_id for each in of_splits('split', files[path], splits, path)]
                used[cfg.get('test_mode', False)] += ids
        if isinstance(regions, str):
            images.setdefault(regions, []).extend(ids)
        if model.reads_attributes and attributes is None and not cfg.get('oracle_attributes'):
            message = 'the model reads attributes, but the data set has none: set its option attributes'
            faults.setdefault(path, []).append(message)
        if attributes is not None and ids and words_path in files:
            with noting(faults, attributes):
                words = of_splits('vocab_splits', files[words_path], cfg.get('vocab_splits'), words_path, every=True)
                vocabulary = Vocabulary(frequent_words(words, cfg.get('min_count', MIN_COUNT)))
                read_attributes(attributes, ids, vocabulary, cfg.get('num_attributes', 20))
    warn_of_shared_images(used[False], used[True])
    return with_region_faults(faults, images, model.num_features)
