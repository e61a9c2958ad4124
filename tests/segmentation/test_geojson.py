"""GeoJSON by the tool: every pixel of the label map, at the coordinates of GeoTIFF tags and world files."""

import itertools
import json
import struct

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from mmattn.segmentation.geojson import GeoReference, geojson, read_georeference
from mmattn.utils.images import tiff_bands

from .test_inferencer import CLASSES, PALETTE, blocks, checkpoint, demo, model, save  # noqa: F401

KEYS = dict(projected=3072, geographic=2048, raster=1025)


def tags(*keys, **values):
    ifd = TiffImagePlugin.ImageFileDirectory_v2()
    numbers = dict(scale=33550, ties=33922, transformation=34264)
    for name, value in values.items():
        ifd[numbers[name]] = value
        ifd.tagtype[numbers[name]] = 12
    ifd[34735] = (1, 1, 0, len(keys), *(value for name, number in keys for value in (KEYS[name], 0, 1, number)))
    ifd.tagtype[34735] = 3
    return ifd


TURNED = (3.0, 1.0, 0.0, 500.0, 1.0, -2.0, 0.0, 900.0, *[0.0] * 7, 1.0)
PLACES = {  # file → tags, world file, corner of the first pixel, steps to the right and down, name of the system
    'scale.tif': (
        tags(('projected', 32633), ('geographic', 4326), scale=(0.5, 0.25, 0), ties=(4, 2, 0, 1002, 2000.5, 0)),
        None,
        ((1000, 2001), (0.5, 0), (0, -0.25), 'EPSG::32633'),
    ),
    'point.tif': (
        tags(('raster', 2), ('geographic', 4326), scale=(2, 2, 0), ties=(0, 0, 0, 11, 49, 0)),
        ('point.tfw', '9 0 0 9 0 0'),  # the tags come first
        ((10, 50), (2, 0), (0, -2), None),
    ),
    'turned.tif': (tags(('projected', 32767), transformation=TURNED), None, ((500, 900), (3, 1), (1, -2), None)),
    'world.png': (None, ('world.pgw', '2\n1\n-1\n-3\n10.5\n20\n'), ((10, 21), (2, 1), (-1, -3), None)),
    'WORLD.PNG': (None, ('WORLD.WLD', '1\n0\n0\n-1\n0.5\n0.5\n'), ((0, 1), (1, 0), (0, -1), None)),
}


def place(folder, name):
    """Write an image there; return what is expected of it."""
    made, world, expected = PLACES[name]
    Image.fromarray(blocks(33, 47)).save(folder / name, **(dict(tiffinfo=made) if made else {}))
    if world:
        (folder / world[0]).write_text(world[1], encoding='utf-8')
    return expected


def test_a_geotiff_of_four_bands_of_16_bits_that_pil_cannot_open(tmp_path):
    ifd = tags(('projected', 32633), scale=(0.5, 0.25, 0), ties=(0, 0, 0, 7, 9, 0))
    ifd[256], ifd[257], ifd[258], ifd[262], ifd[277] = 2, 2, (16,) * 4, 1, 4
    path = tmp_path / 'bands.tif'
    with open(path, 'wb') as stream:
        ifd.save(stream)
    with pytest.raises(OSError, match='cannot identify'):
        Image.open(path)
    found = read_georeference(path)
    np.testing.assert_array_equal(found.matrix, [[0.5, 0, 7], [0, -0.25, 9]])
    assert found.epsg == 32633


@pytest.mark.parametrize('order', ['<', '>'])
def test_a_bigtiff(tmp_path, order):
    """Of four bands, of which the fourth is no transparency, in both orders of bytes."""
    keys = (1, 1, 0, 1, KEYS['projected'], 0, 1, 32633)
    entries = [(256, 'H', [2]), (257, 'H', [2]), (262, 'H', [2]), (277, 'H', [4]), (338, 'H', [0])]
    entries += [(33550, 'd', (0.5, 0.25, 0.0)), (33922, 'd', (0.0, 0.0, 0.0, 7.0, 9.0, 0.0)), (34735, 'H', keys)]
    head = struct.pack(f'{order}2sHHHQQ', b'II' if order == '<' else b'MM', 43, 8, 0, 16, len(entries))
    behind, after = b'', len(head) + 20 * len(entries) + 8  # values that do not fit into an entry
    for tag, kind, values in entries:
        content = struct.pack(f'{order}{len(values)}{kind}', *values)
        head += struct.pack(f'{order}HHQ', tag, 3 if kind == 'H' else 12, len(values))
        head += struct.pack(f'{order}Q', after + len(behind)) if len(content) > 8 else content.ljust(8, b'\0')
        behind += content if len(content) > 8 else b''
    path = tmp_path / 'big.tif'
    path.write_bytes(head + bytes(8) + behind)
    found = read_georeference(path)
    np.testing.assert_array_equal(found.matrix, [[0.5, 0, 7], [0, -0.25, 9]])
    assert found.epsg == 32633
    with open(path, 'rb') as stream:
        assert tiff_bands(stream) == (4, 3)


