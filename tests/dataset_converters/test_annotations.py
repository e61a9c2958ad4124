"""Exports of annotation tools, as the tools' own code has written them (``annotation_exports/README.md``)."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from mmattn.utils.faults import FaultsError

from ..fuzz.mutate import change, generator
from ..requirements import requires
from .conftest import OF_PYTHON, pixels, scripts
from .test_annotation_formats import HEIGHT, POINTS, WIDTH, noise

annotations, readers = scripts('annotations', 'annotation_readers')
groups, read = readers.splits.groups, readers.read
EXPORTS = Path(__file__).parent / 'annotation_exports'
NAMES = [f'clip{clip}/f_{number}' for clip in 'ab' for number in range(2)]
# Where the images of an export lie. Clip a is for validation where the export has splits.
PLACES = {
    'labelme': '{name}.png',
    'coco': 'images/{split}/{name}.png',
    'label_studio_yolo': 'images/{flat}.png',
    'cvat_yolo': 'obj_{split}_data/{name}.png',
    'ultralytics': 'images/{split}/{name}.png',
    'voc': 'JPEGImages/{name}.png',
}
BOXES_ALONE = {'cvat_yolo', 'ultralytics', 'voc'}
WITH_SPLITS = {'coco', 'cvat_yolo', 'ultralytics', 'voc'}


@pytest.fixture
def export(tmp_path):
    """Copy an export, and put its images into it."""

    def copy(name):
        folder = tmp_path / name
        shutil.copytree(EXPORTS / name, folder)
        for seed, image in enumerate(NAMES):
            split = 'val' if 'clipa' in image else 'train'
            noise(folder / PLACES[name].format(name=image, flat=image.replace('/', '_'), split=split), seed)
        return folder

    return copy


def drawn(name, image):
    """What was drawn in an image of an export: the class of each pixel, as its tool shows it."""
    truth = np.full((HEIGHT, WIDTH), 'background', dtype='<U10')
    truth[30:] = 'road'
    truth[4:20, 4:30] = 'car'
    if (name, image) == ('labelme', NAMES[0]):
        truth[7:13, 43:50] = 'sign'
        y, x = np.mgrid[:HEIGHT, :WIDTH] + 0.5
        truth[np.hypot(x - 50, y - 25) < 5] = 'car'  # painted after the road
    return truth


def written(path, config):
    return np.array([*config.metainfo.classes])[pixels(path)]


@pytest.mark.parametrize('name', sorted({*PLACES} - BOXES_ALONE))
def test_label_maps_are_what_was_drawn(command, export, out, name):
    assert command(annotations, export(name), '--task', 'segmentation', '--val-fraction', 0.5)[0] == 0
    config = Config.fromfile(out / 'config.py')
    paths = sorted((out / 'ann_dir').rglob('*.png'))
    assert len(paths) == len(NAMES)
    for path in paths:
        image = next(image for image in NAMES if path.stem in (Path(image).name, image.replace('/', '_')))
        image = image if path.parent.name not in ('clipa', 'clipb') else f'{path.parent.name}/{path.stem}'
        truth = drawn(name, image)
        # the outline of a circle runs through pixels; all else is exact
        wrong = written(path, config) != truth
        assert wrong.sum() <= (4 if (name, image) == ('labelme', NAMES[0]) else 0)
        split = path.relative_to(out / 'ann_dir').parts[0]
        if name in WITH_SPLITS:
            assert (split == 'val') == ('clipa' in image)
        assert (out / 'img_dir' / path.relative_to(out / 'ann_dir')).is_file()


@pytest.mark.parametrize('name', sorted(PLACES))
def test_boxes_are_those_that_were_drawn(command, export, out, name):
    assert command(annotations, export(name), '--task', 'detection', '--val-fraction', 0.5)[0] == 0
    seen = 0
    for split in ('train', 'val'):
        content = json.loads((out / f'{split}.json').read_text())
        names = {each['id']: each['name'] for each in content['categories']}
        for image in content['images']:
            assert (image['width'], image['height']) == (WIDTH, HEIGHT)
            assert (out / 'images' / image['file_name']).is_file()
            if name in WITH_SPLITS:
                assert (split == 'val') == ('clipa' in image['file_name'])
            boxes = [each for each in content['annotations'] if each['image_id'] == image['id']]
            boxes = {(names[each['category_id']], *np.round(each['bbox'], 3)): each['area'] for each in boxes}
            # YOLO's fractions have six decimals
            assert boxes['car', 4, 4, 26, 16] == pytest.approx(416, rel=1e-5)
            assert boxes['road', 0, 30, 64, 18] == pytest.approx(1152, rel=1e-5)
            seen += 1
    assert seen == len(NAMES)


def labelme(folder, name, shapes, size=(WIDTH, HEIGHT), suffix='png'):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    content = dict(shapes=shapes, imagePath=f'{Path(name).name}.{suffix}', imageWidth=size[0], imageHeight=size[1])
    (folder / f'{name}.json').write_text(json.dumps(content))


def polygon(label, *points, **more):
    return dict(label=label, points=points, shape_type='polygon', **more)


def squares(folder, *names):
    for name in names:
        labelme(folder, name, [polygon('a', *POINTS)])
        noise(folder / f'{name}.png')


@pytest.mark.parametrize(
    ('files', 'line'),
    [
        (('train.txt', 'val.txt'), '{}\n'),
        (('Train.txt', 'Validation.txt'), '{}\n'),
        (('train.txt', 'val.txt'), '/data/train/{}.JPG\n'),
        (('train.txt', 'val.txt'), 'set\\images\\{}.png\r\n'),
        (('train.txt', 'val.txt'), 'Annotations/{}.xml\n'),
        (('trainval.txt', 'Val.txt'), '{}\n'),
    ],
)
@pytest.mark.parametrize('name', ['f_{}', 'site.000{}'])
def test_splits_are_those_of_lists(tmp_path, name, files, line):
    """Also below a folder ``labels``, whose texts are YOLO's only inside of an export."""
    folder, names = tmp_path / 'labels/export', [name.format(number) for number in range(4)]
    squares(folder, *names)
    for file, listed in zip(files, (names if 'trainval' in files[0] else names[:2], names[2:])):
        (folder / file).write_bytes(''.join(map(line.format, listed)).encode())
    assert [picture.split for picture in read(folder).pictures.values()] == ['train', 'train', 'val', 'val']


