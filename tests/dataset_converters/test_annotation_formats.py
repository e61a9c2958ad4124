"""One table for each format: what becomes of an entry, and the place of a malformed one. Every entry is counted."""

import base64
import io
import json
import re
import sys

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask

from mmattn.utils.faults import FaultsError

from .conftest import OF_PYTHON, scripts

annotations, readers = scripts('annotations', 'annotation_readers')
WIDTH, HEIGHT = 64, 48
POINTS = [[10, 10], [30, 10], [30, 30], [10, 30]]
FLAT = [number for point in POINTS for number in point]
USED, CHANGED, LEFT_OUT = (1, 0, 0), (0, 1, 0), (0, 0, 1)


def noise(path, seed=0, size=(WIDTH, HEIGHT)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (*size[::-1], 3), dtype=np.uint8)).save(path)


# Each writes two images: the entries of a.png, and a good entry of b.png.


def coco(folder, *entries, **content):
    images = [dict(id=i, file_name=f'{name}.png', width=WIDTH, height=HEIGHT) for i, name in enumerate('ab')]
    objects = [{'image_id': 0, 'category_id': 1, **entry} for entry in entries]
    objects += [dict(image_id=1, category_id=1, segmentation=[FLAT])]
    objects = [dict(each, id=number) for number, each in enumerate(objects, 70)]
    whole = dict(images=images, annotations=objects, categories=[dict(id=1, name='car')]) | content
    (folder / 'all.json').write_text(json.dumps(whole))
    return len(whole['annotations'])


def labelme(folder, *entries):
    for name, shapes in dict(a=entries, b=[{}]).items():
        shapes = [{'label': 'car', 'points': POINTS, 'shape_type': 'polygon', **shape} for shape in shapes]
        content = dict(shapes=shapes, imagePath=f'{name}.png', imageWidth=WIDTH, imageHeight=HEIGHT)
        (folder / f'{name}.json').write_text(json.dumps(content))
    return len(entries) + 1


def yolo(folder, *entries, names='names: [car, dog]'):
    (folder / 'data.yaml').write_text(names)
    (folder / 'a.txt').write_text('\n'.join(entries))
    (folder / 'b.txt').write_text('0 0.5 0.5 0.25 0.5\n')
    return len(entries) + 1


def voc(folder, *entries):
    sides = 'xmin', 'ymin', 'xmax', 'ymax'
    for name, objects in dict(a=entries, b=[(10, 10, 30, 30)]).items():
        boxes = [''.join(f'<{side}>{x}</{side}>' for side, x in zip(sides, each)) for each in objects]
        boxes = [f'<object><name>car</name><bndbox>{box}</bndbox></object>' for box in boxes]
        texts = [each if isinstance(each, str) else box for each, box in zip(objects, boxes)]
        size = f'<size><width>{WIDTH}</width><height>{HEIGHT}</height></size>'
        (folder / f'{name}.xml').write_text(f'<annotation>{size}{"".join(texts)}</annotation>')
    return len(entries) + 1


def encoded(pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format='PNG')
    return base64.b64encode(stream.getvalue()).decode()


