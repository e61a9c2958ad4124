"""COCO annotations hold every pixel of their label map, exactly."""

import itertools
import json

import cv2
import numpy as np
import pytest

from mmattn.annotations.shapes import run_lengths
from mmattn.segmentation import coco
from mmattn.segmentation.coco import coco_annotations

from .test_inferencer import CLASSES, checkpoint, folder, inferencer, model, save  # noqa: F401


def draw(annotation, shape):
    """Fill a polygon by the winding number at the centres of pixels, or decode run lengths."""
    segmentation = annotation['segmentation']
    if isinstance(segmentation, dict):
        values = np.arange(len(segmentation['counts'])) % 2
        return values.repeat(segmentation['counts']).reshape(segmentation['size'][::-1]).T.astype(bool)
    ((*flat,),) = segmentation
    points = np.reshape(flat, (-1, 2))
    assert len(points) >= 4
    inside = np.zeros(shape, int)
    for (x, y), (to_x, to_y) in zip(points, np.roll(points, -1, 0)):
        assert (x == to_x) != (y == to_y)
        if x == to_x:
            inside[min(y, to_y) : max(y, to_y), x:] += np.sign(y - to_y)
    return inside != 0


@pytest.mark.parametrize('seed', range(4))
def test_annotations_cover_the_label_map_exactly(seed):
    """Noise, with holes and pixels that meet at corners, and blobs."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, (9, 13), np.uint8)
    if seed % 2:
        labels = cv2.resize(labels, (40, 31), interpolation=cv2.INTER_NEAREST)
    drawn = np.zeros((3, *labels.shape), int)
    for annotation in coco_annotations(labels):
        area = draw(annotation, labels.shape)
        assert area.sum() == annotation['area']
        assert list(cv2.boundingRect(area.astype(np.uint8))) == annotation['bbox']
        drawn[annotation['category_id'] - 1] += area
    np.testing.assert_array_equal(drawn, labels == np.arange(3)[:, None, None])


@pytest.mark.parametrize(('top', 'left'), itertools.product((0, 4, 9), (0, 3, 7)))
def test_an_area_with_a_hole_is_encoded_from_its_own_columns(monkeypatch, top, left):
    """At each edge of the image. The time for many areas does not grow with their number times the pixels."""
    labels = np.zeros((12, 10), np.uint8)
    labels[top : top + 3, left : left + 3] = 1
    labels[top + 1, left + 1] = 0
    sizes = []
    monkeypatch.setattr(coco, 'run_lengths', lambda mask: sizes.append(mask.size) or run_lengths(mask))
    (area,) = coco_annotations(labels, [0])
    assert area['segmentation'] == run_lengths(labels == 1)
    assert sizes == [12 * 3]


def test_a_file_for_all_images(inferencer, folder, tmp_path):  # noqa: F811
    inferencer([folder / 'even.png', folder / 'odd.ppm'], tmp_path, coco=True)
    content = json.loads((tmp_path / 'coco.json').read_text(encoding='utf-8'))
    assert [(image['file_name'], image['width'], image['height']) for image in content['images']] == [
        ('even.png', 56, 40),
        ('odd.ppm', 47, 33),
    ]
    assert [category['name'] for category in content['categories']] == [*CLASSES]
    for image, size in zip(content['images'], (56 * 40, 47 * 33)):
        assert sum(a['area'] for a in content['annotations'] if a['image_id'] == image['id']) == size
    # pycocotools takes a box of id 0 for none
    for kind in ('images', 'annotations', 'categories'):
        assert [entry['id'] for entry in content[kind]] == [*range(1, len(content[kind]) + 1)]


def test_labels_without_annotations():
    labels = np.array([[0, 1, 1, 2], [0, 0, 2, 2]], np.uint8)
    for skipped, categories in (((), [1, 2, 3]), ([1], [1, 3]), ([0, 2], [2])):
        assert [area['category_id'] for area in coco_annotations(labels, skipped)] == categories