def test_trainval_is_divided_where_there_is_no_other_list_of_its_images(tmp_path, command, out):
    folder, names = tmp_path / 'export', [f'f_{number}' for number in range(9)]
    squares(folder, *names)
    for split, listed in dict(trainval=names[:6], test=names[6:]).items():
        (folder / f'{split}.txt').write_text('\n'.join(listed))
    assert command(annotations, folder, '--task', 'detection', '--val-fraction', 0.5)[0] == 0
    found = {
        split: [Path(image['file_name']).stem for image in json.loads((out / f'{split}.json').read_text())['images']]
        for split in ('train', 'val', 'test')
    }
    assert found['test'] == names[6:]
    assert {*found['train'], *found['val']} == {*names[:6]}
    assert len(found['train']) == len(found['val']) == 3
    (folder / 'train.txt').write_text('\n'.join(names[:4]))
    (folder / 'val.txt').write_text('\n'.join(names[4:6]))
    assert [picture.split for picture in read(folder).pictures.values()] == ['train'] * 4 + ['val'] * 2 + ['test'] * 3


LATIN = 'öl.png\n'.encode('latin-1')  # as an old editor writes names
YOLO = dict.fromkeys(('labels/a.txt', 'labels/b.txt', 'notes.txt'), b'0 0.5 0.5 0.5 0.5')
FAULTS = [  # outlines by image; other files: None is an image, False a missing one; places, and what is named
    (dict(one=[], two=[]), {}, ['.'], []),
    (dict(one=[], two=[]), {'two.png': False}, ['two.json'], []),
    (dict(one=[POINTS]), {'val.txt': LATIN}, ['val.txt'], []),
    ({}, {'val.txt': LATIN}, ['.'], []),
    # the split would be random, though one was published
    (dict(one=[POINTS], two=[POINTS]), {'train.txt': b'one 1', 'val.txt': b'two -1'}, ['.'], ['one 1']),
    (
        dict(one=[POINTS], two=[POINTS]),
        {'all.json': b'{"images": [], "annotations": [], "categories": []}'},
        ['.'],
        ['2 of labelme', '1 of COCO'],
    ),
    (
        dict(one=[POINTS]),
        {'two.json': b'{"shapes": [], "imagePath": "one.png"}'},
        ['two.json'],
        ['one.png', 'one.json'],
    ),
    ({}, {'images/a.png': None, 'classes.txt': b'roof', **YOLO}, ['labels/b.txt', 'notes.txt'], []),
]


