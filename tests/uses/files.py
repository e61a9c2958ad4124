"""Folders of images, masks, boxes and frames as people have them."""

import json
from types import SimpleNamespace

import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image

from . import error, later, warning, works

CLASSES = ('a', 'b')
HEIGHT, WIDTH = 20, 24


def picture(path, mode='RGB', size=(WIDTH, HEIGHT), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 4), np.uint8)
    Image.fromarray(noise).convert(mode).save(path, **options)


def mask(path, values=(0, 1), mode=None, size=(WIDTH, HEIGHT), dtype=np.uint8, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.resize(np.array(values, dtype), size[::-1]))
    if mode == 'P':
        image = image.convert('P')
        image.putpalette([200, 0, 0, 0, 200, 0] * 128)
    elif mode:
        image = image.convert(mode)
    image.save(path, **options)


def sound(folder, names=('1', '2'), part='train', suffix='.png'):
    for name in names:
        picture(folder / f'data/img_dir/{part}/{name}{suffix}')
        mask(folder / f'data/ann_dir/{part}/{name}.png')


def check(folder, model=None, loaders=None, **options):
    """Check the data as before training; an error lists all faults."""
    from mmattn.segmentation import SegDataCheckHook

    init_default_scope('mmseg')
    hook = {key: options.pop(key) for key in ('allow_absent', 'allow_ignored') if key in options}
    data = dict(
        type='BaseSegDataset',
        data_root=str(folder / 'data'),
        img_suffix='.png',
        metainfo=dict(classes=CLASSES),
        data_prefix=dict(img_path='img_dir/train', seg_map_path='ann_dir/train'),
        pipeline=[dict(type=name) for name in ('LoadImageFromFile', 'LoadAnnotations', 'PackSegInputs')],
    )
    val = options.pop('val', None)
    cfg = dict(train_dataloader=dict(dataset={**data, **options}, **(loaders or {})), model=model)
    if val:
        prefix = dict(img_path='img_dir/val', seg_map_path='ann_dir/val')
        cfg['val_dataloader'] = dict(dataset={**data, 'data_prefix': prefix, **val})
    runner = SimpleNamespace(cfg=Config(cfg), work_dir=str(folder / 'work'), model=None)
    (folder / 'work').mkdir(exist_ok=True)
    SegDataCheckHook(**hook).before_loops(runner)
    return True


@later
def checked(folder, prepare=lambda data: None, **options):
    sound(folder)
    prepare(folder / 'data')
    return check(folder, **options)


@later
def with_image(folder, *args, name='1.png', **options):
    """One of the images is of this kind."""
    sound(folder)
    picture(folder / 'data/img_dir/train' / name, *args, **options)
    return check(folder)


@later
def with_mask(folder, *args, name='1.png', suffix='.png', **options):
    """One of the masks is of this kind."""
    sound(folder)
    mask(folder / 'data/ann_dir/train' / name, *args, **options)
    return check(folder, seg_map_suffix=suffix)


def text_as_image(text):
    return checked(lambda data: (data / 'img_dir/train/1.png').write_text(text))


def small_sample(data):
    picture(data / 'img_dir/train/1.png', size=(10, 10))
    mask(data / 'ann_dir/train/1.png', size=(10, 10))


def swapped(folder):
    sound(folder)
    return check(folder, data_prefix=dict(img_path='ann_dir/train', seg_map_path='img_dir/train'))


def linked(folder):
    sound(folder / 'elsewhere')
    (folder / 'data').symlink_to(folder / 'elsewhere/data')
    return check(folder)


@later
def listed(folder, text, encoding='utf-8'):
    sound(folder)
    (folder / 'data/list.txt').write_bytes(text.encode(encoding))
    return check(folder, ann_file='list.txt')


@later
def boxes(folder, change=lambda content: None, **options):
    from mmattn.detection import DetDataCheckHook

    init_default_scope('mmdet')
    for i in range(2):
        picture(folder / f'images/{i}.jpg')
    box = dict(bbox=[2, 2, 9, 9], area=81, iscrowd=0)
    content = dict(
        images=[dict(id=i, file_name=f'{i}.jpg', width=WIDTH, height=HEIGHT) for i in range(2)],
        categories=[dict(id=i, name=name) for i, name in enumerate(CLASSES)],
        annotations=[dict(box, id=2 * i + k, image_id=i, category_id=k) for i in range(2) for k in range(2)],
    )
    content = change(content) or content
    (folder / 'boxes.json').write_text(json.dumps(content))
    dataset = dict(
        type='CocoDataset',
        data_root=str(folder),
        ann_file='boxes.json',
        data_prefix=dict(img='images/'),
        metainfo=dict(classes=CLASSES),
        **options,
    )
    cfg = Config(dict(default_scope='mmdet', train_dataloader=dict(dataset=dataset)))
    (folder / 'work').mkdir()
    DetDataCheckHook().before_loops(SimpleNamespace(cfg=cfg, work_dir=str(folder / 'work')))
    return True


def one_box(**changes):
    return boxes(lambda content: content['annotations'][0].update(changes))


def every(part, **changes):
    return boxes(lambda content: [entry.update(changes) for entry in content[part]] and None)


