"""Attributes of images: words that a detector found, as the semantic input of a captioning model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.logging import print_log

from mmattn.language.text.annotation_files import raise_faults, read_json
from mmattn.language.text.vocabulary import UNK, Vocabulary
from mmattn.utils.checks import check_count


def read_attributes(
    path: str | Path, image_ids: Sequence[str], vocabulary: Vocabulary, num_attributes: int = 20
) -> dict[str, list[int]]:
    """Return the best attributes of each image as numbers of the vocabulary, the best first.

    The log has the number of attributes among them that are not in the vocabulary, which are left out, and the number
    of images without attributes.

    Args:
        path (str or Path): JSON, possibly ``.gz``: ``{image id: [[word, score], …]}``. Scores have no other use than
            the order; equal scores keep the order of the file.
        image_ids (sequence of str): the images to return.
        vocabulary (Vocabulary): that of the captions.
        num_attributes (int): how many at most. Defaults to 20.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: it has no attribute of these images, or another layout; the message lists all faults.

    Example:
        >>> from mmattn.utils.files import write_text
        >>> write_text('attributes.json', '{"42": [["dog", 0.5], ["cat", 0.9], ["emu", 0.1]]}')
        >>> read_attributes('attributes.json', ['42', '43'], Vocabulary(['cat', 'dog']))
        {'42': [4, 5], '43': []}
    """
    check_count('num_attributes', num_attributes)
    data = read_json(path)
    if not isinstance(data, dict):
        raise_faults(path, ['not an object {image id: [[word, score], …]}'])
    raise_faults(path, [f'image {name}: not [[word, score], …]' for name, each in data.items() if not _is_valid(each)])
    found: dict[str, list[int]] = {}
    dropped = 0
    for name in image_ids:
        best = sorted(data.get(name, []), key=lambda pair: -pair[1])[:num_attributes]
        numbers = dict.fromkeys(vocabulary.encode(word)[0] for word, _ in best)
        found[name] = [number for number in numbers if number != UNK]
        dropped += sum(vocabulary.encode(word)[0] == UNK for word, _ in best)
    empty = [name for name, numbers in found.items() if not numbers]
    if len(empty) == len(found):
        raise_faults(path, [f'no attribute of any of the {len(found):,} images that is in the vocabulary'])
    print_log(
        f'{path}: {sum(map(len, found.values())):,} attributes of {len(found):,} images; {dropped:,} are left out '
        f'because they are not in the vocabulary; {len(empty):,} images have none',
        'current',
    )
    return found


def _is_valid(entry: Any) -> bool:
    """Return whether an entry is a list of pairs of a word and a finite score."""
    return isinstance(entry, list) and all(
        isinstance(pair, list)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and pair[0].split() == [pair[0]]
        and isinstance(pair[1], int | float)
        and math.isfinite(pair[1])
        for pair in entry
    )
