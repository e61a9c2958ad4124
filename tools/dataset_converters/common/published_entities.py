"""Read the published files of Flickr30k Entities: ``Sentences`` and ``Annotations``."""

from pathlib import Path
from xml.etree import ElementTree

from mmattn.language.grounding.entities import Box, Caption, EntityBoxes, parse_caption
from mmattn.utils.faults import Faults, FaultsError

CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')


def parse_sentences(text: str, path: str | Path) -> list[Caption]:
    """Parse the captions of a file in ``Sentences``, one per line. A ValueError lists all faulty lines of ``path``."""
    captions, faults = [], Faults()
    for number, line in enumerate(text.removesuffix('\n').split('\n'), 1):
        try:
            captions.append(parse_caption(line))
        except ValueError as error:
            faults.add(path, f'line {number}: {error}')
    faults.check()
    return captions


def parse_annotation(data: bytes | str, path: str | Path) -> EntityBoxes:
    """Parse ``data``, the content of a file in ``Annotations``. A ValueError names ``path`` and lists all faults.

    An object may have several ids, and an entity several objects. Coordinates count pixels from 1 in the file, and from
    0 in the result.
    """
    faults = Faults()
    entity_boxes = EntityBoxes((0, 0), {}, set(), set())
    try:
        root = ElementTree.fromstring(data)
        entity_boxes = entity_boxes._replace(size=(_number(root, 'size/width'), _number(root, 'size/height')))
    except Exception as error:  # parsers raise many types
        raise FaultsError(path, f'not an annotation: {error}') from error
    for number, element in enumerate(root.findall('object'), 1):
        names = [name.text or '' for name in element.findall('name')]
        try:
            boxes = [_box(box, entity_boxes.size) for box in element.findall('bndbox')]
        except ValueError as error:
            faults.add(path, f'object {number}: {error}')
            continue
        if not names or not all(name.isdecimal() for name in names):
            faults.add(path, f'object {number}: its names must be ids; got {names}')
        for name in names:
            if boxes:
                entity_boxes.boxes.setdefault(name, []).extend(boxes)
            for tag, entities in (('scene', entity_boxes.scenes), ('nobndbox', entity_boxes.without)):
                if element.findtext(tag, '0').strip() == '1':
                    entities.add(name)
    faults.check()
    return entity_boxes


def _box(element: ElementTree.Element, size: tuple[int, int]) -> Box:
    box = left, top, right, bottom = [_number(element, name) for name in CORNERS]
    if right < left or bottom < top:
        raise ValueError(f'the box {box} ends before it starts')
    if min(left, top) < 1 or right > size[0] or bottom > size[1]:
        raise ValueError(f'the box {box} is outside the image of {size[0]}×{size[1]}')
    return [side - 1 for side in box]


def _number(element: ElementTree.Element, name: str) -> int:
    text = element.findtext(name)
    try:
        return int(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(f'{name} must be an integer; got {text!r}') from None