def clip(names, folder, size=(WIDTH, HEIGHT)):
    for name in names:
        picture(folder / 'JPEGImages/cat' / name, size=size)


@later
def ordered(folder, *names):
    """The order in which a clip's frames are read is the given one."""
    clip(names, folder)
    mask(folder / 'Annotations/cat' / f'{names[0].rpartition(".")[0]}.png')
    dataset = DATASETS.build(dict(type='mmattn.VideoFolderDataset', allow_gaps=True))
    paths = next(value for key, value in dataset[0].items() if key in ('img_paths', 'frame_paths', 'frames'))
    return [str(path).rpartition('/')[2] for path in paths] == [*names]


@later
def clip_with(folder, path, *args, allow_gaps=False, **options):
    """A clip of three frames and the mask of the first, with another frame or mask."""
    clip([f'{i:05}.jpg' for i in range(3)], folder)
    mask(folder / 'Annotations/cat/00000.png')
    (picture if path.endswith('.jpg') else mask)(folder / path.replace('/', '/cat/'), *args, **options)
    return len(DATASETS.build(dict(type='mmattn.VideoFolderDataset', allow_gaps=allow_gaps)))


@later
def ids(folder, values=(0, 1), **options):
    from mmattn.video import object_ids, read_mask

    single = options.pop('single_object', False)
    path = folder / options.pop('name', 'm.png')
    mask(path, values, **options)
    return object_ids(read_mask(path, single_object=single))


@later
def overlay(_, shape):
    from mmattn.video import draw_overlay

    frame = np.full((*shape, 3), 100, np.uint8)
    drawn = draw_overlay(frame, np.ones(shape, np.uint8), 0.5)
    return drawn.shape == frame.shape and not np.array_equal(drawn, frame)


@later
def converted(folder, options='', palette='a:0,0,0 b:255,255,255', out='out'):
    from .tools import command

    picture(folder / 'photos/1.jpg')
    mask(folder / 'masks/1.png', (0, 255), mode='RGB')
    paths = f'--images photos --masks masks --out-dir {out}'
    command(f'dataset_converters/color_labels.py {paths} --palette {palette} {options}')(folder)
    return sorted(np.unique(Image.open('out/ann_dir/1.png')).tolist())


