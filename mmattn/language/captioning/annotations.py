"""Read files of published captions and attributes, and split captions into words."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.logging import print_log

from mmattn.language.text.annotation_files import check_text, read_json
from mmattn.language.text.vocabulary import SPECIALS, UNK, Vocabulary
from mmattn.language.text.words import normalize_unicode
from mmattn.utils.checks import check_count
from mmattn.utils.faults import Faults, FaultsError

PUNCTUATION = re.compile(r"""[.?!,:;`"(){}\[\]\n]|''|--""")


def caption_words(text: str) -> list[str]:
    """Split a caption into words, in lower case and without punctuation.

    Example:
        >>> caption_words("A man's T-shirt - it is (nearly) white.")
        ['a', "man's", 't-shirt', 'it', 'is', 'nearly', 'white']
    """
    return [word for word in PUNCTUATION.sub(' ', normalize_unicode(text).lower()).split() if word not in ('-', "'")]


SPLITS = ('train', 'restval', 'val', 'test')
MIN_COUNT = 5


class Annotation(NamedTuple):
    """An image or a video with its captions."""

    image_id: str  # in the region store
    split: str | None  # 'train', 'restval', 'val' or 'test', or None if the file has no splits
    captions: list[str]  # as published
    words: list[list[str]]  # of each caption


def read_annotations(path: str | Path) -> list[Annotation]:
    """Read the images of an annotation file, in the order of the file.

    Three layouts are accepted. ``dataset_*.json`` of Karpathy's splits contains words. Its ids are ``cocoid``, or the
    file name without suffix. COCO's ``captions_*.json`` (or ``image_info_*.json``, without captions) and VATEX's list
    of videos contain text, which :func:`mmattn.language.captioning.caption_words` splits into words.

    Raises:
        ValueError: the layout is another, an image occurs twice, a caption has no words or a reserved word, or only
            some images have captions. The message lists all faults.
    """
    data = read_json(path)
    faults = Faults()
    annotations = list(_parse(data, path, faults))
    counts = Counter(annotation.image_id for annotation in annotations)
    faults.add(path, *(f'image {name}: {count} times in the file' for name, count in counts.items() if count > 1))
    captioned = any(annotation.captions for annotation in annotations)
    for annotation in annotations:
        where = f'image {annotation.image_id}'
        if annotation.split not in (None, *SPLITS):
            faults.add(path, f'{where}: its split must be one of {", ".join(SPLITS)}; got {annotation.split!r}')
        if not annotation.captions and captioned:
            faults.add(path, f'{where}: no caption')
        for text, words in zip(annotation.captions, annotation.words):
            if not words:
                faults.add(path, f'{where}: the caption {text!r} has no words')
            wrong = [word for word in words if not word or ' ' in word or word in SPECIALS]
            if wrong:
                faults.add(path, f'{where}: {wrong[0]!r} is not a word or is reserved, in the caption {text!r}')
    if not annotations and not faults:
        faults.add(path, 'no image')
    faults.check()
    return annotations


def select_splits(
    name: str, annotations: Sequence[Annotation], splits: Sequence[str] | None, path: str | Path, every: bool = False
) -> list[Annotation]:
    """Select annotations by split. None selects all, but without ``every`` the file must have no splits."""
    if splits is None and every:
        return list(annotations)
    in_file = {_merged_split(annotation) for annotation in annotations}
    requested = {None} if splits is None else set(splits)
    if not requested <= in_file:
        accepted = 'None, because it has no splits' if in_file == {None} else f'of {sorted(map(str, in_file))}'
        raise FaultsError(path, f'{name} must be {accepted}; got {splits}')
    return [annotation for annotation in annotations if _merged_split(annotation) in requested]


def _merged_split(annotation: Annotation) -> str | None:
    return 'train' if annotation.split == 'restval' else annotation.split


def frequent_words(annotations: Sequence[Annotation], min_count: int) -> list[str]:
    """List the words that occur more than ``min_count`` times, the most frequent first."""
    counts = Counter(word for annotation in annotations for words in annotation.words for word in words)
    symbols = sorted((word for word in counts if counts[word] > min_count), key=lambda word: (-counts[word], word))
    unknown = sum(counts.values()) - sum(counts[word] for word in symbols)
    print_log(
        f'vocabulary of captions: {len(symbols):,} words that occur more than {min_count} times; {unknown:,} of '
        f'{sum(counts.values()):,} words of the captions are unknown',
        'current',
    )
    return symbols


def _parse(data: Any, path: str | Path, faults: Faults) -> Iterable[Annotation]:
    if isinstance(data, list):
        return faults.parse(path, data, _parse_video, 'entry')
    images = data.get('images') if isinstance(data, dict) else None
    if not isinstance(images, list):
        faults.add(
            path, "neither an object with a list 'images' (Karpathy's splits, COCO) nor a list of videos (VATEX)"
        )
        return []
    if 'annotations' not in data and any(isinstance(image, dict) and 'sentences' in image for image in images):
        return faults.parse(path, images, _parse_karpathy, 'images')
    names = faults.parse(path, images, lambda image: str(image['id']), 'images')
    captions: dict[str, list[str]] = {name: [] for name in names}
    for image, text in faults.parse(path, data.get('annotations', []), _parse_coco, 'annotations'):
        if image in captions:
            captions[image].append(text)
        else:
            faults.add(path, f"image {image}: has a caption, but is not in 'images'")
    return [_with_words(name, captions[name]) for name in names]


def _parse_karpathy(image: dict) -> Annotation:
    name = str(image['cocoid']) if 'cocoid' in image else Path(image['filename']).stem
    sentences = image['sentences']
    words = [sentence['tokens'] for sentence in sentences]
    if not all(isinstance(caption, list) and all(isinstance(word, str) for word in caption) for caption in words):
        raise ValueError("'tokens' must be lists of str")
    return Annotation(name, check_text(image['split']), [check_text(sentence['raw']) for sentence in sentences], words)


def _parse_coco(annotation: dict) -> tuple[str, str]:
    return str(annotation['image_id']), check_text(annotation['caption'])


def _parse_video(video: dict) -> Annotation:
    captions = video.get('enCap', [])
    if not isinstance(captions, list):
        raise TypeError(f"'enCap' must be a list; got {captions!r}")
    return _with_words(check_text(video['videoID']), [check_text(text) for text in captions])


def _with_words(name: str, captions: list[str]) -> Annotation:
    return Annotation(name, None, captions, [caption_words(text) for text in captions])


def read_attributes(
    path: str | Path, image_ids: Sequence[str], vocabulary: Vocabulary, num_attributes: int
) -> dict[str, list[int]]:
    """Read the best attributes of each image as numbers of the vocabulary, the best first.

    The file is JSON, possibly ``.gz``: ``{image id: [[word, score], …]}``. Scores only order the attributes. Equal
    scores keep the order of the file. Attributes outside the vocabulary are left out. The log counts them, and the
    images without attributes. A ValueError lists all faults, if the layout is another, or if no attribute of these
    images is in the vocabulary.
    """
    check_count('num_attributes', num_attributes)
    data = read_json(path)
    if not isinstance(data, dict):
        raise FaultsError(path, 'not an object {image id: [[word, score], …]}')
    Faults(
        path, [f'image {name}: not [[word, score], …]' for name, pairs in data.items() if not _is_valid(pairs)]
    ).check()
    attributes: dict[str, list[int]] = {}
    dropped = 0
    for name in image_ids:
        best = sorted(data.get(name, []), key=lambda pair: -pair[1])[:num_attributes]
        numbers = dict.fromkeys(vocabulary.encode(word)[0] for word, _ in best)
        attributes[name] = [number for number in numbers if number != UNK]
        dropped += sum(vocabulary.encode(word)[0] == UNK for word, _ in best)
    empty = [name for name, numbers in attributes.items() if not numbers]
    if len(empty) == len(attributes):
        raise FaultsError(path, f'no attribute of any of the {len(attributes):,} images that is in the vocabulary')
    count = sum(map(len, attributes.values()))
    print_log(
        f'{path}: {count:,} attributes of {len(attributes):,} images; {dropped:,} are left out because they are not in '
        f'the vocabulary; {len(empty):,} images have none',
        'current',
    )
    return attributes


def _is_valid(entry: Any) -> bool:
    return isinstance(entry, list) and all(
        isinstance(pair, list)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and pair[0].split() == [pair[0]]
        and isinstance(pair[1], int | float)
        and math.isfinite(pair[1])
        for pair in entry
    )
