"""What the reader of each format makes of one entry: shapes by hand, what is skipped, and what is an error."""

import base64
import io
import json
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from mmattn.annotations import coco, cvat, label_studio, labelme, read, voc, yolo
from mmattn.utils.faults import FaultsError

WIDTH, HEIGHT = 40, 20
BOX = dict(bbox=[10, 5, 20, 8])


def bounds(shape):
    return np.round(shape.bounds((400, 200)), 6).tolist()


def is_ellipse(shape, x, y, radius_x, radius_y):
    """90 points of it, and each step from one to the next is small: once around."""
    points = (shape.polygons[0] - (x, y)) / (radius_x, radius_y)
    steps = np.hypot(*(points - np.roll(points, 1, axis=0)).T)
    return len(points) == 90 and np.allclose((points**2).sum(1), 1) and np.allclose(steps, 2 * np.pi / 90, rtol=1e-3)


# COCO.


def coco_file(*entries, **image):
    images = [dict(id=3, file_name='a\\b.png', **image), dict(id=5, file_name='c.png')]
    categories = [dict(id=9, name='roof'), dict(id=2, name='tree'), dict(id=1, name='all')]
    categories = [dict(each, supercategory='all' if each['id'] > 1 else None) for each in categories]
    return dict(images=images, categories=categories, annotations=[dict(image_id=3, **entry) for entry in entries])


def test_coco():
    triangle = [[0, 0, 6, 0, 6, 7]]
    lengths = dict(size=[20, 40], counts=[800])
    content = coco_file(
        dict(category_id=9, segmentation=triangle, **BOX),
        dict(category_id=2, segmentation=[[0, 0, 6, 0]], iscrowd=1, **BOX),  # no area: the box stays
        dict(category_id=2, segmentation=lengths, iscrowd=1),
        dict(category_id=9, bbox=[10, 5, 0.5, 1]),  # less than a pixel
        dict(category_id=9, bbox=[10, 5, 0, 8]),
        dict(category_id=2, bbox=[10, 5, 20, 0]),
        dict(category_id=2),
        width=WIDTH,
        height=HEIGHT,
    )
    first, second = coco.pictures(content, 'here.json')
    assert (first.name, first.size, first.source, first.skipped) == (
        'a/b.png',
        (WIDTH, HEIGHT),
        'here.json',
        ['roof', 'tree', 'tree'],
    )
    assert [(shape.label, shape.crowd, shape.box) for shape in first.shapes] == [
        ('roof', False, None),
        ('tree', True, (10, 5, 30, 13)),
        ('tree', True, None),
        ('roof', False, (10, 5, 10.5, 6)),
    ]
    np.testing.assert_array_equal(first.shapes[0].polygons, [[(0, 0), (6, 0), (6, 7)]])
    assert first.shapes[2].run_lengths == lengths
    assert (second.name, second.size, second.shapes, second.skipped) == ('c.png', None, [], [])
    assert coco.classes(content) == ['tree', 'roof']
    assert coco.classes(coco_file(dict(category_id=1, **BOX))) == ['all', 'tree', 'roof']  # used, so no mere group
    content['categories'] = [dict(each, supercategory=each['name']) for each in content['categories']]
    assert coco.classes(content) == ['all', 'tree', 'roof']  # groups of themselves
    assert [coco.pictures(coco_file(**{side: 7}), '')[0].size for side in ('width', 'height')] == [None, None]


@pytest.mark.parametrize(
    ('change', 'said'),
    [(dict(image_id=4), 'annotation 8 is of image 4,'), (dict(category_id=3), 'annotation 8 is of category 3,')],
)
def test_coco_of_what_is_not_listed(change, said):
    content = coco_file(dict(category_id=9, **BOX))
    content['annotations'].append(dict(dict(id=8, image_id=5, category_id=9, **BOX), **change))
    with pytest.raises(ValueError, match=said):
        coco.pictures(content, '')


# CVAT.


def cvat_file(*elements, outside=''):
    image = f'<image name="a.png" width="{WIDTH}" height="{HEIGHT}" subset="val">{"".join(elements)}</image>'
    return ElementTree.fromstring(f'<annotations>{outside}{image}<image name="b.png"/></annotations>')


