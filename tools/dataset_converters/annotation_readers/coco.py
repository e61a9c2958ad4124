"""COCO's JSON: one file, or one for each split. Objects without an outline keep their box."""

from functools import partial
from pathlib import Path
from typing import Any

from mmattn.utils.faults import Faults, FaultsError

from .shapes import UNKNOWN, Picture, Shape, Size, checked, class_name, polygons, rectangle, run_lengths


def read(content: dict[str, Any], path: Path, faults: Faults) -> tuple[list[Picture], list[str]]:
    """Return the pictures of a file, and its classes in the order of their ids."""
    categories = content['categories']
    names = {category['id']: class_name(category['name']) for category in categories}
    pictures: dict[Any, Picture] = {}
    for number, image in enumerate(content['images']):
        with checked(faults, path, f'images[{number}]', image):
            if image['id'] in pictures:
                raise FaultsError(f'a second image has id {image["id"]!r}')
            width, height = image.get('width'), image.get('height')
            size = (int(width), int(height)) if width and height else UNKNOWN
            picture = Picture([image['file_name']], path, [], partial(_shape, names), size, f'image {image["id"]}')
            pictures[image['id']] = picture
    for number, entry in enumerate(content['annotations']):
        place = f'annotation {entry["id"] if isinstance(entry, dict) and "id" in entry else f"[{number}]"}'
        with checked(faults, path, place, entry):
            if entry['image_id'] not in pictures:
                raise FaultsError(f'image {entry["image_id"]!r} is not listed')
            pictures[entry['image_id']].entries.append((place, entry))
    used = {
        entry['category_id'] for picture in pictures.values() for _, entry in picture.entries if 'category_id' in entry
    }
    # Roboflow's root is a category that only groups the others; many tools write each name as its own group
    groups = {each.get('supercategory') for each in categories if each.get('supercategory') != each['name']}
    ids = sorted(each['id'] for each in categories if each['id'] in used or each['name'] not in groups)
    return [*pictures.values()], [names[number] for number in ids]


def _shape(names: dict[Any, str], entry: dict[str, Any], size: Size) -> Shape:
    if entry['category_id'] not in names:
        raise FaultsError(f'category {entry["category_id"]!r} is not listed')
    label, crowd, outline = names[entry['category_id']], bool(entry.get('iscrowd')), entry.get('segmentation')
    if isinstance(outline, dict):
        return Shape(label, run_lengths(outline, size), crowd=crowd)
    if outline and (parts := polygons(outline)):
        return Shape(label, parts, crowd=crowd)
    if not entry.get('bbox'):
        return Shape(label, left_out='no outline and no box')
    left, top, width, height = numbers = [float(number) for number in entry['bbox']]
    change = 'a box, as the outline has no area' if outline else ''
    return rectangle(label, left, top, left + width, top + height, crowd=crowd, corners=numbers, change=change)
