"""Folders of images, masks, boxes and frames as people have them."""

import json
from types import SimpleNamespace

import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image

from . import error, warning, works

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


def checked(prepare, **options):
    def do(folder):
        sound(folder)
        prepare(folder / 'data')
        return check(folder, **options)

    return do


def swapped(folder):
    sound(folder)
    return check(folder, data_prefix=dict(img_path='ann_dir/train', seg_map_path='img_dir/train'))


def linked(folder):
    sound(folder / 'elsewhere')
    (folder / 'data').symlink_to(folder / 'elsewhere/data')
    return check(folder)


def listed(text, encoding='utf-8'):
    def do(folder):
        sound(folder)
        (folder / 'data/list.txt').write_bytes(text.encode(encoding))
        return check(folder, ann_file='list.txt')

    return do


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


def set_box(box, of=0):
    return lambda content: content['annotations'][of].update(bbox=box)


def clip(names, folder, size=(WIDTH, HEIGHT)):
    for name in names:
        picture(folder / 'JPEGImages/cat' / name, size=size)


def ordered(*names):
    """The order in which a clip's frames are read."""

    def do(folder):
        clip(names, folder)
        mask(folder / 'Annotations/cat' / f'{names[0].rpartition(".")[0]}.png')
        dataset = DATASETS.build(dict(type='mmattn.VideoFolderDataset', allow_gaps=True))
        paths = next(value for key, value in dataset[0].items() if key in ('img_paths', 'frame_paths', 'frames'))
        return [str(path).rpartition('/')[2] for path in paths]

    return do


def clips(prepare, **options):
    def do(folder):
        clip([f'{i:05}.jpg' for i in range(3)], folder)
        mask(folder / 'Annotations/cat/00000.png')
        prepare(folder)
        return len(DATASETS.build(dict(type='mmattn.VideoFolderDataset', **options)))

    return do


def ids(folder, values=(0, 1), **options):
    from mmattn.video import object_ids, read_mask

    single = options.pop('single_object', False)
    path = folder / options.pop('name', 'm.png')
    mask(path, values, **options)
    return object_ids(read_mask(path, single_object=single))


def overlay(shape):
    from mmattn.video import draw_overlay

    frame = np.full((*shape, 3), 100, np.uint8)
    drawn = draw_overlay(frame, np.ones(shape, np.uint8), 0.5)
    return drawn.shape == frame.shape and not np.array_equal(drawn, frame)


def converted(*options, palette=('a:0,0,0', 'b:255,255,255')):
    def do(folder):
        picture(folder / 'photos/1.jpg')
        mask(folder / 'masks/1.png', (0, 255), mode='RGB')
        return tool(
            'dataset_converters/color_labels.py',
            *['--images', 'photos', '--masks', 'masks', '--out-dir', 'out'],
            '--palette',
            *palette,
            *options,
        ) or sorted(np.unique(Image.open('out/ann_dir/1.png')).tolist())

    return do


def tool(name, *words):
    from .tools import run

    return run(name, *words)


def nothing(_):
    return None