def test_cvat():
    box = 'label="box" xtl="10" ytl="5" xbr="30" ybr="11"'
    first, second = cvat.pictures(
        cvat_file(
            '<tag/>',
            '<points label="dot" points="1,2"/>',
            '<polygon label="thin" points="1,2;3,4"/>',
            f'<box {box} z_order="3"/>',
            f'<box {box} rotation="90" z_order="2"/>',
            '<ellipse label="round" cx="20" cy="10" rx="8" ry="3" z_order="1"/>',
            '<ellipse label="turned" cx="20" cy="10" rx="8" ry="3" rotation="90" z_order="1"/>',
            '<mask label="mask" left="4" top="1" width="3" height="2" rle="1,1,1,1,2" z_order="4"/>',
            '<polygon label="tent" points="1,2;3,4;5,6" z_order="5"/>',
            '<polygon label="deeper" points="1,2;3,4;5,6"/>',  # 0
        ),
        'here.xml',
    )
    assert (first.name, first.size, first.split, first.source) == ('a.png', (WIDTH, HEIGHT), 'val', 'here.xml')
    assert first.skipped == ['dot', 'thin']
    assert (second.name, second.size, second.split, second.shapes) == ('b.png', None, '', [])
    _, round_, turned, upright_box, box, mask, tent = first.shapes
    assert [shape.label for shape in first.shapes] == ['deeper', 'round', 'turned', 'box', 'box', 'mask', 'tent']
    assert is_ellipse(round_, 20, 10, 8, 3)
    assert is_ellipse(turned, 20, 10, 3, 8)
    np.testing.assert_allclose(upright_box.polygons[0], [(23, -2), (23, 18), (17, 18), (17, -2)])  # clockwise
    assert box.box == (10, 5, 30, 11)
    expected = np.zeros((HEIGHT, WIDTH), bool)
    expected[1:3, 4:7] = [[0, 1, 0], [1, 0, 0]]
    np.testing.assert_array_equal(mask.mask((WIDTH, HEIGHT)), expected)
    np.testing.assert_array_equal(tent.polygons, [[(1, 2), (3, 4), (5, 6)]])
    for side in ('width', 'height'):
        image = ElementTree.fromstring(f'<annotations><image name="a.png" {side}="7"/></annotations>')
        assert cvat.pictures(image, '')[0].size is None


@pytest.mark.parametrize('lengths', ['1,3,1', '1,3,3', '-1,5,2', '7,-1'])
def test_cvat_of_run_lengths_that_do_not_fit(lengths):
    with pytest.raises(ValueError, match=r'mask .*3×2'):
        cvat.pictures(cvat_file(f'<mask label="mask" left="4" top="1" width="3" height="2" rle="{lengths}"/>'), '')


@pytest.mark.parametrize(('width', 'height'), [(21, 20), (20, 21), (0, 20), (20, 0)])
def test_cvat_masks_require_an_image_that_can_be_drawn(monkeypatch, width, height):
    """Of at most 400 pixels here."""
    monkeypatch.setattr(cvat, 'MAX_PIXELS', 400)
    mask = '<mask label="roof" left="0" top="0" width="2" height="1" rle="0,2"/>'
    image = f'<annotations><image name="a.png" width="{width}" height="{height}">{mask}</image></annotations>'
    with pytest.raises(ValueError, match=r'roof .*2×1'):
        cvat.pictures(ElementTree.fromstring(image), '')
    largest = image.replace(f'"{width}" height="{height}"', '"20" height="20"')
    (picture,) = cvat.pictures(ElementTree.fromstring(largest), '')
    assert picture.shapes[0].mask((20, 20)).sum() == 2
    smallest = '<annotations><image name="a.png" width="1" height="1">{}</image></annotations>'
    mask = '<mask label="roof" left="0" top="0" width="1" height="1" rle="0,1"/>'
    (picture,) = cvat.pictures(ElementTree.fromstring(smallest.format(mask)), '')
    assert picture.shapes[0].mask((1, 1)).all()


def test_cvat_for_video_is_refused():
    with pytest.raises(ValueError, match='video'):
        cvat.pictures(cvat_file(outside='<track/>'), '')


