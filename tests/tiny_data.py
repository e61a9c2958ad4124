"""Small images and texts in the layouts of the data sets that the shipped configs name."""

from types import SimpleNamespace

import numpy as np

from mmattn.utils import config_path
from mmattn.utils.faults import Faults

from .support import rehearsal_data
from .support.language_releases import CAPTION_WORDS as WORDS
from .support.language_releases import captions as _captions
from .support.language_releases import karpathy
from .support.releases import SIZE, folders, save, text, write_files, write_json
from .video import clips

REHEARSED = (  # as in a rehearsal of tables
    'ade20k', 'bccd', 'buildings', 'camvid', 'cityscapes', 'coco', 'davis', 'davis_2016', 'davis_240p', 'trees',
    'youtube_vos_2018', 'youtube_vos_2019',
)  # fmt: skip
SYMBOLS = ('a', 'b', 'c', 'd', 'e@@', 'f')
# By the name of a set of visual questions, its config.
QUESTION_SETS = {
    path.stem: source
    for path in sorted(config_path('_base_/datasets').glob('*.py'))
    if "_base_ = './vqa.py'" in (source := path.read_text(encoding='utf-8'))
}
assert {'vqa1', 'vqa2', 'coco_qa', 'coco_vqa_mini', 'daquar', 'easy_vqa'} <= {*QUESTION_SETS}
WITHOUT_TEST_ANSWERS = 'vqa1', 'vqa2'
ONE_ANSWER = [
    name
    for name, source in QUESTION_SETS.items()
    if 'normalize_answers=False' in source and "target='sampled'" not in source  # the fusion networks' set has ten
]


def parallel_text(root, source, target, symbols=SYMBOLS):
    """What the converters of parallel text write: the translation of a sentence is the sentence backwards."""
    rng = np.random.default_rng(0)
    files = {'vocabulary.txt': text(f'{symbol} 1' for symbol in symbols), 'bpe.codes': text(['#version: 0.2'])}
    for part, count in (('train', 12), ('val', 3), ('test', 3)):
        rows = [[*rng.choice(symbols[:4], rng.integers(1, 5)), 'e@@', 'f'] for _ in range(count)]
        for language, lines in ((source, rows), (target, [[*row[-3::-1], 'e@@', 'f'] for row in rows])):
            files[f'{part}.{language}'] = text(map(' '.join, lines))
            if part != 'train':
                files[f'{part}.raw.{language}'] = files[f'{part}.{language}'].replace(b'@@ ', b'')
    write_files(files, root)
    write_json(root / 'corpus.json', dict(source=source, target=target, lowercase=True, moses={}))


FEATURES = 6  # of a region


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
    attributes = {image_id: [[WORDS[1 + number % 3], 0.9], ['emu', 0.5]] for number, image_id in enumerate(ids[:-1])}
    write_json(root / f'dataset_{name}.json', karpathy(parts))
    write_json(root / 'attributes.json', attributes)
    _regions(root / 'regions', ids)
    _regions(root / 'vgg16', ids, 512)


def vatex(root):
    """VATEX's lists of videos, and the features of their time steps in a region store."""
    ids = []
    for name, count in {'training_v1.0': 4, 'validation_v1.0': 2, 'public_test_english_v1.1': 2}.items():
        videos = [dict(videoID=f'{name}_{i}', enCap=_captions(i) * 2) for i in range(count)]
        ids += [video['videoID'] for video in videos]
        write_json(root / f'vatex_{name}.json', videos)
    _regions(root / 'regions', ids)


def entities(root):
    """Captions with phrases, their boxes and region features, as the converter of Flickr30k Entities writes them."""
    from mmattn.language.grounding.entities import EntityBoxes, parse_caption, prepared

    parts = dict(train=6, val=2, test=2)
    ids = [f'{part}{number}' for part, count in parts.items() for number in range(count)]
    for part, count in parts.items():
        images = []
        for number in range(count):
            captions = [parse_caption(f'[/EN#1/people A {word}] runs to [/EN#2/other a cat] .') for word in WORDS[1:4]]
            boxes = {'1': [[number, 3, 20, 25]], '2': [[1, 1, 9, 9], [5, 12, 40, 38]]}
            images.append((f'{part}{number}', captions, EntityBoxes(SIZE, boxes, set(), set())))
        write_json(root / f'entities_{part}.json', prepared(images))
    _regions(root / 'regions', ids)


QUESTION_WORDS = ('is', 'this', 'a', 'dog', 'cat', 'bird')
ANSWERS = ('yes', 'no')


def questions(root, answers=10, pictures=False, test=True, genome=False):
    """What the converters of visual questions write: ten answers or one, region features or pictures."""
    ids = [str(100 + number) for number in range(10)]
    parts = dict(train=(ids[:6], 20), val=(ids[6:8], 4), test=(ids[8:], 4))
    if genome:
        parts.update(genome_train=(ids[:6], 6), genome_val=(ids[6:8], 2))
        for part in ('train', 'val'):
            write_json(root / f'captions_{part}2014.json', dict(annotations=[dict(caption='A dog and a bird.')]))
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
        write_json(root / f'questions_{part}.json', dict(questions=found))
        start += count
    if not pictures:
        _regions(root / 'regions', ids, source='bottom_up_features.py, trainval.tsv')
        _regions(root / 'resnet152', ids, source=rehearsal_data.RESNET152)
        return
    for number, image_id in enumerate(ids):
        pixels = np.random.default_rng(number).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        save(root / 'images' / f'{image_id}.png', pixels)


def question_set(root, name, **options):
    """What the converter of a set of visual questions writes."""
    answers, pictures = 1 if name in ONE_ANSWER else 10, 'images=' in QUESTION_SETS[name]
    questions(root, answers, pictures, test=name not in WITHOUT_TEST_ANSWERS, **options)


def make_all(root):
    """Return the environment that points every data set of the configs to small images or texts under ``root``."""
    for name in REHEARSED:
        rehearsal_data.make(f'{name.upper()}_ROOT', root)
    folders(root / 'fasseg', '.jpg', 6)
    for name, classes in (('helen', 11), ('lfw_pl', 3)):
        for aligned in ('', '_aligned'):
            folders(root / f'{name}{aligned}', '.jpg', classes, test=2)
    for name in ('street_1', 'street_2'):
        clips.clip(root / 'stills', name, [clips.squares(0, 1)])
    for name, pair in dict(multi30k='en-de', iwslt14='de-en', wmt14_en_de='en-de', wmt14_en_fr='en-fr').items():
        parallel_text(root / name, *pair.split('-'))
    captions(root / 'coco_captions', 'coco')
    captions(root / 'flickr8k', 'flickr8k')
    vatex(root / 'vatex')
    for name in ('flickr8k_grounding', 'flickr30k_grounding'):
        entities(root / name)
    for name in QUESTION_SETS:
        question_set(root / name, name, genome=name == 'vqa2')
    return {f'{folder.name.upper()}_ROOT': str(folder) for folder in root.iterdir()}


def misfits(*data_sets, **model):
    """What a model with these attributes does not accept of data sets, by path."""
    faults = Faults()
    for data_set in data_sets:
        data_set.check_for_model(SimpleNamespace(modules=list, **model), faults)
    return faults.by_path
