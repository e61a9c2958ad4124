"""Annotations and images of detectors with every fault, one at a time."""

import json
import logging
import re
import shutil
import sys
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from zlib import crc32

import pytest
from mmengine.config import Config
from mmengine.fileio import LocalBackend
from mmengine.fileio.backends.registry_utils import backends
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from PIL import Image

from mmattn.data_check import data_sets
from mmattn.utils import config_path

from ..requirements import requires
from .image_folders import cut

pytestmark = requires('mmdet')
SIZE = (48, 40)  # width, height
BOX = (5, 5, 20, 20)  # left, top, right, bottom
CLASSES = ('cell', 'plate')


def images(root, count=2, size=SIZE):
    for i in range(count):
        (root / 'JPEGImages').mkdir(exist_ok=True, parents=True)
        colour = tuple(crc32(f'{root}/{i}'.encode()).to_bytes(4)[:3])
        Image.new('RGB', size, colour).save(root / f'JPEGImages/{i}.jpg')


def coco(root, boxes=(('cell', BOX), ('plate', BOX)), categories=CLASSES, size=SIZE, classes=CLASSES, **options):
    """Two images with the same boxes, in COCO's format; a name that is no category has id 99."""
    images(root)
    ids = {name: 3 * i + 7 for i, name in enumerate(categories)}
    annotations = [
        dict(
            id=2 * k + image,
            image_id=image,
            category_id=ids.get(name, 99),
            bbox=[left, top, right - left, bottom - top],
            area=max(0, right - left) * max(0, bottom - top),
            iscrowd=0,
        )
        for k, (name, (left, top, right, bottom)) in enumerate(boxes)
        for image in range(2)
    ]
    content = dict(
        images=[dict(id=i, file_name=f'{i}.jpg', width=size[0], height=size[1]) for i in range(2)],
        annotations=annotations,
        categories=[dict(id=i, name=name) for name, i in ids.items()],
    )
    (root / 'boxes.json').write_text(json.dumps(content))
    return dict(
        type='CocoDataset',
        data_root=str(root),
        ann_file='boxes.json',
        data_prefix=dict(img='JPEGImages/'),
        metainfo=dict(classes=classes),
        filter_cfg=dict(filter_empty_gt=True, min_size=8),
        **options,
    )