# Label Studio.


def region(kind, *labels, **value):
    return dict(type=kind, value={kind: [*labels], **value}, original_width=WIDTH * 10, original_height=HEIGHT * 10)


def task(*results, name='/data/upload/3/1234abcd-a%20b.png', **more):
    annotations = [dict(result=list(result), **more) for result in results]
    return dict(annotations=annotations, data=dict(number=3, text='none', image=name))


def bits(*pairs):
    """Pack numbers, each with its number of bits, into bytes."""
    text = ''.join(f'{number:0{width}b}' for number, width in pairs)
    return np.packbits([*map(int, text)]).tolist()


def test_label_studio():
    """In per cent of 400×200 pixels. A rectangle turns around its first corner, an ellipse around its centre."""
    corner = dict(x=10, y=20, width=30, height=10)
    centre = dict(x=50, y=50, radiusX=10, radiusY=5)
    regions = [
        dict(type='choices', value=dict(choices=['good'])),
        region('rectanglelabels', 'box', **corner, rotation=0),
        region('rectanglelabels', 'turned', **corner, rotation=90),
        region('ellipselabels', 'round', **centre),
        region('ellipselabels', 'upright', **centre, rotation=90),
        region('polygonlabels', 'tent', 'both', points=[[0, 0], [50, 0], [50, 50]]),
        region('polygonlabels', 'thin', points=[[0, 0], [50, 0]]),
        region('keypointlabels', 'dot', x=1, y=1),
        region('rectangle', **corner),
    ]
    (picture,) = label_studio.pictures([task(regions), dict(task(), annotations=[])], 'here.json')
    assert (picture.other_name, picture.size, picture.source) == ('data/upload/3/a b.png', (400, 200), 'here.json')
    assert picture.skipped == ['thin', 'dot']
    assert [shape.label for shape in picture.shapes] == ['box', 'turned', 'round', 'upright', 'tent', 'both']
    box, turned, round_, upright, tent, _ = picture.shapes
    assert box.box == (40, 40, 160, 60)
    np.testing.assert_allclose(turned.polygons[0], [(40, 40), (40, 160), (20, 160), (20, 40)])
    assert is_ellipse(round_, 200, 100, 40, 10)
    assert is_ellipse(upright, 200, 100, 10, 40)
    assert bounds(tent) == [0, 0, 200, 100]


@pytest.mark.parametrize('reverse', [False, True])
def test_label_studio_labels_of_regions_without_labels(reverse):
    """<Labels> beside <Rectangle>: two results of one id."""
    corner = dict(x=10, y=20, width=30, height=10)
    tent = dict(points=[[0, 0], [50, 0], [50, 50]])
    regions = [
        dict(region('rectangle', **corner), id='p'),
        dict(region('labels', 'box', **corner), id='p'),
        dict(region('choices', 'sure', **corner), id='p'),
        dict(region('polygon', **tent), id='q'),
        dict(region('labels', 'tent', 'both', **tent), id='q'),
        dict(region('keypoint', x=1, y=1), id='r'),
        dict(region('labels', 'dot', x=1, y=1), id='r'),
        region('labels', 'alone', **corner),
    ]
    (picture,) = label_studio.pictures([task(regions[::-1] if reverse else regions)], '')
    assert sorted((shape.label, *bounds(shape)) for shape in picture.shapes) == [
        ('both', 0, 0, 200, 100),
        ('box', 40, 40, 160, 60),
        ('tent', 0, 0, 200, 100),
    ]
    assert sorted(picture.skipped) == ['alone', 'dot']


@pytest.mark.parametrize('name', ['1234abcd-a b.png', 'a b.png'])
def test_label_studio_images_have_their_names_with_or_without_that_of_the_upload(tmp_path, name):
    """The first in Label Studio's own folder of uploads, the second in that of the user."""
    content = [task([region('rectanglelabels', 'box', x=10, y=20, width=30, height=10)])]
    (tmp_path / 'export.json').write_text(json.dumps(content))
    (tmp_path / 'images').mkdir()
    Image.new('RGB', (WIDTH * 10, HEIGHT * 10)).save(tmp_path / 'images' / name)
    assert [*read(tmp_path / 'export.json', tmp_path / 'images').pictures] == [tmp_path / 'images' / name]