@pytest.mark.parametrize(('shapes', 'files', 'places', 'words'), FAULTS)
def test_files_that_do_not_fit_together_are_faults(tmp_path, shapes, files, places, words):
    for name, points in shapes.items():
        labelme(tmp_path, name, [polygon('a', *each) for each in points])
        noise(tmp_path / f'{name}.png')
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        if data is None:
            noise(tmp_path / name)
        elif data is False:
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_bytes(data)
    with pytest.raises(FaultsError) as caught:
        read(tmp_path)
    assert {*caught.value.by_path} == {str(tmp_path / place) for place in places}
    assert [word for word in words if word not in str(caught.value)] == []


def test_folders_that_have_the_splits_need_no_lists(tmp_path):
    squares(tmp_path / 'train', 'three')
    squares(tmp_path / 'val', 'four')
    (tmp_path / 'train.txt').write_text('one 1')
    assert [picture.split for picture in read(tmp_path).pictures.values()] == ['train', 'val']


@pytest.mark.parametrize('place', ['.', 'labels/export'])
def test_an_image_of_yolo_may_be_named_like_a_split(tmp_path, place):
    """Its text is no list of images. A text beside the folders has no image, wherever the export lies."""
    folder = tmp_path / place
    for name in ('test', 'other'):
        noise(folder / f'images/{name}.png')
        (folder / 'labels').mkdir(exist_ok=True)
        (folder / f'labels/{name}.txt').write_text('0 0.5 0.5 0.5 0.5')
    (folder / 'classes.txt').write_text('roof\n')
    (folder / 'README.txt').write_text('Roofs.')
    assert [picture.shapes[0].bounds for picture in read(folder).pictures.values()] == [[16, 12, 48, 36]] * 2


def test_files_of_no_known_format_are_named_and_left_out(tmp_path, capsys):
    """Five of them."""
    labelme(tmp_path, 'one', [polygon('a', *POINTS)])
    noise(tmp_path / 'one.png')
    read(tmp_path)
    assert capsys.readouterr().err == ''
    for number in range(8):
        (tmp_path / f'other{number}.json').write_text('[1]')
    assert len(read(tmp_path).pictures) == 1
    assert re.findall(r'other\d|3 more', capsys.readouterr().err) == [*(f'other{n}' for n in range(5)), '3 more']


def test_of_images_in_other_folders_that_of_the_same_suffix_is_meant(tmp_path):
    labelme(tmp_path / 'annotations', 'a', [polygon('a', *POINTS)])
    for name in ('x/a.jpg', 'y/a.png', 'z/a.tif'):
        noise(tmp_path / 'images' / name)
    found = read(tmp_path / 'annotations', tmp_path / 'images')
    assert [*found.pictures] == [tmp_path / 'images/y/a.png']


@pytest.mark.parametrize('suffix', ['jpg', 'tif', 'png'])
@pytest.mark.parametrize('orientation', range(1, 9))
def test_shapes_are_of_the_upright_image(tmp_path, orientation, suffix):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new('RGB', (WIDTH, HEIGHT)).save(tmp_path / f'a.{suffix}', exif=exif)
    upright = (WIDTH, HEIGHT)[:: 1 if orientation < 5 else -1]
    labelme(tmp_path, 'a', [polygon('a', *POINTS)], upright, suffix)
    (picture,) = read(tmp_path).pictures.values()
    assert picture.size == upright
    labelme(tmp_path, 'a', [polygon('a', *POINTS)], upright[::-1], suffix)
    with pytest.raises(FaultsError, match=r'a\.json: .*64×48.*48×64|a\.json: .*48×64.*64×48') as caught:
        read(tmp_path)
    assert ('EXIF' in str(caught.value)) == (orientation > 4)