def voc(root, boxes=(('cell', BOX), ('plate', BOX)), difficult=()):
    """The same in Pascal VOC's."""
    images(root)
    (root / 'Annotations').mkdir(exist_ok=True)
    objects = ''.join(
        f'<object><name>{name}</name><difficult>{int(name in difficult)}</difficult><bndbox><xmin>{box[0]}</xmin>'
        f'<ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox></object>'
        for name, box in boxes
    )
    for i in range(2):
        size = f'<size><width>{SIZE[0]}</width><height>{SIZE[1]}</height></size>'
        (root / f'Annotations/{i}.xml').write_text(f'<annotation>{size}{objects}</annotation>')
    (root / 'list.txt').write_text('0\n1\n')
    return dict(
        type='VOCDataset',
        data_root=str(root),
        ann_file='list.txt',
        data_prefix=dict(sub_data_root=''),
        metainfo=dict(classes=CLASSES),
        filter_cfg=dict(filter_empty_gt=True, min_size=8),
    )


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Check data sets; return the warnings, or raise what the hook raises."""
    warnings = []

    def log(message, _, level):
        if level == logging.WARNING:
            warnings.append(message)

    monkeypatch.setattr(data_sets, 'print_log', log)

    def run(train, val=None, evaluator=None, hooks=None, **options):
        init_default_scope('mmdet')
        loaders = {f'{part}_dataloader': dict(dataset=cfg) for part, cfg in (('train', train), ('val', val)) if cfg}
        runner = SimpleNamespace(
            cfg=Config(dict(default_scope='mmdet', val_evaluator=evaluator, default_hooks=hooks, **loaders)),
            work_dir=str(tmp_path / 'work'),
        )
        from mmattn.detection import DetDataCheckHook

        DetDataCheckHook(**options).before_loops(runner)
        return warnings

    return run


@pytest.mark.parametrize(
    ('boxes', 'said'),
    [
        ([(5, 5, 5, 20)], 'boxes are not used: 2 without an area'),
        ([(30, 30, 10, 10)], 'boxes are not used: 2 without an area'),
        ([(5, 20, 20, 20)], 'boxes are not used: 2 without an area'),
        ([(60, 5, 90, 20)], 'boxes are not used: 2 outside the image'),
        *(
            ([box], 'boxes are not used: 2 outside the image')
            for box in ((-9, 5, 0, 20), (5, -9, 20, 0), (48, 5, 50, 20), (5, 40, 20, 42))
        ),
        *(
            ([box], '2 boxes reach beyond their images')
            for box in ((-9, 5, 1, 20), (5, -9, 20, 1), (47, 5, 50, 20), (5, 39, 20, 42))
        ),
        *(
            ([box], '2 boxes reach beyond their images')
            for box in ((5, 5, 900, 20), (5, 5, 20, 900), (-5, 5, 20, 20), (5, -5, 20, 20))
        ),
        ([], 'among the classes'),
    ],
)
@pytest.mark.parametrize('layout', [coco, voc])
def test_boxes_that_are_not_used_or_clipped_are_a_warning(check, tmp_path, layout, boxes, said):
    boxes = [('cell', box) for box in boxes] or [('dog', BOX)]
    (message,) = check(layout(tmp_path, [('cell', BOX), *boxes, ('plate', BOX)]))
    assert 'train_dataloader.dataset: ' in message
    assert said in message


@pytest.mark.parametrize(
    ('layout', 'options'),
    [
        (coco, dict(boxes=[('cell', BOX)])),
        (coco, dict(boxes=[('cell', BOX), ('plate', (5, 5, 5, 20))])),
        (voc, dict(boxes=[('cell', BOX), ('Plate', BOX)])),
        (voc, dict(boxes=[('cell', BOX), ('plate', (20, 20, 5, 5))])),
        *((voc, dict(boxes=[('cell', BOX), ('plate', box)])) for box in ((5, 5, 20, 5), (20, 5, 5, 20))),
        (voc, dict(difficult=['plate'])),
    ],
)
def test_a_class_without_a_box_stops_training_unless_it_is_allowed(check, tmp_path, layout, options):
    data_set = layout(tmp_path, **options)
    with pytest.raises(ValueError, match=r'train_dataloader: no box of plate; .*leave .*classes.*allow_absent=.*plate'):
        check(data_set)
    check(data_set, allow_absent=['plate'])


def test_a_class_without_a_box_in_validation_is_a_warning(check, tmp_path):
    assert any(
        'no box of plate in val_dataloader' in message
        for message in check(coco(tmp_path / 'a'), coco(tmp_path / 'b', [('cell', BOX)]))
    )


@pytest.mark.parametrize(('categories', 'classes'), [(CLASSES, CLASSES[::-1]), (CLASSES, ('dog', *CLASSES))])
def test_categories_in_another_order_than_the_classes(check, tmp_path, categories, classes):
    """Those that are no class do not count; data sets that are concatenated have one order."""
    with pytest.raises(ValueError, match=r"\['cell', 'plate'\]"):
        check(coco(tmp_path, categories=categories, classes=classes), allow_absent=['dog'])
    check(coco(tmp_path, categories=('dog', 'cell', 'cat', 'plate')))
    parts = [coco(tmp_path / 'a'), coco(tmp_path / 'b', categories=CLASSES[::-1])]
    with pytest.raises(ValueError, match=r'found 1 fault .*\n.*train_dataloader.dataset.datasets.1.metainfo.classes'):
        check(dict(type='ConcatDataset', datasets=parts))


@pytest.mark.parametrize('layout', [coco, voc])
def test_images_that_are_missing_broken_or_of_another_size(check, tmp_path, layout):
    """One that its EXIF orientation turns is of the size that is loaded."""
    data_set = layout(tmp_path)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new('RGB', SIZE[::-1]).save(tmp_path / 'JPEGImages/0.jpg', exif=exif)
    check(data_set)
    images(tmp_path, 1, (24, 20))
    (tmp_path / 'JPEGImages/1.jpg').unlink()
    with pytest.raises(ValueError, match=r'0.jpg: 24×20; its annotations have 48×40(.|\n)*1.jpg: no such file'):
        check(data_set)
    Image.effect_noise(SIZE, 90).save(tmp_path / 'JPEGImages/1.jpg')
    cut(tmp_path / 'JPEGImages/1.jpg', 0.7)
    with pytest.raises(ValueError, match=r'1.jpg: unreadable'):
        check(data_set)
    check(data_set, enabled=False)


@pytest.mark.parametrize('layout', [coco, voc])
def test_a_data_set_without_an_image_says_why(check, tmp_path, layout):
    with pytest.raises(
        ValueError, match=r"none is left after filter_cfg.*2 of names that are not .*classes: '(dog|category 99)'"
    ):
        check(layout(tmp_path, [('dog', BOX)]))


def test_annotations_that_are_missing_or_broken(check, tmp_path):
    """All of them are named at once."""
    data_set = voc(tmp_path)
    whole = (tmp_path / 'Annotations/1.xml').read_text()
    broken = (
        *('<annotation>', whole.replace('xmin>', 'x>'), re.sub('<ymax>.*?</ymax>', '<ymax>many</ymax>', whole)),
        *(
            whole.replace('difficult>0', 'difficult>no'),
            whole.replace('<width>', '<height>').replace('</width>', '</height>'),
        ),
    )
    for i, text in enumerate(broken, 2):
        (tmp_path / f'Annotations/{i}.xml').write_text(text)
    for numbers, named in (
        (range(8), ['7.xml']),
        (range(7), ['2.xml', '3.xml: .*xmin', '4.xml: .*ymax', '5.xml: .*difficult', '6.xml: .*width']),
        (range(2, 4), ['2.xml', '3.xml: .*xmin']),
    ):
        (tmp_path / 'list.txt').write_text(''.join(f'{i}\n' for i in numbers))
        with pytest.raises(ValueError, match=''.join(f'(?s:.*){name}' for name in named)):
            check(data_set)
    with pytest.raises(ValueError, match=r'no\.json'):
        check(coco(tmp_path) | dict(ann_file='no.json'))


@contextmanager
def edited(root):
    """Change a COCO file by its content."""
    path = root / 'boxes.json'
    content = json.loads(path.read_text())
    yield content
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ('changes', 'names'),
    [
        (dict(bbox=lambda box: [30, 20, SIZE[0] + 1, SIZE[1] + 1]), '4 of 4 boxes .* corners'),
        (dict(bbox=lambda box: [3, 20, 9, SIZE[1] + 1]), '4 of 4 boxes .* corners'),  # beyond one side alone
        (dict(bbox=lambda box: [30, 2, SIZE[0] + 1, 9]), '4 of 4 boxes .* corners'),
        (dict(bbox=lambda box: [float('nan'), 1, 2, 3] if box['id'] == 1 else box['bbox']), '1 of 4 boxes .*finite'),
        (dict(image_id=lambda box: str(box['image_id'])), "4 of 4 boxes .*image_id '0'"),
        (dict(area=lambda box: '9' if box['id'] == 1 else 9), "1 of 4 annotations .*area '9' of id 1"),
        (dict(iscrowd=lambda box: '0'), "4 of 4 annotations .*iscrowd '0' of id 0"),
        (dict(ignore=lambda box: 'false' if box['id'] == 1 else None), "1 of 4 annotations .*ignore 'false' of id 1"),
        (dict(iscrowd=lambda box: None if box['id'] else False, ignore=lambda box: ''), None),  # as 0
        (dict(category_id=lambda box: str(box['category_id'])), "4 of 4 annotations .*category_id '7' of id 0"),
        (dict(image_id=lambda box: [1]), 'CocoDataset'),
        (dict(bbox=lambda box: [None, 2, 9, 9] if box['id'] == 1 else box['bbox']), '(null|None|number)'),
        (dict(bbox=lambda box: [2, 9, 9] if box['id'] == 1 else box['bbox']), ''),
        (dict(bbox=lambda box: [0, 0, 1, 1] if box['id'] == 1 else box['bbox']), None),  # one pixel
        (dict(bbox=lambda box: [40, 30, 20, 20]), None),  # clipped, and no corners
        (dict(bbox=lambda box: [2, 3, SIZE[0], 9]), '4 of 4 boxes .* corners'),  # by two pixels
        (dict(bbox=lambda box: [3, 2, 9, SIZE[1]]), '4 of 4 boxes .* corners'),
        (dict(bbox=lambda box: [1, 3, SIZE[0], 9]), None),  # by one, which may be rounded
        (dict(bbox=lambda box: [3, 1, 9, SIZE[1]]), None),
        (dict(bbox=lambda box: [0, 20, 1, SIZE[1] + 1]), '4 of 4 boxes .* corners'),  # one pixel wide
        (dict(bbox=lambda box: [20, 0, SIZE[0] + 1, 1]), '4 of 4 boxes .* corners'),
        (dict(bbox=lambda box: [30, 20, SIZE[0] + 2, SIZE[1] + 1]), None),  # by one pixel more
        (dict(bbox=lambda box: [30, 20, SIZE[0] + 1, SIZE[1] + 2]), None),
    ],
)
def test_boxes_that_would_be_lost_or_misread_are_counted(check, tmp_path, changes, names):
    data_set = coco(tmp_path)
    with edited(tmp_path) as content:
        for box in content['annotations']:
            box.update({key: make(box) for key, make in changes.items()})
    with nullcontext() if names is None else pytest.raises(ValueError, match=rf'boxes\.json.*{names}'):
        check(data_set)


@pytest.mark.parametrize(
    ('edit', 'classes', 'said'),
    [
        (lambda c: [image.update(width='48') for image in c['images']], CLASSES, "2 of 2 images .*width '48' of id 0"),
        (lambda c: c['categories'].append(dict(id=70, name='cell')), CLASSES, "'cell' with id 7, 'cell' with id 70"),
        (lambda c: c['categories'].append(dict(id=7, name='dog')), CLASSES, "id of categories: 'cell' with id 7"),
        (lambda c: c['categories'][0].update(name='cell '), CLASSES, "'cell' 'cell '"),
        (lambda c: c['categories'][0].update(name='tube'), 'tube', r"\['tube'\]"),
        (lambda c: [box.update(iscrowd=1) for box in c['annotations'][:2]], CLASSES, 'no box of cell; .*: 2 of cell; '),
        (lambda c: c['images'].append(dict(c['images'][0], file_name='other.jpg')), CLASSES, r'0 \(0.jpg, other.jpg\)'),
    ],
)
def test_coco_files_that_are_misread(check, tmp_path, edit, classes, said):
    data_set = coco(tmp_path, classes=classes)
    with edited(tmp_path) as content:
        edit(content)
    with pytest.raises(ValueError, match=said):
        check(data_set)


@pytest.mark.parametrize('layout', [coco, voc])
def test_boxes_in_0_to_1_are_a_fault_unless_they_are_few(check, tmp_path, layout):
    boxes = [('cell', BOX), ('plate', BOX), ('cell', (0.1, 0.2, 0.5, 0.75)), ('cell', (0, 0, 0.98, 0.62))]
    (said,) = check(layout(tmp_path, boxes))
    assert said.endswith('boxes are not used: 4 smaller than a pixel, as boxes in 0…1 are')
    with pytest.raises(ValueError, match=r'(boxes.json|list.txt): 4 of 6 boxes are given in 0…1, .*0\.(jpg|xml)'):
        check(layout(tmp_path, boxes[1:]))


def test_boxes_of_a_pixel_at_a_fraction_are_used(check, tmp_path):
    data_set = coco(tmp_path)
    with edited(tmp_path) as content:
        content['annotations'][0]['bbox'] = [0.4, 5, 1, 1]  # 0.4 + 1 - 0.4 < 1
    assert check(data_set) == []


@pytest.mark.parametrize(
    ('change', 'said'),
    [(dict(area=0), 'area of 0'), (dict(image_id=9), 'belong to no image, such as box 0 with image_id 9')],
)
def test_boxes_that_mmdet_drops_are_a_fault_if_they_are_most(check, tmp_path, change, said):
    data_set = coco(tmp_path)
    for number in (1, 2, 3):
        with edited(tmp_path) as content:
            content['annotations'][number - 1].update(change)
        if number < 3:
            assert f'{number} of 4 boxes' in (text := check(data_set, allow_absent=CLASSES)[-1])
            assert said in text
    with pytest.raises(ValueError, match=f'boxes.json.*3 of 4 boxes .*{said}'):
        check(data_set)


def test_the_file_of_a_part_may_keep_the_boxes_of_all_images(check, tmp_path):
    data_set = coco(tmp_path)
    with edited(tmp_path) as content:
        content['annotations'] += [{**box, 'id': 9 + i, 'image_id': 9} for i, box in enumerate(content['annotations'])]
        content['annotations'].append({**content['annotations'][0], 'id': 99, 'image_id': 9})
    (said,) = check(data_set)
    assert '5 of 9 boxes belong to no image' in said


def test_ignored_annotations_need_no_box(check, tmp_path):
    data_set = coco(tmp_path)
    for ignore in (1, 0):
        with edited(tmp_path) as content:
            content['annotations'].append(dict(id=99 - ignore, image_id=0, category_id=7, ignore=ignore))
        with nullcontext() if ignore else pytest.raises(ValueError, match=r"boxes\.json .*'bbox'"):
            assert check(data_set) == []


def panoptic(root, **options):
    """The same with a segment per box."""
    data_set = coco(root, **options)
    content = json.loads((root / 'boxes.json').read_text())
    for category in content['categories']:
        category['isthing'] = int(category['name'] == 'cell')
    segments: dict = {}
    for box in content['annotations']:
        segments.setdefault(box.pop('image_id'), []).append(box)
    content['annotations'] = [dict(image_id=i, file_name=f'{i}.png', segments_info=s) for i, s in segments.items()]
    (root / 'segments.json').write_text(json.dumps(content))
    metainfo = dict(classes=CLASSES, thing_classes=CLASSES[:1], stuff_classes=CLASSES[1:])
    return data_set | dict(type='CocoPanopticDataset', ann_file='segments.json', metainfo=metainfo)


def test_segments_have_boxes(check, tmp_path):
    """Stuff counts as present, and the boxes of the same images may be in the file of another metric."""
    train, val = panoptic(tmp_path / 'a'), panoptic(tmp_path / 'b')
    files = [str(tmp_path / f'b/{name}.json') for name in ('segments', 'boxes')]
    metrics = [dict(type='CocoPanopticMetric', ann_file=files[0]), dict(type='CocoMetric', ann_file=files[1])]
    assert check(train, val, evaluator=metrics) == []
    with edited(tmp_path / 'b') as content:
        content['images'][0]['file_name'] = 'other.jpg'
    with pytest.raises(ValueError, match=r'CocoMetric compares with .*b/boxes.json, but .*segments.json'):
        check(train, val, evaluator=metrics)
    with pytest.raises(ValueError, match=r'segments\.json: 4 of 4 boxes reach beyond'):
        check(panoptic(tmp_path, boxes=[('cell', (30, 20, 78, 59)), ('plate', (30, 20, 78, 59))]))
    with pytest.raises(ValueError, match='no box of plate'):
        check(panoptic(tmp_path, boxes=[('cell', BOX)]))


def test_images_may_have_addresses_as_names(check, tmp_path, monkeypatch):
    from mmdet.datasets.api_wrappers import COCO

    monkeypatch.setitem(sys.modules, 'lvis', SimpleNamespace(LVIS=COCO))  # derives from it, with the same methods
    data_set = coco(tmp_path) | dict(type='LVISV1Dataset')
    with edited(tmp_path) as content:
        for image in content['images']:
            image['coco_url'] = f'http://images.cocodataset.org/{image.pop("file_name")}'
    assert check(data_set) == []
    with edited(tmp_path) as content:
        content['images'].append(content['images'][0])
    with pytest.raises(ValueError, match=r'0 \(http://images.*/0.jpg, http'):
        check(data_set)


def test_annotations_may_be_where_their_data_set_looks_for_them(check, tmp_path):
    data_set = voc(tmp_path) | dict(type='WIDERFaceDataset', data_prefix=dict(img=''))
    for path in (tmp_path / 'Annotations').iterdir():
        path.write_text(path.read_text().replace('<size>', '<folder>JPEGImages</folder><size>'))
    assert check(data_set) == []
    path.unlink()
    with pytest.raises(ValueError, match=path.name):
        check(data_set)


@pytest.mark.parametrize('layout', [coco, voc])
def test_annotations_are_read_with_the_backend_of_their_data_set(check, tmp_path, monkeypatch, layout):
    class Mapped(LocalBackend):
        def get_text(self, filepath, encoding='utf-8'):
            return super().get_text(str(filepath).replace('remote:', str(tmp_path)), encoding)

        @contextmanager
        def get_local_path(self, filepath):
            yield str(filepath).replace('remote:', str(tmp_path))

    monkeypatch.setitem(backends, name := layout.__name__, Mapped)  # mmengine caches it
    data_set = layout(tmp_path) | dict(data_root='remote:/', backend_args=dict(backend=name))
    metric = dict(type='CocoMetric', ann_file=str(tmp_path / 'boxes.json'))
    assert check(data_set, data_set if layout is coco else None, evaluator=metric) == []
    if layout is coco:
        with edited(tmp_path) as content:
            content['annotations'][0]['bbox'] = [1]
        with pytest.raises(ValueError, match=r'remote:/boxes\.json: 1 of 4 boxes are not four'):
            check(data_set)


@pytest.mark.parametrize('marked', [1, 3, 6])
@pytest.mark.parametrize('layout', [coco, voc])
def test_marked_boxes_are_a_warning_where_they_are_many(check, tmp_path, layout, marked):
    data_set = layout(tmp_path, [(name, (5, 5, 20 + i, 20)) for i, name in enumerate(CLASSES * 3)])
    if layout is coco:
        with edited(tmp_path) as content:
            for box in content['annotations']:
                box['iscrowd'] = int(box['id'] // 2 >= 6 - marked)
    else:
        for path in (tmp_path / 'Annotations').iterdir():
            parts = path.read_text().rsplit('<difficult>0', marked)
            path.write_text('<difficult>1'.join(parts))
    said = f'boxes are not used: {2 * marked} marked {"iscrowd" if layout is coco else "diff"}'
    warnings = check(data_set, allow_absent=CLASSES)
    assert [said in message for message in warnings] == [True] * (marked >= 3)


def test_categories_may_have_texts_as_ids(check, tmp_path):
    data_set = coco(tmp_path)
    with edited(tmp_path) as content:
        for box in content['annotations']:
            box.update(category_id=str(box['category_id']))
        for category in content['categories']:
            category.update(id=str(category['id']))
    assert check(data_set) == []


@pytest.mark.parametrize('layout', [coco, voc])
def test_a_file_with_every_box_twice_is_a_warning(check, tmp_path, layout):
    boxes = [('cell', BOX), ('plate', BOX), ('plate', (5, 5, 20, 21))]
    assert check(layout(tmp_path, boxes)) == check(layout(tmp_path, [*boxes, boxes[0]])) == []
    (said,) = check(layout(tmp_path, boxes * 2))
    assert re.search(r'train_dataloader.dataset: 6 of 12 boxes repeat .*5.*20.* of cell in .*0\.(jpg|xml)', said)


@pytest.mark.parametrize('split', [False, True])
def test_an_image_that_is_read_twice_is_a_warning(check, tmp_path, split):
    data_set = coco(tmp_path)
    if not split:
        with edited(tmp_path) as content:
            content['images'].append(dict(content['images'][0], id=9))
            content['annotations'].append(dict(content['annotations'][0], id=99, image_id=9))
    (message,) = check(data_set, *([data_set] if split else []))
    assert ('are training images' if split else 'lists 1 images more than once') in message


def test_a_copy_of_a_training_image_may_not_be_validated(check, tmp_path):
    train, val = coco(tmp_path / 'a'), coco(tmp_path / 'b')
    path = tmp_path / 'a/JPEGImages/0.jpg'
    picture = Image.open(path).convert('RGB')
    picture.paste('white', (0, 0, 8, 8))
    picture.save(path)
    shutil.copy(path, tmp_path / 'b/JPEGImages/1.jpg')
    with pytest.raises(
        ValueError, match=r'b/JPEGImages/1\.jpg: has the bytes of the training image .*a/JPEGImages/0\.jpg'
    ):
        check(train, val)
    check(train, val, allow_copies=True)


@pytest.mark.parametrize(
    ('content', 'name'), [('{"images": [', 'JSON'), ('\ufeff{}', 'BOM'), ('{"a": 1}', 'images'), ('[]', '')]
)
def test_a_file_that_is_not_in_the_format_is_named(check, tmp_path, content, name):
    data_set = coco(tmp_path)
    (tmp_path / 'boxes.json').write_text(content, encoding='utf-8')
    with pytest.raises(ValueError, match=f'boxes.json.*{name}'):
        check(data_set)


def test_a_metric_compares_with_the_file_that_its_data_set_reads(check, tmp_path):
    val, other = coco(tmp_path / 'a'), coco(tmp_path / 'b', [('cell', BOX)])
    path = tmp_path / 'b/boxes.json'
    with pytest.raises(ValueError, match=r'val_evaluator.ann_file: CocoMetric compares with .*b/boxes.json, but'):
        check(coco(tmp_path), val, evaluator=dict(type='CocoMetric', ann_file=str(path)))
    path.write_bytes((tmp_path / 'a/boxes.json').read_bytes())  # a copy
    check(other, val, evaluator=dict(type='CocoMetric', ann_file=str(path)))


@requires('mmcv operators')
def test_the_detectors_classes_are_those_of_the_data(tiny_data, tmp_path, monkeypatch):
    """By mmdet's own hook, which the shipped schedules have on."""
    for name, value in tiny_data.items():
        monkeypatch.setenv(name, value)
    name = 'attended_residual/faster-rcnn_r50-w16-attn0010-dcn_fpn_1xb8-150_bccd-320x240.py'
    cfg = Config.fromfile(config_path(name))
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.update(num_workers=0, persistent_workers=False)
    cfg.work_dir, cfg.log_level, cfg.experiment_name = str(tmp_path), 'ERROR', tmp_path.name
    cfg.train_cfg.update(max_iters=1, val_interval=2)
    cfg.model.roi_head.bbox_head.num_classes = 80
    with pytest.raises(AssertionError, match='80'):
        Runner.from_cfg(cfg).train()


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        (dict(annotations={'id': 1}), 'annotations .* dict$'),
        (dict(categories='ab'), 'categories .* str$'),
        (dict(images=[dict(id=1), 'b']), r"images\[1\] .*'b'$"),
        (dict(annotations=[dict(id=1), None]), r'annotations\[1\] .*None$'),
        (dict(categories=[dict(name='a'), dict(name=7)]), r'categories\[1\]\.name .*7$'),
        (dict(images={}), "'images', 'annotations', 'categories'"),
    ],
)
def test_entries_of_another_type_are_named(tmp_path, change, said):
    from mmattn.data_check.boxes import load_json

    path = tmp_path / 'boxes.json'
    content = dict(images=[dict(id=1)], annotations=[], categories=None)
    path.write_text(json.dumps(content))
    assert load_json(str(path)) == content
    path.write_text(json.dumps(dict(content, **change)))
    with pytest.raises(ValueError, match=rf'boxes\.json.*{said}'):
        load_json(str(path))