def test_label_studio_has_one_annotation_of_a_task():
    first, second = ([region('rectanglelabels', name, x=0, y=0, width=9, height=9)] for name in ('first', 'second'))
    both = task(first, second)
    for index, more, chosen in (
        (0, dict(was_cancelled=False), 'first'),
        (0, dict(was_cancelled=True), 'second'),
        (1, dict(ground_truth=True), 'second'),
        (0, dict(ground_truth=True), 'first'),
    ):
        changed = dict(both, annotations=[dict(each) for each in both['annotations']])
        changed['annotations'][index].update(more)
        (picture,) = label_studio.pictures([changed], '')
        assert [shape.label for shape in picture.shapes] == [chosen]
    assert label_studio.pictures([task(first, was_cancelled=True)], '') == []


@pytest.mark.parametrize(
    ('address', 'name'),
    [
        ('/data/local-files/?d=set/a%20b.png', 'set/a b.png'),
        ('https://host/set/a.png?size=3', 'set/a.png'),
        ('/data/upload/3/1234567-a.png', 'data/upload/3/1234567-a.png'),
        ('/set/1234abcd-a.png', 'set/1234abcd-a.png'),
    ],
)
def test_label_studio_names_of_images(address, name):
    (picture,) = label_studio.pictures([task([], name=address)], '')
    assert picture.name == picture.other_name == name
    with pytest.raises(ValueError, match=r'names no image: .*none'):
        label_studio.pictures([task([], name=7)], '')


def test_label_studio_brushes():
    """Three pixels by two: three not painted, one of words, two painted; 24 numbers of 8 bits, the last one alone."""
    header = [(24, 32), (7, 5), (2, 4), (6, 4), (7, 4), (15, 4)]  # all numbers fill whole bytes
    # of single words, the last of a pixel counts
    runs = [(1, 1), (1, 2), (11, 7), (0, 8), (0, 1), (0, 2), (3, 3), *((n, 8) for n in (1, 2, 0, 255))]
    runs += [(1, 1), (2, 2), (6, 8), (1, 8)]  # 1: painted, as any number above 0
    runs += [(0, 1), (0, 2), (0, 3), (1, 8)]
    brush = dict(region('brushlabels', 'area', rle=bits(*header, *runs)), original_width=3, original_height=2)
    (picture,) = label_studio.pictures([task([brush])], '')
    np.testing.assert_array_equal(picture.shapes[0].mask((3, 2)), [[0, 0, 0], [1, 1, 1]])
    brush['value']['rle'] = bits(*header, *runs[:-1])[:-1]
    with pytest.raises(ValueError, match='early'):
        label_studio.pictures([task([brush])], '')
    for total in (23, 25, 2**32 - 1):  # the last would be decoded to gigabytes
        brush['value']['rle'] = bits((total, 32), *header[1:], *runs)
        with pytest.raises(ValueError, match=rf'\b{total}\b.*\b24\b'):
            label_studio.pictures([task([brush])], '')


# labelme.


def labelme_file(*shapes, **size):
    entries = [dict(dict(shape_type='polygon'), **shape) for shape in shapes]
    return dict(dict(shapes=entries, imagePath='..\\a.png', imageWidth=WIDTH, imageHeight=HEIGHT), **size)