def test_shapes_of_a_group_are_one_object_and_later_shapes_cover_earlier_ones(tmp_path, command, out):
    folder = tmp_path / 'export'
    far = [(x + 30, y + 10) for x, y in POINTS]
    shapes = [
        polygon('b', *POINTS),
        polygon('a', (20, 20), (40, 20), (40, 40), (20, 40), group_id=1),
        polygon('a', *far, group_id=1),
        polygon('b', *far, group_id=1),
    ]
    for name in ('one', 'two'):
        labelme(folder, name, shapes)
        noise(folder / f'{name}.png')
    assert command(annotations, folder, '--task', 'detection', '--val-fraction', 0.5)[0] == 0
    content = json.loads((out / 'train.json').read_text())
    assert [(each['category_id'], each['bbox']) for each in content['annotations']] == [
        (2, [10, 10, 20, 20]),
        (1, [20, 20, 40, 20]),
        (2, [40, 20, 20, 20]),
    ]
    labels = read(folder).pictures[folder / 'one.png']
    painted = annotations.paint(labels, ['', 'a', 'b'])
    assert (painted[25, 25], painted[15, 15], painted[30, 50], painted[0, 0]) == (1, 2, 2, 0)


def test_images_of_voc_have_the_name_of_their_xml_file_or_else_that_inside_of_it(tmp_path):
    """The names inside of copied files are stale. A mask has the name of its image, too."""

    def written(name, inside, folder='VOC2012'):
        path = tmp_path / f'Annotations/{name}.xml'
        path.parent.mkdir(parents=True, exist_ok=True)
        box = '<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>'
        path.write_text(
            f'<annotation><folder>{folder}</folder><filename>{inside}</filename><object><name>a</name>{box}</object>'
            '</annotation>'
        )

    def images():
        return {Path(each.source).stem: image for image, each in read(tmp_path).pictures.items()}

    for image in ('JPEGImages/0.jpg', 'JPEGImages/1.jpg', 'JPEGImages/x_2.jpg', 'Masks/1.png'):
        noise(tmp_path / image)
    written('1', '0.jpg')
    written('ann_2', 'x_2.jpg')
    assert images() == {'1': tmp_path / 'JPEGImages/1.jpg', 'ann_2': tmp_path / 'JPEGImages/x_2.jpg'}
    for folder in 'ab':
        noise(tmp_path / f'{folder}/3.jpg')
        noise(tmp_path / f'{folder}/ann_2.jpg')
    written('3', '3.jpg', 'b')
    assert images() == {
        '1': tmp_path / 'JPEGImages/1.jpg',
        'ann_2': tmp_path / 'JPEGImages/x_2.jpg',
        '3': tmp_path / 'b/3.jpg',
    }


def test_categories_with_gaps_and_a_root_that_only_groups(export):
    folder = export('coco')
    for path in (folder / 'annotations').glob('*.json'):
        content = json.loads(path.read_text())
        new = {each['id']: 7 * each['id'] + 3 for each in content['categories']}
        for each in content['categories']:
            each.update(id=new[each['id']], supercategory='things')
        for each in content['annotations']:
            each['category_id'] = new[each['category_id']]
        content['categories'].append(dict(id=0, name='things', supercategory='none'))
        path.write_text(json.dumps(content))
    export = read(folder)
    assert export.classes == ['road', 'car']
    assert {shape.label for picture in export.pictures.values() for shape in picture.shapes} == {'road', 'car'}


