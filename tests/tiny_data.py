"""Small images and texts in the layouts of the data sets that the shipped configs name."""

import json

import numpy as np
from PIL import Image

from .video import clips

SIZE = (48, 40)  # width, height


def _pair(image_path, label_path, classes, seed):
    rng = np.random.default_rng(seed)
    labels = np.kron(rng.integers(0, classes, (5, 6)), np.ones((8, 8), int)).astype(np.uint8)
    image = (labels[..., None] * 255 // classes + rng.integers(0, 20, (*labels.shape, 3))).clip(0, 255).astype(np.uint8)
    labels[0, :3] = 255
    if classes > 30:  # more than there are blocks; the data check wants each class in the training masks
        labels[1:6].flat[:classes] = range(classes)
    for path, array in ((image_path, image), (label_path, labels)):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(path)


def folders(root, suffix, classes, train=4, val=2, test=0):
    """mmseg's img_dir/ann_dir layout."""
    for part, count in (('train', train), ('val', val), ('test', test)):
        for i in range(count):
            _pair(root / 'img_dir' / part / f'tile_{i}{suffix}', root / 'ann_dir' / part / f'tile_{i}.png', classes, i)


def cityscapes(root):
    """Cityscapes' layout, labels as its converter writes them."""
    for part, count in (('train', 4), ('val', 2)):
        for i in range(count):
            name = f'town/town_{i:06}_000019'
            _pair(
                root / 'leftImg8bit' / part / f'{name}_leftImg8bit.png',
                root / 'gtFine' / part / f'{name}_gtFine_labelTrainIds.png',
                19,
                i,
            )


def ade20k(root):
    """ADE20K's layout: label 0 is ignored."""
    for part, count in (('training', 4), ('validation', 2)):
        for i in range(count):
            _pair(root / 'images' / part / f'ADE_{i}.jpg', root / 'annotations' / part / f'ADE_{i}.png', 151, i)


def _boxes(path, seed):
    """An image with two bright boxes, which are returned: left, top, right and bottom, the last two beyond the box."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 60, (SIZE[1], SIZE[0], 3)).astype(np.uint8)
    boxes = []
    for left, top in ((2, 3), (20, 17)):
        left, top = left + int(rng.integers(6)), top + int(rng.integers(6))
        boxes.append((left, top, left + 16, top + 14))
        pixels[top : top + 14, left : left + 16] = 200
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return boxes


def coco(root):
    """COCO's layout: boxes of two of its categories, and one of each of them in an image for training."""
    from mmdet.datasets import CocoDataset

    categories = [dict(id=i, name=name) for i, name in enumerate(CocoDataset.METAINFO['classes'])]
    for part, count in (('train2017', 4), ('val2017', 2)):
        boxes = [_boxes(root / part / f'{i:012}.jpg', i) for i in range(count)]
        annotations = [
            dict(
                id=2 * i + j,
                image_id=i,
                category_id=17 * j,
                bbox=[x0, y0, x1 - x0, y1 - y0],
                iscrowd=0,
                area=(x1 - x0) * (y1 - y0),
            )
            for i, pair in enumerate(boxes)
            for j, (x0, y0, x1, y1) in enumerate(pair)
        ]
        if part == 'train2017':  # the data check wants a box of each class
            annotations += [dict(annotations[0], id=1000 + i, category_id=i) for i in range(len(categories))]
        content = dict(
            images=[dict(id=i, file_name=f'{i:012}.jpg', width=SIZE[0], height=SIZE[1]) for i in range(count)],
            annotations=annotations,
            categories=categories,
        )
        (root / 'annotations').mkdir(exist_ok=True)
        (root / 'annotations' / f'instances_{part}.json').write_text(json.dumps(content))


def voc(root, classes):
    """Pascal VOC's layout; one of the boxes has no area."""
    for part, count in (('train', 4), ('val', 2)):
        names = [f'{part}_{i}' for i in range(count)]
        for i, name in enumerate(names):
            boxes = _boxes(root / 'JPEGImages' / f'{name}.jpg', i)
            if name == 'train_0':
                boxes.append((5, 5, 5, 9))
            if name == 'train_1':  # the data check wants a box of each class
                boxes.append((5, 5, 15, 14))
            objects = ''.join(
                f'<object><name>{classes[j % len(classes)]}</name><difficult>0</difficult><bndbox><xmin>{x0 + 1}</xmin>'
                f'<ymin>{y0 + 1}</ymin><xmax>{x1 + 1}</xmax><ymax>{y1 + 1}</ymax></bndbox></object>'
                for j, (x0, y0, x1, y1) in enumerate(boxes)
            )
            (root / 'Annotations').mkdir(exist_ok=True)
            (root / 'Annotations' / f'{name}.xml').write_text(
                f'<annotation><size><width>{SIZE[0]}</width><height>{SIZE[1]}</height><depth>3</depth></size>{objects}'
                '</annotation>'
            )
        (root / 'ImageSets/Main').mkdir(parents=True, exist_ok=True)
        (root / 'ImageSets/Main' / f'{part}.txt').write_text('\n'.join(names) + '\n')


def videos(root):
    """The layouts of video object segmentation: clips of three frames, one object each or two; and stills."""
    masks = [clips.squares(p, 1) for p in range(3)]
    for name, resolution, lists in (
        ('davis', '480p', 'ImageSets/2017'),
        ('davis_2016', '480p', 'ImageSets/480p'),
        ('davis_240p', '240p', 'ImageSets'),
    ):
        clips.davis(root / name, resolution, lists, bear=masks, goat=masks)
    for name in ('street_1', 'street_2'):
        clips.clip(root / 'stills', name, masks[:1])
    for name in ('youtube_vos_2018', 'youtube_vos_2019'):
        for part in ('train', 'valid'):
            clips.youtube_vos(
                root / name / part, dict(a={1: ('cat', 0), 5: ('yak', 1)}, b={3: ('cat', 0)}), dict(a=3, b=3)
            )


SYMBOLS = ('a', 'b', 'c', 'd', 'e@@', 'f')


def parallel_text(root, source, target, symbols=SYMBOLS):
    """What the converters of parallel text write: the translation of a sentence is the sentence backwards."""
    rng = np.random.default_rng(0)
    root.mkdir(parents=True, exist_ok=True)
    for part, count in (('train', 12), ('val', 3), ('test', 3)):
        rows = [[*rng.choice(symbols[:4], rng.integers(1, 5)), 'e@@', 'f'] for _ in range(count)]
        for language, lines in ((source, rows), (target, [[*row[-3::-1], 'e@@', 'f'] for row in rows])):
            text = ''.join(f'{" ".join(line)}\n' for line in lines)
            (root / f'{part}.{language}').write_text(text, encoding='utf-8')
            if part != 'train':
                (root / f'{part}.raw.{language}').write_text(text.replace('@@ ', ''), encoding='utf-8')
    (root / 'vocabulary.txt').write_text(''.join(f'{symbol} 1\n' for symbol in symbols), encoding='utf-8')
    (root / 'bpe.codes').write_text('#version: 0.2\n', encoding='utf-8')
    about = dict(source=source, target=target, lowercase=True, moses={})
    (root / 'corpus.json').write_text(json.dumps(about), encoding='utf-8')


WORDS = ('a', 'dog', 'cat', 'bird', 'runs', 'sits', 'here')
FEATURES = 6  # of a region


def _captions(number):
    """Five captions of an image; its number decides which animals it shows."""
    return [
        ' '.join(('a', WORDS[1 + (number + i // 3) % 3], WORDS[4 + i % 2], 'here')[: 3 + (number + i) % 2])
        for i in range(5)
    ]


RESNET152 = "grid_features.py, resnet152_imagenet.py, resnet152.pth, {'size': 448, 'level': -1, 'grid': 14}"


def _regions(folder, ids, width=FEATURES, source=''):
    """A region store with two to four regions per image."""
    import torch

    from mmattn.language import Regions, RegionWriter

    generator = torch.Generator().manual_seed(0)
    with RegionWriter(folder, source) as writer:
        for number, image_id in enumerate(ids):
            count = 2 + number % 3
            corner = torch.rand(count, 2, generator=generator) * 20
            boxes = torch.cat([corner, corner + 1 + torch.rand(count, 2, generator=generator) * 18], 1)
            writer.write(image_id, Regions(torch.randn(count, width, generator=generator), boxes, SIZE))


def captions(root, name, train=6, val=2, test=2):
    """Karpathy's splits, region features, those of Table 2.4 (``vgg16``) and attributes; an image has none of them."""
    parts = ['train'] * (train - 1) + ['restval'] + ['val'] * val + ['test'] * test
    ids = [str(100 + number) for number in range(len(parts))]
    images = [
        dict(
            cocoid=int(image_id),
            split=part,
            sentences=[dict(raw=f'{text.capitalize()}.', tokens=text.split()) for text in _captions(number)],
        )
        for number, (image_id, part) in enumerate(zip(ids, parts))
    ]
    attributes = {image_id: [[WORDS[1 + number % 3], 0.9], ['emu', 0.5]] for number, image_id in enumerate(ids[:-1])}
    root.mkdir(parents=True, exist_ok=True)
    (root / f'dataset_{name}.json').write_text(json.dumps(dict(images=images)), encoding='utf-8')
    (root / 'attributes.json').write_text(json.dumps(attributes), encoding='utf-8')
    _regions(root / 'regions', ids)
    _regions(root / 'vgg16', ids, 512)


def vatex(root):
    """VATEX's lists of videos, and the features of their time steps in a region store."""
    root.mkdir(parents=True, exist_ok=True)
    files = {'training_v1.0': 4, 'validation_v1.0': 2, 'public_test_english_v1.1': 2}
    ids = []
    for name, count in files.items():
        videos = [dict(videoID=f'{name}_{i}', enCap=_captions(i) * 2) for i in range(count)]
        ids += [video['videoID'] for video in videos]
        path = root / f'vatex_{name}.json'
        path.write_text(json.dumps(videos), encoding='utf-8')
    _regions(root / 'regions', ids)


def entities(root):
    """Captions with phrases, their boxes and region features, as the converter of Flickr30k Entities writes them."""
    from mmattn.language.grounding.entities import EntityBoxes, parse_caption, prepared

    root.mkdir(parents=True, exist_ok=True)
    parts = dict(train=6, val=2, test=2)
    ids = [f'{part}{number}' for part, count in parts.items() for number in range(count)]
    for part, count in parts.items():
        images = []
        for number in range(count):
            captions = [parse_caption(f'[/EN#1/people A {word}] runs to [/EN#2/other a cat] .') for word in WORDS[1:4]]
            boxes = {'1': [[number, 3, 20, 25]], '2': [[1, 1, 9, 9], [5, 12, 40, 38]]}
            images.append((f'{part}{number}', captions, EntityBoxes(SIZE, boxes, set(), set())))
        (root / f'entities_{part}.json').write_text(json.dumps(prepared(images)), encoding='utf-8')
    _regions(root / 'regions', ids)


QUESTION_WORDS = ('is', 'this', 'a', 'dog', 'cat', 'bird')
ANSWERS = ('yes', 'no')


def questions(root, answers=10, pictures=False, test=True, genome=False):
    """What the converters of visual questions write: ten answers or one, region features or pictures."""
    root.mkdir(parents=True, exist_ok=True)
    ids = [str(100 + number) for number in range(10)]
    parts = dict(train=(ids[:6], 20), val=(ids[6:8], 4), test=(ids[8:], 4))
    if genome:
        parts.update(genome_train=(ids[:6], 6), genome_val=(ids[6:8], 2))
    start = 0
    for part, (images, count) in parts.items():
        found = []
        for number in range(count):
            image = number % len(images)
            majority, other = ANSWERS[:: -1 if number // 3 % 2 else 1]
            entry = dict(question_id=start + number, image_id=images[image])
            entry['question'] = f'Is this a {QUESTION_WORDS[3 + number % 3]}?'
            if part != 'test' or test:
                given = [majority] * 7 + [other] * 3 if answers == 10 and 'genome' not in part else [majority]
                entry.update(answers=given, answer=majority, question_type='is this', answer_type='yes/no')
            found.append(entry)
        (root / f'questions_{part}.json').write_text(json.dumps(dict(questions=found)), encoding='utf-8')
        start += count
    if not pictures:
        _regions(root / 'regions', ids, source='bottom_up_features.py, trainval.tsv')
        _regions(root / 'resnet152', ids, source=RESNET152)
        return
    (root / 'images').mkdir(exist_ok=True)
    for number, image_id in enumerate(ids):
        pixels = np.random.default_rng(number).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / 'images' / f'{image_id}.png')


def make_all(root):
    """Return the environment that points every data set of the configs to small images or texts under ``root``."""
    folders(root / 'buildings', '.png', 2)
    folders(root / 'camvid', '.jpg', 11)
    folders(root / 'fasseg', '.jpg', 6)
    for name, classes in (('helen', 11), ('lfw_pl', 3)):
        for aligned in ('', '_aligned'):
            folders(root / f'{name}{aligned}', '.jpg', classes, test=2)
    cityscapes(root / 'cityscapes')
    ade20k(root / 'ade20k')
    coco(root / 'coco')
    voc(root / 'bccd', ('RBC', 'WBC', 'Platelets'))
    voc(root / 'trees', ('Tree',))
    videos(root)
    for name, pair in dict(multi30k='en-de', iwslt14='de-en', wmt14_en_de='en-de', wmt14_en_fr='en-fr').items():
        parallel_text(root / name, *pair.split('-'))
    captions(root / 'coco_captions', 'coco')
    captions(root / 'flickr8k', 'flickr8k')
    vatex(root / 'vatex')
    for name in ('flickr8k_grounding', 'flickr30k_grounding'):
        entities(root / name)
    for name in ('vqa1', 'vqa2'):
        questions(root / name, test=False, genome=name == 'vqa2')
    questions(root / 'coco_vqa_mini')
    for name in ('coco_qa', 'daquar', 'easy_vqa'):
        questions(root / name, answers=1, pictures=name == 'easy_vqa')
    return {f'{folder.name.upper()}_ROOT': str(folder) for folder in root.iterdir()}