SQUARE = np.zeros((HEIGHT, WIDTH), np.uint8)
SQUARE[10:30, 10:30] = 1
RUNS = mask.encode(np.asfortranarray(SQUARE))['counts'].decode()
PLAIN = [10 * HEIGHT + 10, *[20, HEIGHT - 20] * 19, 20]
PLAIN.append(WIDTH * HEIGHT - sum(PLAIN))
# Entries, each beside a good one, and what becomes of it; or the place of the fault in the file.
CASES = {
    coco: [
        (dict(segmentation=[FLAT]), USED),
        (dict(bbox=[10, 10, 20, 20]), USED),
        (dict(segmentation=dict(size=[HEIGHT, WIDTH], counts=PLAIN)), USED),
        (dict(segmentation=dict(size=[HEIGHT, WIDTH], counts=RUNS)), USED),
        (dict(segmentation=[FLAT[:4]], bbox=[10, 10, 20, 20]), CHANGED),
        (dict(bbox=[50, 10, 30, 20]), CHANGED),
        (dict(segmentation=[[-9, 10, 30, 10, 30, 30]]), CHANGED),
        (dict(bbox=[10, 10, 0, 20]), LEFT_OUT),
        (dict(bbox=[-20, 10, 10, 20]), LEFT_OUT),
        (dict(segmentation=[[10, 10, 20, 20, 30, 30]]), LEFT_OUT),
        ({}, LEFT_OUT),
        (dict(segmentation=FLAT), 'annotation 70'),
        (dict(segmentation=[[*FLAT, 7]]), 'annotation 70'),
        (dict(segmentation=[[float('nan'), *FLAT[1:]]]), 'annotation 70'),
        (dict(segmentation=dict(size=[WIDTH, HEIGHT], counts=PLAIN)), 'annotation 70'),
        (dict(segmentation=dict(size=[HEIGHT, WIDTH], counts=PLAIN[:-1])), 'annotation 70'),
        (dict(segmentation=dict(size=[HEIGHT, WIDTH], counts=RUNS[:-2])), 'annotation 70'),
        (dict(bbox=[10, 10, 'wide', 20]), 'annotation 70'),
        (dict(bbox=[10, 10, 20]), 'annotation 70'),
        (dict(bbox=[100, 100, 200, 200]), 'annotation 70'),
        (dict(category_id=7, bbox=[10, 10, 20, 20]), 'annotation 70: category 7'),
        (dict(image_id=7, bbox=[10, 10, 20, 20]), 'annotation 70: image 7'),
    ],
    labelme: [
        ({}, USED),
        (dict(shape_type='rectangle', points=[[30, 30], [10, 10]]), USED),
        (dict(shape_type='rectangle'), USED),
        (dict(shape_type='rotation', points=[[20, 10], [30, 20], [20, 30], [10, 20]]), USED),
        (dict(shape_type='circle', points=[[20, 20], [20, 30]]), USED),
        (dict(shape_type='mask', points=[[-5, 10], [4, 19]], mask=encoded(np.ones((10, 10), bool))), USED),
        (dict(group_id=3), USED),
        (dict(shape_type='rectangle', points=[[50, 10], [90, 30]]), CHANGED),
        (dict(shape_type='point', points=[[9, 9]]), LEFT_OUT),
        (dict(shape_type='line', points=[[9, 9], [20, 9]]), LEFT_OUT),
        (dict(points=POINTS[:2]), LEFT_OUT),
        (dict(shape_type='rectangle', points=[[10, 10], [10, 30]]), LEFT_OUT),
        (dict(points=None), r'shapes\[0\]'),
        (dict(points=[[1, 2, 3]] * 4), r'shapes\[0\]'),
        (dict(points=[['a', 'b']] * 4), r'shapes\[0\]'),
        (dict(label=None), r'shapes\[0\]'),
        (dict(label=[['car']]), r'shapes\[0\]'),
        (dict(group_id=[3]), r'shapes\[0\]'),
        (dict(shape_type='mask', points=[[1, 1], [4, 4]], mask='!'), r'shapes\[0\]'),
        (dict(shape_type='mask', points=[[1, 1], [4, 4]]), r"shapes\[0\].*'mask'"),
    ],
    yolo: [
        ('0 0.5 0.5 0.25 0.5', USED),
        ('0 0 0 1 0 1 0.5', USED),
        ('0 0.5 0.5 0.25 0.5 0.97', CHANGED),
        ('0 0.9 0.5 0.5 0.5', CHANGED),
        ('1 0.5 0.5 0 0.5', LEFT_OUT),
        ('1 1.5 0.5 0.25 0.5', LEFT_OUT),
        ('2 0.5 0.5 0.25 0.5', 'line 1: class 2'),
        ('-1 0.5 0.5 0.25 0.5', 'line 1: class -1'),
        ('0.5 0.5 0.5 0.25 0.5', 'line 1'),
        ('1 0.5 0.5 0.25', 'line 1'),
        ('1 0 0 1 0 1 1 0', 'line 1'),
        ('1 0.5 0.5 nan 0.5', 'line 1'),
        ('1 32 24 16 24', 'line 1'),
        ('car 0.5 0.5 0.25 0.5', 'line 1'),
    ],
    voc: [
        ((10, 10, 30, 30), USED),
        ('<object><name>car</name><difficult>1</difficult><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax>'
         '<ymax>9</ymax></bndbox></object>', USED),
        ((50, 10, 90, 30), CHANGED),
        ((10, 10, 10, 30), LEFT_OUT),
        ((-20, 10, -10, 30), LEFT_OUT),
        ((30, 10, 10, 30), 'object 1'),
        ((10, 10, 'wide', 30), 'object 1'),
        ((10, 10, '', 30), 'object 1'),
        ((10, 10, 'nan', 30), 'object 1'),
        ((10, 10, 900, 30), 'object 1'),
        ('<object><name>car</name></object>', "object 1.*'xmin'"),
        ('<object><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>', 'object 1'),
        ('<object><name>car</name><polygon><pt><x>5</x><y>5</y></pt></polygon></object>', "object 1.*'xmin'"),
    ],
}  # fmt: skip
ROWS = [
    pytest.param(write, *case, id=f'{write.__name__}-{i}')
    for write, cases in CASES.items()
    for i, case in enumerate(cases)
]