@pytest.mark.parametrize('crowds', [0, 1])
def test_crowds_do_not_train_and_are_counted(command, export, out, crowds):
    """In detection. CVAT marks each mask so."""
    folder = export('coco')
    for path in (folder / 'annotations').glob('*.json'):
        content = json.loads(path.read_text())
        for each in content['annotations'][:crowds]:
            each['iscrowd'] = 1
        path.write_text(json.dumps(content))
    code, said, _ = command(annotations, folder, '--task', 'detection')
    assert code == 0
    assert [line.split()[0] for line in said if 'as crowds' in line] == ['2'] * crowds
    for split in ('train', 'val'):
        marks = [each['iscrowd'] for each in json.loads((out / f'{split}.json').read_text())['annotations']]
        assert marks.count(1) == crowds
    _, said, _ = command(annotations, folder, '--task', 'segmentation', '--overwrite')
    assert not any('as crowds' in line for line in said)


def test_groups_are_clips_or_single_images():
    frames = [Path(f'{clip}/frame_{i:03}.png') for clip in 'wxyz' for i in range(3)]
    assert len({*groups(frames).values()}) == 4
    photographs = [Path(f'IMG_{i:04}.jpg') for i in range(9)]
    assert len({*groups(photographs).values()}) == 9
    altered = [Path(f'IMG_{i:04}_jpg.rf.{h * 8}.jpg') for i in range(9) for h in 'ab']
    assert len({*groups(altered).values()}) == 9


@pytest.mark.parametrize(('first', 'together'), [(3, True), (4, False)])
def test_a_group_has_at_most_half_of_the_images(first, together):
    """Of those of four groups, of which three have one image."""
    frames = [Path(f'a_{i}.png') for i in range(first)] + [Path(f'{clip}_0.png') for clip in 'bcd']
    assert len({*groups(frames).values()}) == (4 if together else first + 3)


def roboflow(folder, form, splits, copies=1):
    """An export after Roboflow's documentation: a folder per split, and several altered copies of an image."""
    number = 0
    for split, images in splits.items():
        inside = folder / split / ('images' if form == 'yolo' else '')
        names = [f'{name}_JPG.rf.{copy}' for name in images for copy in range(copies if split == 'train' else 1)]
        for name in names:
            noise(inside / f'{name}.png', seed=number)
            (inside / f'{name}.png').rename(inside / f'{name}.jpg')
            number += 1
        files = {}
        if form == 'yolo':
            outline = ' '.join(map(str, (np.array(POINTS) / (WIDTH, HEIGHT)).ravel()))
            files = {f'../labels/{name}.txt': f'1 {outline}' for name in names}
            files['../../data.yaml'] = "train: ../train/images\nval: ../valid/images\nnc: 2\nnames: ['cat', 'dog']\n"
        elif form == 'darknet':
            box = f'1 {20 / WIDTH} {20 / HEIGHT} {20 / WIDTH} {20 / HEIGHT}\n'
            files = {f'{name}.txt': box for name in names} | {'_darknet.labels': 'cat\ndog'}
        elif form == 'voc':
            box = '<xmin>10</xmin><xmax>30</xmax><ymin>10</ymin><ymax>30</ymax>'
            shown = f'<object><name>dog</name><occluded>0</occluded><bndbox>{box}</bndbox></object>'
            shown += f'<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size><folder></folder>'
            files = {f'{n}.xml': f'<annotation><filename>{n}.jpg</filename>{shown}</annotation>' for n in names}
        else:
            shape = dict(category_id=2, bbox=[10, 10, 20, 20], area=400, segmentation=[np.ravel(POINTS).tolist()])
            content = dict(
                images=[dict(id=i, file_name=f'{n}.jpg', width=WIDTH, height=HEIGHT) for i, n in enumerate(names)],
                annotations=[dict(shape, id=i, image_id=i) for i in range(len(names))],
                categories=[
                    dict(id=i, name=name, supercategory='pets' if i else 'none')
                    for i, name in enumerate(('pets', 'cat', 'dog'))
                ],
            )
            files = {'_annotations.coco.json': json.dumps(content)}
        for name, text in files.items():
            (inside / name).parent.mkdir(exist_ok=True)
            (inside / name).write_text(text)
    (folder / 'README.roboflow.txt').write_text('# pets > 2026\nhttps://example.org\n')