USES = {
    'segmentation data': [
        works('sound', checked()),
        works('masks with a palette', with_mask(mode='P')),
        works('masks of one bit', with_mask((0, 255), mode='1')),
        works('masks of 16 bit', with_mask(dtype=np.uint16)),
        works('behind a link', linked),
        error('images and masks exchanged', swapped, r'(img_dir|ann_dir)/train'),
        error('no such folder', lambda f: check(f), r'img_dir/train'),
        error('masks with transparency', with_mask(mode='LA'), r'ann_dir/train/1\.png'),
        error('a mask that is a JPEG named PNG', with_mask(format='JPEG'), r'1\.png.*lossless'),
        error(
            'floats in a TIFF as masks', with_mask(name='1.tif', suffix='.tif', dtype=np.float32), r'(2\.tif|1\.tif)'
        ),
    ],
    'image formats': [
        works('CMYK', with_image('CMYK', format='JPEG')),
        works('progressive JPEG', with_image(format='JPEG', progressive=True)),
        works('grey with transparency', with_image('LA')),
        works('a palette', with_image('P')),
        works('lossless WebP as images', with_image(format='WEBP', lossless=True)),
        error('HTML of a failed download', text_as_image('<html>404'), r'1\.png'),
        error(
            'a pointer of Git LFS',
            text_as_image('version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n'),
            r'1\.png.*LFS',
        ),
    ],
    'list of images': [
        works('CRLF, and no end of the last line', listed('1\r\n2')),
        works('spaces at the ends of lines', listed('1 \n2\t\n')),
        error('with suffixes', listed('1.png\n2.png\n'), r'1\.png.*without \.png'),
        error('a blank line between', listed('1\n\n2\n'), r"list\.txt.*''|blank|empty"),
        error('of another data set', listed('9\n'), r'9.*list\.txt'),
    ],
    'classes': [
        error('more than the head', checked(model=dict(decode_head=dict(num_classes=3))), 'num_classes.*3.*2'),
        error('half a class', checked(model=dict(decode_head=dict(num_classes=2.5))), r'num_classes.*2\.5'),
        error('named twice', checked(metainfo=dict(classes=('a', 'a'))), 'duplicate|distinct'),
        error('one text', checked(metainfo=dict(classes=('tube'))), r"\['tube'\]"),
        error('a class without a pixel', checked(metainfo=dict(classes=('a', 'b', 'c'))), r'no mask.*\bc\b'),
        works('without a pixel on purpose', checked(metainfo=dict(classes=('a', 'b', 'c')), allow_absent='c')),
    ],
    'splits': [
        warning(
            'validation within training',
            checked(val=dict(data_prefix=dict(img_path='img_dir/train', seg_map_path='ann_dir/train'))),
            'training images',
        ),
        error('no validation images', checked(val=dict(lazy_init=False)), r'val'),
    ],
    'batches': [
        error(
            'crop above the size of the preprocessor',
            checked(
                small_sample,
                model=dict(data_preprocessor=dict(type='SegDataPreProcessor', size=(8, 8))),
                loaders=dict(batch_size=2),
            ),
            r'data_preprocessor\.size',
        ),
        error(
            'neither size nor divisor',
            checked(model=dict(data_preprocessor=dict(type='SegDataPreProcessor'))),
            'size_divisor',
        ),
        error(
            'a softmax over one logit',
            checked(model=dict(decode_head=dict(num_classes=2, out_channels=1))),
            'use_sigmoid',
        ),
    ],
    'labels': [
        error(
            'reduce_zero_label in the pipeline alone',
            checked(pipeline=[dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', reduce_zero_label=True)]),
            'reduce_zero_label.*LoadAnnotations',
        ),
        warning(
            'a class that is ignored',
            checked(model=dict(decode_head=dict(num_classes=2, ignore_index=0))),
            'ignored.*ignore_index',
        ),
    ],
    'hidden files': [
        works('of a Mac, which mmseg does not read', with_image(name='._1.png')),
        error('a folder of thumbnails', with_image(name='.thumbnails/1.png'), 'thumbnails'),
    ],
    'boxes': [
        works('sound', boxes()),
        works('of floats', one_box(bbox=[2.5, 2.5, 8.1, 8.9])),
        error('corners in place of sizes', one_box(bbox=[12, 12, 20, 18]), r'boxes\.json|0\.jpg'),
        error('fractions of the image', every('annotations', bbox=[0.1, 0.1, 0.5, 0.5]), r'boxes\.json'),
        error('null', one_box(bbox=[None, 2, 9, 9]), r'boxes\.json.*(null|None|number)'),
        error('NaN', one_box(bbox=[float('nan'), 2, 9, 9]), r'boxes\.json'),
        error('of three numbers', one_box(bbox=[2, 9, 9]), r'boxes\.json'),
        error('of an image that is not listed', one_box(image_id=9), r'boxes\.json.*9'),
        error('all crowds', every('annotations', iscrowd=1), 'crowd'),
        error('sizes of the images exchanged', every('images', width=HEIGHT, height=WIDTH), r'0\.jpg'),
        error(
            'categories of another list',
            boxes(lambda content: content.update(categories=[dict(id=0, name='x'), dict(id=1, name='y')])),
            'x',
        ),
        error('a list in place of a dict', boxes(lambda content: content['annotations']), r'boxes\.json'),
    ],
    'frames': [
        works('without zeros in front', ordered('1.jpg', '2.jpg', '10.jpg')),
        works('a number in the middle', ordered('f1_l.jpg', 'f2_l.jpg', 'f10_l.jpg')),
        works('copies of a browser', ordered('i (1).jpg', 'i (2).jpg', 'i (10).jpg')),
        works('dates and times', ordered('20240131_235959.jpg', '20240201_000000.jpg')),
        works('seconds and fractions', ordered('9.975304.jpg', '10.175304.jpg')),
        works('suffixes in capitals', ordered('1.JPG', '2.JPG')),
        error('of two sizes', clip_with('JPEGImages/00001.jpg', size=(8, 8)), r'00001\.jpg'),
        error('a gap', clip_with('JPEGImages/00009.jpg'), '00003'),
        works('a gap on purpose', clip_with('JPEGImages/00009.jpg', allow_gaps=True), 1),
        error("an editor's copy", clip_with('JPEGImages/00001 (copy).jpg'), 'copy'),
    ],
    'masks of clips': [
        error('of a frame that is not there', clip_with('Annotations/00007.png'), r'00007'),
        error('of another size', clip_with('Annotations/00001.png', size=(8, 8)), r'00001\.png'),
        error(
            'smoothed edges',
            clip_with('Annotations/00000.png', (0, 20, 90, 170, 255, 255, 170, 90, 20, 0)),
            'single_object|single-object',
        ),
        error('without an object', clip_with('Annotations/00000.png', (0,)), 'object'),
    ],
    'mask files': [
        works('a palette', ids((0, 3), mode='P'), [3]),
        works('one bit', ids((0, 255), mode='1', single_object=True), [1]),
        error('colours', ids((0, 200), mode='RGB'), r'm\.png'),
        error('JPEG', ids(name='m.jpg'), r'm\.jpg.*lossless'),
        error('floats', ids(dtype=np.float32, name='m.tif'), r'm\.tif'),
    ],
    'overlay': [works('one pixel', overlay((1, 1))), works('one row', overlay((1, 9)))],
    'converter of colours': [
        works('black and white', converted(), [0, 1]),
        error('a colour without a class', converted(palette='a:0,0,0 b:0,255,0'), r'1\.png.*255'),
        error('two names for a colour', converted(palette='a:0,0,0 b:0,0,0'), '(a|b).*0,0,0|0, 0, 0'),
        error('a colour of two numbers', converted(palette='a:0,0 b:255,255,255'), 'a:0,0'),
        error('all images for validation', converted('--val-fraction 1'), 'val-fraction.*1'),
        error('the folder of the images as output', converted(out='photos'), 'photos'),
    ],
}