USES = [
    works('segmentation data', 'sound', checked(nothing)),
    works('segmentation data', 'masks with a palette', checked(lambda d: mask(d / 'ann_dir/train/1.png', mode='P'))),
    works(
        'segmentation data', 'masks of one bit', checked(lambda d: mask(d / 'ann_dir/train/1.png', (0, 255), mode='1'))
    ),
    works('segmentation data', 'masks of 16 bit', checked(lambda d: mask(d / 'ann_dir/train/1.png', dtype=np.uint16))),
    works('segmentation data', 'behind a link', linked),
    error('segmentation data', 'images and masks exchanged', swapped, r'(img_dir|ann_dir)/train'),
    error('segmentation data', 'no such folder', lambda f: check(f), r'img_dir/train'),
    error(
        'segmentation data',
        'masks with transparency',
        checked(lambda d: mask(d / 'ann_dir/train/1.png', mode='LA')),
        r'ann_dir/train/1\.png',
    ),
    error(
        'segmentation data',
        'a mask that is a JPEG named PNG',
        checked(lambda d: mask(d / 'ann_dir/train/1.png', format='JPEG')),
        r'1\.png.*lossless',
    ),
    error(
        'segmentation data',
        'floats in a TIFF as masks',
        checked(lambda d: mask(d / 'ann_dir/train/1.tif', dtype=np.float32), seg_map_suffix='.tif'),
        r'(2\.tif|1\.tif)',
    ),
    works('image formats', 'CMYK', checked(lambda d: picture(d / 'img_dir/train/1.png', 'CMYK', format='JPEG'))),
    works(
        'image formats',
        'progressive JPEG',
        checked(lambda d: picture(d / 'img_dir/train/1.png', format='JPEG', progressive=True)),
    ),
    works('image formats', 'grey with transparency', checked(lambda d: picture(d / 'img_dir/train/1.png', 'LA'))),
    works('image formats', 'a palette', checked(lambda d: picture(d / 'img_dir/train/1.png', 'P'))),
    works(
        'image formats',
        'lossless WebP as images',
        checked(lambda d: picture(d / 'img_dir/train/1.png', format='WEBP', lossless=True)),
    ),
    error(
        'image formats',
        'HTML of a failed download',
        checked(lambda d: (d / 'img_dir/train/1.png').write_text('<html>404')),
        r'1\.png',
    ),
    error(
        'image formats',
        'a pointer of Git LFS',
        checked(
            lambda d: (d / 'img_dir/train/1.png').write_text(
                'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n'
            )
        ),
        r'1\.png.*LFS',
    ),
    works('list of images', 'CRLF, and no end of the last line', listed('1\r\n2')),
    works('list of images', 'spaces at the ends of lines', listed('1 \n2\t\n')),
    error('list of images', 'with suffixes', listed('1.png\n2.png\n'), r'1\.png.*without \.png'),
    error('list of images', 'a blank line between', listed('1\n\n2\n'), r"list\.txt.*''|blank|empty"),
    error('list of images', 'of another data set', listed('9\n'), r'9.*list\.txt'),
    error(
        'classes',
        'more than the head',
        checked(nothing, model=dict(decode_head=dict(num_classes=3))),
        'num_classes.*3.*2',
    ),
    error(
        'classes',
        'half a class',
        checked(nothing, model=dict(decode_head=dict(num_classes=2.5))),
        r'num_classes.*2\.5',
    ),
    error('classes', 'named twice', checked(nothing, metainfo=dict(classes=('a', 'a'))), 'duplicate|distinct'),
    error('classes', 'one text', checked(nothing, metainfo=dict(classes=('tube'))), r"\['tube'\]"),
    error(
        'classes',
        'a class without a pixel',
        checked(nothing, metainfo=dict(classes=('a', 'b', 'c'))),
        r'no mask.*\bc\b',
    ),
    works(
        'classes',
        'without a pixel on purpose',
        checked(nothing, metainfo=dict(classes=('a', 'b', 'c')), allow_absent='c'),
    ),
    warning(
        'splits',
        'validation within training',
        checked(nothing, val=dict(data_prefix=dict(img_path='img_dir/train', seg_map_path='ann_dir/train'))),
        'training images',
    ),
    error('splits', 'no validation images', checked(nothing, val=dict(lazy_init=False)), r'val'),
    error(
        'batches',
        'crop above the size of the preprocessor',
        checked(
            lambda d: (
                picture(d / 'img_dir/train/1.png', size=(10, 10)) or mask(d / 'ann_dir/train/1.png', size=(10, 10))
            ),
            model=dict(data_preprocessor=dict(type='SegDataPreProcessor', size=(8, 8))),
            loaders=dict(batch_size=2),
        ),
        r'data_preprocessor\.size',
    ),
    error(
        'batches',
        'neither size nor divisor',
        checked(nothing, model=dict(data_preprocessor=dict(type='SegDataPreProcessor'))),
        'size_divisor',
    ),
    error(
        'batches',
        'a softmax over one logit',
        checked(nothing, model=dict(decode_head=dict(num_classes=2, out_channels=1))),
        'use_sigmoid',
    ),
    error(
        'labels',
        'reduce_zero_label in the pipeline alone',
        checked(
            nothing, pipeline=[dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', reduce_zero_label=True)]
        ),
        'reduce_zero_label.*LoadAnnotations',
    ),
    warning(
        'labels',
        'a class that is ignored',
        checked(nothing, model=dict(decode_head=dict(num_classes=2, ignore_index=0))),
        'ignored.*ignore_index',
    ),
    works(
        'hidden files', 'of a Mac, which mmseg does not read', checked(lambda d: picture(d / 'img_dir/train/._1.png'))
    ),
    error(
        'hidden files',
        'a folder of thumbnails',
        checked(lambda d: picture(d / 'img_dir/train/.thumbnails/1.png')),
        'thumbnails',
    ),
    works('boxes', 'sound', boxes),
    works('boxes', 'of floats', lambda f: boxes(f, set_box([2.5, 2.5, 8.1, 8.9]))),
    error('boxes', 'corners in place of sizes', lambda f: boxes(f, set_box([12, 12, 20, 18])), r'boxes\.json|0\.jpg'),
    error(
        'boxes',
        'fractions of the image',
        lambda f: boxes(f, lambda c: [a.update(bbox=[0.1, 0.1, 0.5, 0.5]) for a in c['annotations']] and None),
        r'boxes\.json',
    ),
    error('boxes', 'null', lambda f: boxes(f, set_box([None, 2, 9, 9])), r'boxes\.json.*(null|None|number)'),
    error('boxes', 'NaN', lambda f: boxes(f, set_box([float('nan'), 2, 9, 9])), r'boxes\.json'),
    error('boxes', 'of three numbers', lambda f: boxes(f, set_box([2, 9, 9])), r'boxes\.json'),
    error(
        'boxes',
        'of an image that is not listed',
        lambda f: boxes(f, lambda c: c['annotations'][0].update(image_id=9)),
        r'boxes\.json.*9',
    ),
    error(
        'boxes',
        'all crowds',
        lambda f: boxes(f, lambda c: [a.update(iscrowd=1) for a in c['annotations']] and None),
        'crowd',
    ),
    error(
        'boxes',
        'sizes of the images exchanged',
        lambda f: boxes(f, lambda c: [i.update(width=HEIGHT, height=WIDTH) for i in c['images']] and None),
        r'0\.jpg',
    ),
    error(
        'boxes',
        'categories of another list',
        lambda f: boxes(f, lambda c: c.update(categories=[dict(id=0, name='x'), dict(id=1, name='y')])),
        'x',
    ),
    error('boxes', 'a list in place of a dict', lambda f: boxes(f, lambda c: c['annotations']), r'boxes\.json'),
    works('frames', 'without zeros in front', ordered('1.jpg', '2.jpg', '10.jpg'), ['1.jpg', '2.jpg', '10.jpg']),
    works(
        'frames',
        'a number in the middle',
        ordered('f1_l.jpg', 'f2_l.jpg', 'f10_l.jpg'),
        ['f1_l.jpg', 'f2_l.jpg', 'f10_l.jpg'],
    ),
    works(
        'frames',
        'copies of a browser',
        ordered('i (1).jpg', 'i (2).jpg', 'i (10).jpg'),
        ['i (1).jpg', 'i (2).jpg', 'i (10).jpg'],
    ),
    works(
        'frames',
        'dates and times',
        ordered('20240131_235959.jpg', '20240201_000000.jpg'),
        ['20240131_235959.jpg', '20240201_000000.jpg'],
    ),
    works(
        'frames', 'seconds and fractions', ordered('9.975304.jpg', '10.175304.jpg'), ['9.975304.jpg', '10.175304.jpg']
    ),
    works('frames', 'suffixes in capitals', ordered('1.JPG', '2.JPG'), ['1.JPG', '2.JPG']),
    error(
        'frames', 'of two sizes', clips(lambda f: picture(f / 'JPEGImages/cat/00001.jpg', size=(8, 8))), r'00001\.jpg'
    ),
    error('frames', 'a gap', clips(lambda f: picture(f / 'JPEGImages/cat/00009.jpg')), '00003'),
    works('frames', 'a gap on purpose', clips(lambda f: picture(f / 'JPEGImages/cat/00009.jpg'), allow_gaps=True), 1),
    error('frames', "an editor's copy", clips(lambda f: picture(f / 'JPEGImages/cat/00001 (copy).jpg')), 'copy'),
    error(
        'masks of clips',
        'of a frame that is not there',
        clips(lambda f: mask(f / 'Annotations/cat/00007.png')),
        r'00007',
    ),
    error(
        'masks of clips',
        'of another size',
        clips(lambda f: mask(f / 'Annotations/cat/00001.png', size=(8, 8))),
        r'00001\.png',
    ),
    error(
        'masks of clips',
        'smoothed edges',
        clips(lambda f: mask(f / 'Annotations/cat/00000.png', (0, 20, 90, 170, 255, 255, 170, 90, 20, 0))),
        'single_object|single-object',
    ),
    error(
        'masks of clips', 'without an object', clips(lambda f: mask(f / 'Annotations/cat/00000.png', (0,))), 'object'
    ),
    works('mask files', 'a palette', lambda f: ids(f, (0, 3), mode='P'), [3]),
    works('mask files', 'one bit', lambda f: ids(f, (0, 255), mode='1', single_object=True), [1]),
    error('mask files', 'colours', lambda f: ids(f, (0, 200), mode='RGB'), r'm\.png'),
    error('mask files', 'JPEG', lambda f: ids(f, name='m.jpg'), r'm\.jpg.*lossless'),
    error('mask files', 'floats', lambda f: ids(f, dtype=np.float32, name='m.tif'), r'm\.tif'),
    works('overlay', 'one pixel', lambda _: overlay((1, 1))),
    works('overlay', 'one row', lambda _: overlay((1, 9))),
    works('converter of colours', 'black and white', converted(), [0, 1]),
    error(
        'converter of colours', 'a colour without a class', converted(palette=('a:0,0,0', 'b:0,255,0')), r'1\.png.*255'
    ),
    error(
        'converter of colours',
        'two names for a colour',
        converted(palette=('a:0,0,0', 'b:0,0,0')),
        '(a|b).*0,0,0|0, 0, 0',
    ),
    error('converter of colours', 'a colour of two numbers', converted(palette=('a:0,0', 'b:255,255,255')), 'a:0,0'),
    error('converter of colours', 'all images for validation', converted('--val-fraction', '1'), 'val-fraction.*1'),
    error(
        'converter of colours',
        'the folder of the images as output',
        lambda f: (
            picture(f / 'photos/1.jpg'),
            mask(f / 'masks/1.png', (0, 255), mode='RGB'),
            tool(
                'dataset_converters/color_labels.py',
                *[
                    '--images',
                    'photos',
                    '--masks',
                    'masks',
                    '--out-dir',
                    'photos',
                    '--palette',
                    'a:0,0,0',
                    'b:255,255,255',
                ],
            ),
        ),
        'photos',
    ),
]