def test_labelme():
    """A mask may reach beyond the image. Polygons of a label and a group are one object."""
    drawn = np.array([[1, 0, 1], [0, 1, 1]], bool)
    stream = io.BytesIO()
    Image.fromarray(drawn).save(stream, format='PNG')
    tent = [(0, 0), (4, 0), (4, 4)]
    content = labelme_file(
        dict(label='box', shape_type='rectangle', points=[(30, 5), (10, 15)]),
        dict(label='round', shape_type='circle', points=[(20, 10), (23, 14)]),
        dict(
            label='mask', shape_type='mask', points=[(37.6, 18.6), (39, 20)], mask=base64.b64encode(stream.getvalue())
        ),
        dict(label='tent', points=tent, group_id=1),
        dict(label='other', points=tent, group_id=1),
        dict(label='tent', points=[(x + 9, y) for x, y in tent], group_id=1),
        dict(label='tent', points=tent),
        dict(label='tent', points=tent),
        dict(label='line', shape_type='line', points=tent),
        dict(label='thin', points=tent[:2]),
        dict(label='tilted', shape_type='oriented_rectangle', points=tent),
    )
    (picture,) = labelme.pictures(content, 'a.json')
    assert (picture.name, picture.size, picture.skipped) == ('../a.png', (WIDTH, HEIGHT), ['line', 'thin'])
    names = [shape.label for shape in picture.shapes]
    assert names == ['box', 'round', 'mask', 'tent', 'other', 'tent', 'tent', 'tilted']
    box, round_, mask, grouped = picture.shapes[:4]
    assert box.box == (10, 5, 30, 15)
    assert is_ellipse(round_, 20, 10, 5, 5)
    expected = np.zeros((HEIGHT, WIDTH), bool)
    expected[19, 38:] = [1, 0]
    np.testing.assert_array_equal(mask.mask((WIDTH, HEIGHT)), expected)
    assert [len(shape.polygons) for shape in picture.shapes[3:]] == [2, 1, 1, 1, 1]
    assert bounds(grouped) == [0, 0, 13, 4]


@pytest.mark.parametrize('side', ['imageWidth', 'imageHeight'])
def test_labelme_masks_require_the_size_of_the_image(side):
    stream = io.BytesIO()
    Image.new('1', (2, 2)).save(stream, format='PNG')
    mask = dict(label='mask', shape_type='mask', points=[(0, 0), (1, 1)], mask=base64.b64encode(stream.getvalue()))
    for size in (None, 0, -1, 2**31):
        with pytest.raises(ValueError, match='imageWidth and imageHeight'):
            labelme.pictures(labelme_file(mask, **{side: size}), '')
    (picture,) = labelme.pictures(labelme_file(mask, imageWidth=1, imageHeight=1), '')
    assert picture.shapes[0].mask((1, 1)).tolist() == [[False]]


# Pascal VOC.


def voc_file(*objects, size='<width>40.0</width><height>20</height>'):
    inside = f'<filename>a.png</filename><size>{size}</size>{"".join(objects)}'
    return ElementTree.fromstring(f'<annotation>{inside}</annotation>')


def voc_object(name, left, top, right, bottom, more=''):
    box = f'<xmin>{left}</xmin><ymin>{top}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax>'
    return f'<object><name> {name} </name>{more}<bndbox>{box}</bndbox></object>'


def test_voc():
    """Difficult objects are not for training, as with mmdet."""
    plain, difficult = (f'<difficult> {number} </difficult>' for number in range(2))
    content = voc_file(
        voc_object('roof', 10, 5, 30.5, 13, plain),
        voc_object('tree', 0, 0, 1, 1),
        voc_object('roof', 1, 2, 3, 4, difficult),
    )
    (picture,) = voc.pictures(content, 'a.xml')
    assert (picture.name, picture.size, picture.source) == ('a.png', (WIDTH, HEIGHT), 'a.xml')
    assert [(shape.label, shape.crowd, shape.box) for shape in picture.shapes] == [
        ('roof', False, (10, 5, 30.5, 13)),
        ('tree', False, (0, 0, 1, 1)),
        ('roof', True, (1, 2, 3, 4)),
    ]


@pytest.mark.parametrize(
    'size', ['', '<width>40</width>', '<height>20</height>', '<width>40</width><height>0</height>']
)
def test_voc_files_may_have_no_size(size):
    assert voc.pictures(voc_file(size=size), '')[0].size is None


@pytest.mark.parametrize('box', [(30, 5, 10, 13), (10, 13, 30, 5)])
def test_boxes_of_voc_that_end_before_they_begin_are_named(box):
    with pytest.raises(ValueError, match=r'roof .*{}, {}, {}, {}$'.format(*box)):
        voc.pictures(voc_file(voc_object('tree', 0, 0, 1, 1), voc_object('roof', *box)), '')


# YOLO.


