"""COCO's JSON, as CVAT, Label Studio, Roboflow and labelme2coco export it: one file, or one for each split."""

from collections import defaultdict
from typing import Any

from .shapes import Picture, Shape, polygons


def pictures(content: dict[str, Any], source: str) -> list[Picture]:
    """Read one file. Objects without an outline keep their box."""
    names = {category['id']: str(category['name']) for category in content['categories']}
    shapes, skipped = defaultdict(list), defaultdict(list)
    known = {image['id'] for image in content['images']}
    for entry in content['annotations']:
        if entry['image_id'] not in known:
            raise ValueError(f'annotation {entry.get("id")} is of image {entry["image_id"]!r}, which is not listed')
        if entry['category_id'] not in names:
            raise ValueError(
                f'annotation {entry.get("id")} is of category {entry["category_id"]!r}, which is not listed'
            )
        shape = _shape(names[entry['category_id']], entry)
        if shape is None:
            skipped[entry['image_id']].append(names[entry['category_id']])
        else:
            shapes[entry['image_id']].append(shape)
    return [
        Picture(
            str(image['file_name']).replace('\\', '/'),
            shapes[image['id']],
            source,
            (int(image['width']), int(image['height'])) if image.get('width') and image.get('height') else None,
            skipped=skipped[image['id']],
        )
        for image in content['images']
    ]


def classes(content: dict[str, Any]) -> list[str]:
    """Return the categories in the order of their ids, without Roboflow's root, which only groups the others."""
    used = {entry['category_id'] for entry in content['annotations']}
    # many tools write the name itself, which groups nothing
    parents = {each.get('supercategory') for each in content['categories'] if each.get('supercategory') != each['name']}
    ordered = sorted(content['categories'], key=lambda category: category['id'])
    return [str(each['name']) for each in ordered if each['id'] in used or each['name'] not in parents]


def _shape(label: str, entry: dict[str, Any]) -> Shape | None:
    crowd, outline = bool(entry.get('iscrowd')), entry.get('segmentation')
    if isinstance(outline, dict):
        return Shape(label, run_lengths=outline, crowd=crowd)
    if outline and (parts := polygons(outline)):
        return Shape(label, parts, crowd=crowd)
    if entry.get('bbox'):
        left, top, width, height = map(float, entry['bbox'])
        if width > 0 and height > 0:
            return Shape(label, box=(left, top, left + width, top + height), crowd=crowd)
    return None
