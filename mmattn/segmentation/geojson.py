"""Label maps as GeoJSON: the areas of classes in the map coordinates of a GeoTIFF or a world file."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mmattn.utils.images import ORIENTATION, decoding, open_header, tiff_tags

from .coco import connected_areas

# Tags of GeoTIFF, and keys within GEO_KEYS.
PIXEL_SCALE, TIE_POINTS, TRANSFORMATION, GEO_KEYS = 33550, 33922, 34264, 34735
GEOGRAPHIC, PROJECTED, RASTER_TYPE = 2048, 3072, 1025
PIXEL_IS_POINT, USER_DEFINED, WGS84 = 2, 32767, 4326


class GeoReference(NamedTuple):
    """Where an image lies: ``matrix`` ``(2, 3)`` maps (x, y, 1), in pixels from its corner, to coordinates.

    ``epsg`` is the number of the coordinate system, or None if it is not known.
    """

    matrix: np.ndarray
    epsg: int | None


def read_georeference(path: str | Path) -> GeoReference:
    """Read the coordinates of an image, from the tags of a GeoTIFF, else from a world file beside it.

    The world file of ``a.tif`` is ``a.tfw``, ``a.tifw`` or ``a.wld``. It does not name a coordinate system.

    Raises:
        OSError: the image does not exist.
        ValueError: the image has no coordinates, or is stored rotated, or its world file is not one. The message names
            the file.
    """
    path = Path(path)
    with open(path, 'rb') as stream, decoding(path):
        found = tiff_tags(stream)  # of any number of bands
        tags = {**found} if found is not None else {}
        stream.seek(0)
        is_picture = found is None and path.suffix.lower() != '.npy'
        orientation = (open_header(stream).getexif() if is_picture else tags).get(ORIENTATION, 1)
    if orientation > 1:
        raise ValueError(
            f'{path} has an EXIF orientation, {orientation}: map coordinates of rotated images are unclear'
        )
    keys = tags.get(GEO_KEYS, ())
    values = {keys[i]: keys[i + 3] for i in range(4, len(keys) - 3, 4) if keys[i + 1] == 0}  # 0: the value itself
    epsg = values.get(PROJECTED, values.get(GEOGRAPHIC, USER_DEFINED))
    matrix = _tagged(tags)
    shift = 0.5 * (values.get(RASTER_TYPE) == PIXEL_IS_POINT)
    if matrix is None:
        matrix, shift = _world_file(path), 0.5
    matrix[:, 2] -= matrix[:, :2].sum(1) * shift  # from the centre of the first pixel to its corner
    return GeoReference(matrix, None if epsg == USER_DEFINED else epsg)


def _tagged(tags: dict) -> np.ndarray | None:
    if TRANSFORMATION in tags:
        return np.reshape(tags[TRANSFORMATION], (4, 4))[:2, [0, 1, 3]].astype(float)
    if PIXEL_SCALE not in tags or len(tags.get(TIE_POINTS, ())) != 6:  # several points may not lie in a plane
        return None
    (across, down, *_), (column, row, _, x, y, _) = tags[PIXEL_SCALE], tags[TIE_POINTS]
    return np.array([[across, 0, x - column * across], [0, -down, y + row * down]], float)


def _world_file(path: Path) -> np.ndarray:
    end = path.suffix[1:]
    names = [path.with_suffix(f'.{name}') for name in (f'{end[:1]}{end[-1:]}w', f'{end}w', 'wld')]
    endings = str.lower, str.upper, str
    files = [file for name in names for ending in endings if (file := name.with_suffix(ending(name.suffix))).is_file()]
    if not files:
        raise ValueError(
            f'{path} has no map coordinates: neither the tags of a GeoTIFF, nor a world file, '
            f'{" or ".join(name.name for name in names)}'
        )
    try:
        matrix = np.array(files[0].read_text(encoding='utf-8').split(), float).reshape(3, 2).T
    except ValueError:
        matrix = np.zeros((2, 3))
    if not np.isfinite(matrix).all() or not np.linalg.det(matrix[:, :2]):
        raise ValueError(f'{files[0]} is not a world file: six numbers, a line each, of which four span a plane')
    return matrix


def geojson(labels: np.ndarray, classes: Sequence[str], reference: GeoReference) -> dict:
    """Make a ``FeatureCollection`` with a polygon for each connected area of a class, with the name of the class.

    Without a known coordinate system, and for WGS 84, the default of GeoJSON, the member ``crs`` is left out.

    Args:
        labels (np.ndarray): uint8 ``(H, W)``.
        classes (sequence of str): the names of the labels.
        reference (GeoReference): coordinates of the image.

    Example:
        >>> place = GeoReference(np.array([[0.5, 0, 100], [0, -0.5, 50]]), None)
        >>> (area,) = geojson(np.zeros((2, 4), np.uint8), ['roof'], place)['features']
        >>> area['properties'], area['geometry']['coordinates']
        ({'class': 'roof', 'label': 0}, [[[100.0, 49.0], [102.0, 49.0], [102.0, 50.0], [100.0, 50.0], [100.0, 49.0]]])
    """
    features = [
        dict(
            type='Feature',
            properties={'class': classes[area.label], 'label': area.label},
            geometry=dict(type='Polygon', coordinates=[*_rings(area.outlines, reference.matrix)]),
        )
        for area in connected_areas(labels)
    ]
    crs = dict(type='name', properties=dict(name=f'urn:ogc:def:crs:EPSG::{reference.epsg}'))
    known = {} if reference.epsg in (None, WGS84) else dict(crs=crs)
    return dict(type='FeatureCollection', **known, features=features)


def _rings(outlines: list[list[tuple[int, int]]], matrix: np.ndarray) -> Iterator[list[list[float]]]:
    """Yield the outer ring counterclockwise, and holes clockwise, as GeoJSON requires. Rings end where they start."""
    rings = [ring for outline in outlines for ring in _simple(outline)]
    rings.sort(key=lambda ring: abs(_signed_area(np.array(ring))), reverse=True)
    for number, ring in enumerate(rings):  # all holes are smaller than the outer ring
        points = np.array(ring) @ matrix[:, :2].T + matrix[:, 2]
        if (_signed_area(points - points[0]) > 0) == (number > 0):
            points = points[::-1]
        yield [*points.tolist(), points[0].tolist()]


def _simple(outline: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Split an outline where it meets itself at a corner: a hole may touch the outer ring there."""
    ring: dict[tuple[int, int], None] = {}
    for point in outline:
        if point in ring:
            part = [ring.popitem()[0]]
            while part[-1] != point:
                part.append(ring.popitem()[0])
            yield part
        ring[point] = None
    yield [*ring]


def _signed_area(points: np.ndarray) -> float:
    x, y = points.T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2
