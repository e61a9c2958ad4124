"""Read and prepare Flickr30k Entities: captions whose phrases are linked to boxes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmattn.language.text.annotation_files import check_text, read_json
from mmattn.language.text.vocabulary import SPECIALS
from mmattn.language.text.words import ban_words
from mmattn.utils.checks import check_count, check_counts
from mmattn.utils.faults import Faults, reading

PHRASE = re.compile(r'\[/EN#(?P<id>\d+)(?P<types>(?:/[^\s/\]]+)+) (?P<words>[^][]*)\]')
BRACKETS = re.compile(r'\[(?P<words>[^][]*)\]')
Box = list[int]


class Phrase(NamedTuple):
    """A phrase of a caption: the words ``start`` to ``end`` - 1, at least one."""

    entity: str  # id of the object that the phrase names; '0' is not visible
    types: list[str]  # one or more, such as 'people', 'clothing' or 'scene'
    start: int
    end: int


class Caption(NamedTuple):
    """A caption as the words that a model reads, and its phrases in order."""

    words: list[str]
    phrases: list[Phrase]


class EntityBoxes(NamedTuple):
    """The boxes of an image by entity: left, top, right, bottom in pixels, from 0."""

    size: tuple[int, int]  # width and height of the image
    boxes: dict[str, list[Box]]  # one box or several per entity
    scenes: set[str]  # entities that are the scene
    without: set[str]  # entities that are marked as having no box


class ImageCaption(NamedTuple):
    """A caption of a prepared file."""

    caption_id: str  # id of the image, '#', and the number of the caption from 0, such as '42#0'
    image_id: str  # in the region store
    caption: Caption


class Entities(NamedTuple):
    """Content of a prepared file."""

    captions: list[ImageCaption]  # in the order of the images
    sizes: dict[str, tuple[int, int]]  # width and height of each image
    boxes: dict[str, dict[str, list[Box]]]  # by image and entity

    def grounded(self, caption: ImageCaption) -> list[Phrase]:
        """Select the phrases of a caption that have a box."""
        boxes = self.boxes[caption.image_id]
        return [phrase for phrase in caption.caption.phrases if phrase.entity in boxes]

    def find_boxes(self, image_id: str, caption: Caption) -> list[list[Box]]:
        """Find the boxes of each phrase of a caption with plain brackets. A phrase without a box has none.

        The same words must be a caption of the image, otherwise a ValueError is raised.
        """
        captions = [x.caption for x in self.captions if x.image_id == image_id and x.caption.words == caption.words]
        if not captions:
            raise ValueError(f'image {image_id} has no caption {" ".join(caption.words)!r}')
        entities = {(phrase.start, phrase.end): phrase.entity for match in captions for phrase in match.phrases}
        boxes = self.boxes[image_id]
        return [boxes.get(entities.get((phrase.start, phrase.end), ''), []) for phrase in caption.phrases]


def parse_caption(text: str) -> Caption:
    """Split a caption with brackets, ``[/EN#id/type words]``, into words and phrases.

    :func:`mmattn.language.text.words.ban_words` splits the text inside and outside brackets separately. So removed
    characters do not shift the position of a phrase, and a repeated phrase has the position of its own bracket.
    """
    words, matches = _parse(text, PHRASE, '[/EN#id/type words]')
    phrases = [Phrase(match['id'], match['types'][1:].split('/'), start, end) for match, start, end in matches]
    return Caption(words, phrases)


def parse_phrases(text: str) -> Caption:
    """Split a caption with plain brackets, ``[words]``, into words and phrases without entities and types."""
    words, matches = _parse(text, BRACKETS, '[words]')
    return Caption(words, [Phrase('', [], start, end) for _, start, end in matches])


def _parse(text: str, pattern: re.Pattern[str], form: str) -> tuple[list[str], list[tuple[re.Match[str], int, int]]]:
    words: list[str] = []
    matches = []
    end = 0
    for match in [*pattern.finditer(text), None]:
        outside = text[end : None if match is None else match.start()]
        if '[' in outside or ']' in outside:
            raise ValueError(f'a bracket that is not of the form {form} in {outside.strip()!r}')
        words += ban_words(outside)
        if match is not None:
            start, end = len(words), match.end()
            words += ban_words(match['words'])
            if len(words) == start:
                raise ValueError(f'the phrase {match[0]!r} has no words')
            matches.append((match, start, len(words)))
    return words, matches


def box_faults(boxes: Any, size: tuple[int, int]) -> list[str]:
    """List the faults of an entity's boxes in an image of this width and height."""
    if not isinstance(boxes, list) or not boxes:
        return [f'its boxes must be a list of boxes; got {boxes!r}']
    faults = []
    for box in boxes:
        if not isinstance(box, list) or len(box) != 4 or not all(type(side) is int for side in box):
            faults.append(f'the box {box!r} is not left, top, right, bottom as integers, in pixels')
        elif not (0 <= box[0] <= box[2] <= size[0] and 0 <= box[1] <= box[3] <= size[1]):
            outside = min(box) < 0 or box[2] > size[0] or box[3] > size[1]
            reason = f'is outside the image of {size[0]}×{size[1]}' if outside else 'ends before it starts'
            faults.append(f'the box {box} {reason}')
    return faults


def prepared(images: Iterable[tuple[str, Sequence[Caption], EntityBoxes]]) -> dict[str, Any]:
    """Build the content of a prepared file from the id, the captions and the boxes of each image."""
    data: dict[str, Any] = dict(images={}, captions=[])
    for image_id, captions, boxes in images:
        data['images'][image_id] = dict(size=boxes.size, boxes=boxes.boxes)
        for number, caption in enumerate(captions):
            data['captions'].append(
                dict(
                    caption_id=f'{image_id}#{number}',
                    image_id=image_id,
                    words=' '.join(caption.words),
                    phrases=[phrase._asdict() for phrase in caption.phrases],
                )
            )
    return data


def read_entities(path: str | Path) -> Entities:
    """Read a file that ``tools/dataset_converters/flickr_entities.py`` has written.

    Raises:
        ValueError: the layout is another, a caption occurs twice, or a box is malformed or outside its image. The
            message lists all faults.
    """
    data = read_json(path)
    with reading(path, 'not a prepared file of Flickr30k Entities'):
        images = data['images']
        sizes = {name: (image['size'][0], image['size'][1]) for name, image in images.items()}
        for name, (width, height) in sizes.items():
            check_counts(**{f'width of image {name}': width, f'height of image {name}': height})
        boxes = {name: dict(image['boxes']) for name, image in images.items()}
        captions = [
            ImageCaption(
                check_text(caption['caption_id']),
                check_text(caption['image_id']),
                Caption(caption['words'].split(), [_phrase(**phrase) for phrase in caption['phrases']]),
            )
            for caption in data['captions']
        ]
    counts = Counter(caption.caption_id for caption in captions)
    faults = Faults(path, [f'caption {name}: {count} times in the file' for name, count in counts.items() if count > 1])
    for caption in captions:
        if caption.image_id not in sizes:
            faults.add(path, f"caption {caption.caption_id}: its image {caption.image_id} is not in 'images'")
        count = len(caption.caption.words)
        for phrase in caption.caption.phrases:
            if not 0 <= phrase.start < phrase.end <= count:
                text = f'words {phrase.start} to {phrase.end} of {count} are not a phrase'
                faults.add(path, f'caption {caption.caption_id}: {text}')
    phrases = {
        (caption.image_id, phrase.entity): caption
        for caption in reversed(captions)
        for phrase in caption.caption.phrases
    }
    for (image_id, entity), caption in phrases.items():
        if entity in boxes.get(image_id, ()):
            where = f'caption {caption.caption_id}, entity {entity}'
            faults.add(path, *(f'{where}: {fault}' for fault in box_faults(boxes[image_id][entity], sizes[image_id])))
    faults.check()
    return Entities(captions, sizes, boxes)


def _phrase(entity: str, types: list[str], start: int, end: int) -> Phrase:
    check_text(entity)
    check_count('start', start, 0)
    check_count('end', end)
    return Phrase(entity, [check_text(kind) for kind in types], start, end)


def rank_words(entities: Entities) -> list[str]:
    """List all words of the captions, the most frequent first, and equally frequent words in alphabetical order."""
    counts = Counter(word for caption in entities.captions for word in caption.caption.words)
    return sorted(counts.keys() - set(SPECIALS), key=lambda word: (-counts[word], word))