def test_world_files_of_arrays_and_in_other_case(tmp_path):
    for name, world in (('a.npy', 'a.wld'), ('B.TIF', 'B.tfw')):
        if name == 'a.npy':
            np.save(tmp_path / name, np.zeros((4, 2, 2)))
        else:
            Image.new('L', (2, 2)).save(tmp_path / name)
        (tmp_path / world).write_text('1 0 0 -1 0.5 0.5', encoding='utf-8')
        np.testing.assert_array_equal(read_georeference(tmp_path / name).matrix, [[1, 0, 0], [0, -1, 1]])


def signed_area(points):
    return sum(x * to_y - to_x * y for (x, y), (to_x, to_y) in itertools.pairwise(points)) / 2


def fill(rings, shape, origin, right, down):
    """The pixels inside an odd number of rings, after the way back from the map to pixels."""
    inside = np.zeros(shape, bool)
    for number, ring in enumerate(rings):
        assert ring[0] == ring[-1]
        assert len({*map(tuple, ring)}) == len(ring) - 1
        ring = np.array(ring) - origin
        assert (signed_area(ring) > 0) == (number == 0)
        assert abs(signed_area(ring)) <= abs(signed_area(np.array(rings[0]) - origin))  # the outer ring is the first
        points = np.linalg.solve(np.transpose([right, down]), ring.T).T
        np.testing.assert_allclose(points, points.round(), atol=1e-6)
        for (x, y), (to_x, to_y) in zip(points.round().astype(int), points[1:].round().astype(int)):
            if x == to_x:
                inside[min(y, to_y) : max(y, to_y), x:] ^= True
    return inside


@pytest.mark.parametrize('name', PLACES)
def test_areas_lie_where_their_pixels_lie(demo, tmp_path, name):  # noqa: F811
    (tmp_path / 'images').mkdir()
    *corner, system = place(tmp_path / 'images', name)
    out = demo(tmp_path / 'images' / name, '--geojson', '--legend')
    labels = np.array(Image.open(out / 'pred' / f'{name[:-4]}.png'))
    content = json.loads((out / f'geojson/{name[:-4]}.geojson').read_text(encoding='utf-8'))
    assert content.get('crs', {}).get('properties', {}).get('name', '').removeprefix('urn:ogc:def:crs:') == (
        system or ''
    )
    drawn = np.zeros((len(CLASSES), *labels.shape), int)
    for feature in content['features']:
        assert feature['properties']['class'] == CLASSES[feature['properties']['label']]
        assert feature['geometry']['type'] == 'Polygon'
        drawn[feature['properties']['label']] += fill(feature['geometry']['coordinates'], labels.shape, *corner)
    np.testing.assert_array_equal(drawn, labels == np.arange(len(CLASSES))[:, None, None])
    legend = np.array(Image.open(out / 'vis' / f'{name[:-4]}.png'))[len(labels) :]
    shown = [colour in legend.reshape(-1, 3).tolist() for colour in PALETTE]
    assert shown == [label in labels for label in range(len(CLASSES))]


@pytest.mark.parametrize('seed', range(3))
def test_holes_and_pixels_that_meet_at_corners(seed):
    labels = np.random.default_rng(seed).integers(0, 2, (22, 19), np.uint8)
    found = geojson(labels, 'ab', GeoReference(np.eye(2, 3), 25832))['features']
    for label in (0, 1):
        areas = [x['geometry']['coordinates'] for x in found if x['properties']['label'] == label]
        drawn = sum(fill(rings, labels.shape, (0, 0), (1, 0), (0, 1)).astype(int) for rings in areas)
        np.testing.assert_array_equal(drawn, labels == label)
    assert any(len(x['geometry']['coordinates']) > 1 for x in found)


@pytest.mark.parametrize(
    ('suffix', 'world', 'options', 'fault'),
    [
        ('png', None, {}, r'image\.png has no map coordinates'),
        ('jpg', ('jgw', '1 0 0 0 5 5'), {}, r'image\.jgw'),
        ('tif', ('wld', '1 0 0 -1 5'), {}, r'image\.wld'),
        ('tif', None, dict(tiffinfo=tags(scale=(1, 1, 0), ties=[*range(12)])), r'image\.tif has no map coordinates'),
        ('tif', ('tfw', '1 0 0 -1 5 5'), dict(tiffinfo={274: 6}), r'image\.tif .*orientation, 6'),
    ],
)
def test_an_image_without_coordinates_is_named_before_the_model_runs(
    demo,  # noqa: F811
    tmp_path,
    suffix,
    world,
    options,
    fault,
):
    images = tmp_path / 'images'
    images.mkdir()
    place(images, 'scale.tif')
    Image.fromarray(blocks(9, 8)).save(images / f'image.{suffix}', **options)
    if world:
        (images / f'image.{world[0]}').write_text(world[1], encoding='utf-8')
    with pytest.raises(SystemExit, match=rf'1 of 2 images .*:\n  .*{fault}'):
        demo(images, '--geojson')
    assert not (tmp_path / 'out').exists()


def test_a_missing_image(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_georeference(tmp_path / 'nowhere.tif')