@pytest.mark.parametrize(
    ('file', 'text', 'names'),
    [
        ('data.yaml', 'names: [roof, 7]', ['roof', '7']),
        ('data.yaml', 'names: {1: tree, 0: roof}', ['roof', 'tree']),
        ('obj.names', 'roof\ntree\n', ['roof', 'tree']),
        ('obj.names', '\ufeffroof\n\ntree', ['roof', '', 'tree']),
    ],
)
def test_yolo_names(tmp_path, file, text, names):
    (tmp_path / file).write_text(text, encoding='utf-8')
    assert yolo.classes(tmp_path / file) == names


def test_yolo_names_have_numbers_from_0(tmp_path):
    (tmp_path / 'data.yaml').write_text('names: {1: roof, 2: tree}')
    with pytest.raises(ValueError, match=r'from 0; got \[1, 2\]'):
        yolo.classes(tmp_path / 'data.yaml')


def test_yolo(tmp_path):
    path = tmp_path / 'a.txt'
    path.write_text('1 0.5 0.25 0.5 0.1\n\n0 0.5 0.25 0.5 0.1 97\n1.0 0 0 1 0 1 0.5\n0 1.5 -0.5 1 1\n')
    box, sure, outline, _ = yolo.shapes(path, ['roof', 'tree'], (WIDTH, HEIGHT))
    assert (box.label, sure.label, outline.label) == ('tree', 'roof', 'tree')
    assert box.box == sure.box == (10, 4, 30, 6)
    np.testing.assert_array_equal(outline.polygons, [[(0, 0), (40, 0), (40, 10)]])


@pytest.mark.parametrize(
    ('kpt_shape', 'points'), [([2, 3], '0 0 0 0.4 0.3 2'), ([2, 2], '0 0 0.4 0.3'), ([1, 3], '0.4 0.3 2')]
)
def test_yolo_key_points_are_no_polygon(tmp_path, kpt_shape, points):
    """The box remains. Another number of numbers is a fault, also that of a box alone."""
    for name, text in (('a.txt', f'0 0.5 0.25 0.5 0.1 {points}\n'), ('classes.txt', 'person\n')):
        (tmp_path / name).write_text(text)
    (tmp_path / 'data.yaml').write_text(f'names: [person]\nkpt_shape: {kpt_shape}\n')
    Image.new('RGB', (WIDTH, HEIGHT)).save(tmp_path / 'a.png')
    [picture] = read(tmp_path).pictures.values()
    assert [(shape.label, shape.box, shape.has_area) for shape in picture.shapes] == [('person', (10, 4, 30, 6), False)]
    for line in ('0 0.5 0.25 0.5 0.1', f'0 0.5 0.25 0.5 0.1 {points} 0.5'):
        (tmp_path / 'a.txt').write_text(line)
        with pytest.raises(
            FaultsError, match=rf'a\.txt: .*line 1: {len(line.split()) - 1} .* 4 \+ {np.prod(kpt_shape)}'
        ):
            read(tmp_path)


@pytest.mark.parametrize(
    ('line', 'said'),
    [
        ('2 0.5 0.5 0.1 0.1', 'class 2, .* 2 names'),
        ('-1 0.5 0.5 0.1 0.1', 'class -1'),
        ('0.5 0.5 0.5 0.1 0.1', r'class 0\.5'),
        ('0 0.5 0.5 0.1', '3 numbers'),
        ('0 0 0 1 0 1 1 0', '7 numbers'),
        ('0 1.6 0.5 0.1 0.1', r'fractions.*1\.6'),
        ('0 0.5 0.5 0.1 -0.6', r'fractions.*-0\.6'),
        ('0 0 0 1 0 1 nan', 'fractions.*nan'),
    ],
)
def test_yolo_lines_that_are_no_shape(tmp_path, line, said):
    path = tmp_path / 'a.txt'
    path.write_text(f'0 0.5 0.5 0.1 0.1\n{line}\n')
    with pytest.raises(ValueError, match=f'line 2: .*{said}' if 'numbers' not in said else f'line 2: {said}'):
        yolo.shapes(path, ['roof', 'tree'], (WIDTH, HEIGHT))