@pytest.mark.parametrize('form', ['coco', 'voc', 'yolo', 'darknet'])
def test_roboflow(tmp_path, command, out, form):
    """Its splits are kept. If it has one, no copies of an image are parted, whatever the seed."""
    roboflow(tmp_path / 'split', form, dict(train=['ant', 'bee'], valid=['cow'], test=['dog']), copies=3)
    assert command(annotations, tmp_path / 'split', '--task', 'detection')[0] == 0
    count = {
        split: len(json.loads((out / f'{split}.json').read_text())['images']) for split in ('train', 'val', 'test')
    }
    assert count == dict(train=6, val=1, test=1)
    config = Config.fromfile(out / 'config.py')
    for split in ('val', 'test'):
        assert config[f'{split}_dataloader'].dataset.ann_file == f'{split}.json'
        assert config[f'{split}_evaluator'] == dict(type='CocoMetric', metric='bbox', ann_file=f'{out}/{split}.json')
    content = json.loads((out / 'val.json').read_text())
    assert [each['name'] for each in content['categories']] == (['dog'] if form == 'voc' else ['cat', 'dog'])
    assert [np.round(each['bbox'], 3).tolist() for each in content['annotations']] == [[10, 10, 20, 20]]
    roboflow(tmp_path / 'one', form, dict(train=['IMG_1', 'IMG_2', 'IMG_3', 'IMG_4', 'IMG_5']), copies=3)
    for seed in range(4):
        options = '--task', 'detection', '--overwrite', '--seed', seed
        assert command(annotations, tmp_path / 'one', *options)[0] == 0
        sources = [
            {
                Path(image['file_name']).name.split('_JPG')[0]
                for image in json.loads((out / f'{name}.json').read_text())['images']
            }
            for name in ('train', 'val')
        ]
        assert not sources[0] & sources[1]
        assert len(sources[0]) == 4
    config = Config.fromfile(out / 'config.py')
    assert config.test_evaluator.ann_file == f'{out}/val.json'
    assert config.test_dataloader.dataset.ann_file == 'val.json'
    if form in ('coco', 'yolo'):
        assert command(annotations, tmp_path / 'split', '--task', 'segmentation', '--overwrite')[0] == 0
        assert Config.fromfile(out / 'config.py').test_dataloader.dataset.data_prefix.img_path == 'img_dir/test'
        [path] = (out / 'ann_dir/val').iterdir()
        labels = pixels(path)
        assert (labels == 2).sum() == (labels[10:30, 10:30] == 2).sum() == 400


@requires('tifffile')
def test_shapes_of_images_with_four_channels_of_16_bits(tmp_path, command, out):
    import tifffile

    for seed, name in enumerate('abcd'):
        folder = tmp_path / 'export'
        labelme(folder, name, [polygon('field', *POINTS)], suffix='tif')
        image = np.random.default_rng(seed).integers(0, 9000, (HEIGHT, WIDTH, 4), np.uint16)
        tifffile.imwrite(folder / f'{name}.tif', image, photometric='minisblack', planarconfig='contig')
    assert command(annotations, folder, '--task', 'segmentation', '--val-fraction', 0.25)[0] == 0
    config = Config.fromfile(out / 'config.py')
    assert config.model.backbone.in_channels == 4
    paths = [*(out / 'ann_dir').rglob('*.png')]
    assert len(paths) == 4
    for path in paths:
        image = out / 'img_dir' / path.relative_to(out / 'ann_dir').with_suffix('.tif')
        assert image.read_bytes() == (folder / image.name).read_bytes()
        assert (pixels(path)[10:30, 10:30] == 1).all()
    assert (
        command(annotations, folder, '--task', 'segmentation', '--val-fraction', 0.25, '--crop', 8, '--overwrite')[0]
        == 0
    )
    pieces = [*(out / 'img_dir/train').glob('*.npy')]
    assert len(pieces) == 3 * 12
    assert all(np.load(path).shape == (16, 16, 4) for path in pieces)