@pytest.fixture
def folder(tmp_path):
    for seed, name in enumerate('ab'):
        noise(tmp_path / f'export/{name}.png', seed)
    return tmp_path / 'export'


def counts(said):
    """The entries, and how many were used, changed and left out."""
    return [int(number) for number in re.findall(r'(\d+) (?:entries|used|changed|left out)', '\n'.join(said[:1]))]


def objects(out):
    return [each for path in sorted(out.glob('*.json')) for each in json.loads(path.read_text())['annotations']]


@pytest.mark.parametrize(('write', 'entry', 'expected'), ROWS)
def test_an_entry_is_used_changed_or_left_out_or_a_fault_with_its_place(command, folder, out, write, entry, expected):
    entries = write(folder, entry)
    code, said, warned = command(annotations, folder, '--task', 'detection', '--val-fraction', 0.5)
    if isinstance(expected, str):
        assert code == 1
        source = dict(coco='all.json', labelme='a.json', yolo='a.txt', voc='a.xml')[write.__name__]
        assert re.search(rf'{folder}/{source}: {expected}', '\n'.join(warned))
        assert not OF_PYTHON.search('\n'.join(warned))
        assert not out.exists()
        return
    assert code == 0, warned
    assert counts(said) == [entries, *np.add(expected, (1, 0, 0)).tolist()]
    assert len(objects(out)) == entries - expected[2]
    assert any('left out' in line for line in warned) == (expected is LEFT_OUT)


def test_parts_of_a_group_are_counted_and_few_that_are_left_out_are_no_warning(command, folder, out):
    far = [[x + 30, y + 10] for x, y in POINTS]
    entries = [dict(group_id=1), dict(group_id=1, points=far), dict(group_id=2)]
    entries += [{}] * 9 + [dict(shape_type='point', points=[[9, 9]])]
    written = labelme(folder, *entries)
    code, said, warned = command(annotations, folder, '--task', 'detection')
    assert (code, warned) == (0, [])
    assert counts(said) == [written, written - 2, 1, 1]
    assert len(objects(out)) == written - 2


@pytest.mark.parametrize('write', CASES)
def test_an_absent_image_is_a_fault_of_its_entry(folder, write):
    write(folder, CASES[write][0][0])
    (folder / 'b.png').unlink()
    with pytest.raises(FaultsError) as caught:
        readers.read(folder)
    [line] = caught.value.lines()
    assert line.startswith(f'{folder}/{"all.json: image 1" if write is coco else "b."}')


@pytest.mark.parametrize('write', [coco, labelme, voc])
@pytest.mark.parametrize(
    'spoil', [lambda text: text[:-9], lambda text: text + '}<', lambda text: '[' * 100_000, lambda _: 'ö']
)
def test_a_file_that_is_no_json_or_xml_is_named(folder, write, spoil):
    write(folder, CASES[write][0][0])
    path = sorted(path for path in folder.iterdir() if path.suffix != '.png')[0]
    path.write_bytes(spoil(path.read_text()).encode('latin-1'))
    with pytest.raises(FaultsError) as caught:
        readers.read(folder)
    assert {*caught.value.by_path} == {str(path)}
    assert not OF_PYTHON.search(str(caught.value))