def test_clips_are_never_parted(tmp_path, command, out):
    folder = tmp_path / 'export'
    for clip in 'abcdefgh':
        for number in range(4):
            labelme(folder, f'{clip}_{number}', [polygon('thing', *POINTS)])
            noise(folder / f'{clip}_{number}.png')
    for seed in range(3):
        assert command(annotations, folder, '--task', 'detection', '--seed', seed, '--overwrite')[0] == 0
        clips = {
            split: {
                Path(image['file_name']).name[0] for image in json.loads((out / f'{split}.json').read_text())['images']
            }
            for split in ('train', 'val')
        }
        assert not clips['train'] & clips['val']
        assert len(clips['val']) == 2


def test_the_config_reads_what_was_written(command, export, out):
    from mmseg.registry import DATASETS
    from mmseg.utils import register_all_modules

    assert command(annotations, export('coco'), '--task', 'segmentation', '--classes', 'car', 'road')[0] == 0
    register_all_modules(init_default_scope=False)
    config = Config.fromfile(out / 'config.py')
    assert config.model.decode_head.num_classes == 3
    dataset = DATASETS.build(dict(config.val_dataloader.dataset, _scope_='mmseg'))
    assert dataset.metainfo['classes'] == ('background', 'car', 'road')
    for sample in (dataset[0], dataset[1]):
        labels = sample['data_samples'].gt_sem_seg.data
        assert {*labels.unique().tolist()} == {0, 1, 2}


@pytest.mark.parametrize(('mode', 'suffix'), [('CMYK', 'jpg'), ('LAB', 'tif')])
def test_an_image_of_another_mode_is_converted_beside_a_png(tmp_path, command, out, mode, suffix):
    folder = tmp_path / 'export'
    squares(folder, 'one', 'two')
    colour = (200, 40, 90)
    Image.new('RGB', (WIDTH, HEIGHT), colour).convert(mode).save(folder / f'one.{suffix}')
    (folder / 'one.png').unlink()
    assert command(annotations, folder, '--task', 'segmentation', '--val-fraction', 0.5)[0] == 0
    [path] = (out / 'img_dir').rglob('one.png')
    with Image.open(path) as image:
        assert np.abs(np.subtract(image.getpixel((9, 9)), colour)).max() <= 3


@pytest.mark.parametrize(
    ('name', 'options', 'names'),
    [
        ('voc', ['--task', 'segmentation'], '--task detection'),
        ('coco', ['--task', 'detection', '--classes', 'car'], '--classes.*road'),
        ('coco', ['--task', 'detection', '--classes', 'cars', 'road'], 'cars'),
        ('coco', ['--task', 'detection', '--val-fraction', 1], '--val-fraction.*1'),
    ],
)
def test_options_that_do_not_fit(fails, export, name, options, names):
    assert re.search(names, ' '.join(fails(annotations, export(name), *options)))


def test_the_output_of_an_earlier_run_is_no_part_of_the_export(command, export):
    folder = export('voc')
    out = folder / 'converted'
    for _ in range(2):
        assert command(annotations, folder, '--task', 'detection', '--overwrite', out=out)[0] == 0
    content = [json.loads((out / f'{split}.json').read_text()) for split in ('train', 'val')]
    assert sum(len(part['images']) for part in content) == len(NAMES)


@pytest.mark.parametrize('name', sorted(PLACES))
def test_a_spoilt_export_is_read_or_is_a_fault_of_its_file(export, tmp_path, name):
    """No other exception, whatever place of whatever file is spoilt."""
    folder, rng, wrong = export(name), generator(name), []
    files = [path for path in sorted(folder.rglob('*')) if path.is_file() and path.suffix != '.png']
    for _ in range(30):
        path = rng.choice(files)
        whole = path.read_bytes()
        path.write_bytes(change(rng, path.name, whole)[0])
        try:
            found = read(folder)
            for picture in found.pictures.values():
                annotations.paint(picture, found.classes)
                annotations.coco_content([picture], found.classes)
        except FaultsError as fault:
            wrong += [line for line in fault.lines() if str(folder) not in line or OF_PYTHON.search(line)]
        path.write_bytes(whole)
    assert not wrong