def boxes(kind, rng):
    """Boxes as corners, or as the format has them."""
    for _ in range(20):
        left, top = rng.uniform(0, 40), rng.uniform(0, 30)
        right, bottom = left + rng.uniform(6, WIDTH - left), top + rng.uniform(6, HEIGHT - top)
        right, bottom = min(right, WIDTH), min(bottom, HEIGHT)
        yield {
            'corners': (left, top, right, bottom),
            'coco': (left, top, right - left, bottom - top),
            'yolo': ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top),
        }[kind]


@pytest.mark.parametrize('write', [coco, yolo])
def test_boxes_as_corners_are_a_fault(folder, write):
    for kind in ('corners', write.__name__):
        numbers = boxes(kind, np.random.default_rng(0))
        if write is coco:
            entries = [dict(bbox=box) for box in numbers]
        else:
            entries = [f'0 {" ".join(map(str, np.divide(box, (WIDTH, HEIGHT) * 2)))}' for box in numbers]
        write(folder, *entries)
        if write is yolo:
            (folder / 'b.txt').write_text('')
        if kind != 'corners':
            assert len(readers.read(folder).pictures) == 2
            continue
        with pytest.raises(FaultsError, match='corners') as caught:
            readers.read(folder)
        assert {*caught.value.by_path} == {str(folder / ('all.json' if write is coco else 'a.txt'))}


def test_two_images_of_one_id_are_a_fault(folder):
    images = [dict(id=0, file_name=f'{name}.png') for name in 'ab']
    coco(folder, images=images)
    with pytest.raises(FaultsError, match=r'images\[1\].* 0'):
        readers.read(folder)


ALIASES = ''.join(f'{b}: &{b} [*{a}, *{a}]\n' for a, b in zip('abcdefghijkl', 'bcdefghijklm'))
ALIASES = f'a: &a [x, x]\n{ALIASES}'


@pytest.mark.parametrize(
    ('names', 'expected'),
    [
        ('names: [car, 7]', ['car', '7']),
        ('names: {1: no, 0: car}', ['car', 'no']),
        ('names: {1: car, 2: dog}', None),
        ('names: [car, [dog]]', None),
        ('names: car', None),
        ('nc: 1', None),
        ('names: [car, dog]\nkpt_shape: [2, 2]', None),  # key points would be polygons
        ('names: [car', None),
        (f'{ALIASES}names: [*m]', None),
    ],
)
def test_names_of_yolo_are_texts(folder, names, expected):
    """The last would be a text of thousands of letters for each alias, and gigabytes with some more lines."""
    yolo(folder, '0 0.5 0.5 0.25 0.5', '1 0.5 0.5 0.25 0.5', names=names)
    if expected:
        assert readers.read(folder).classes == expected
        return
    with pytest.raises(FaultsError) as caught:
        readers.read(folder)
    [line] = caught.value.lines()
    assert line.startswith(f'{folder}/data.yaml: ')
    assert len(line) < len(str(folder)) + 300


def test_outlines_are_drawn_with_their_holes_and_parts(folder):
    """Of one polygon with a bridge to its hole, of two parts, and a mask that begins outside of the image."""
    ring = [*POINTS, POINTS[0], [15, 15], [15, 25], [25, 25], [25, 15], [15, 15]]
    other = [[x + 30, y + 10] for x, y in POINTS]
    drawn = np.random.default_rng(0).random((10, 8)) < 0.5
    labelme(
        folder,
        dict(points=ring),
        dict(group_id=1),
        dict(group_id=1, points=other),
        dict(shape_type='mask', points=[[-3, 44], [4, 53]], mask=encoded(drawn)),
    )
    picture = readers.read(folder).pictures[folder / 'a.png']
    expected = np.zeros((3, HEIGHT, WIDTH), bool)
    expected[:2, 10:30, 10:30] = True
    expected[0, 15:25, 15:25] = False
    expected[1, 20:40, 40:60] = True
    expected[2, 44:, :5] = drawn[:4, 3:]
    pixels = [mask.decode(shape.encoded(picture.size)) for shape in picture.shapes]
    np.testing.assert_array_equal(pixels, expected)
    assert [shape.bounds for shape in picture.shapes[:2]] == [[10, 10, 30, 30], [10, 10, 60, 40]]


def test_a_missing_package_is_named_with_its_installation(monkeypatch):
    for name in [name for name in sys.modules if name.startswith('annotation_readers')]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, 'pycocotools', None)
    with pytest.raises(SystemExit, match=r'pip install \W?pycocotools'):
        scripts('annotation_readers')
