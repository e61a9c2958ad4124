"""Every fault of a release is told in one run, with its file, line or sample, and nothing is written.

A row is what is changed in the small release of a converter's contract, the faults, and further options. Of a fault,
the row has how its line begins, and after '…' what else it names; '/' begins a path below the release.
"""

import os
import re
import shutil
import zipfile
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from ..contracts.converters import CONVERTERS
from ..contracts.test_converters import Run
from ..requirements import requires
from ..support import language_releases as language
from ..support.language_releases import GERMAN, bottom_up_line, entity_annotation, karpathy, random_regions, xml
from ..support.releases import photo, save, text, write_files, write_json
from ..tiny_detectors import BACKBONE
from .conftest import faults_of, scripts

iwslt14, wmt14 = scripts('iwslt14', 'wmt14')


def apply(root, changes):
    """Change files of a release: to None, text, bytes, JSON or numbers, or by a function of the path."""
    for name, new in changes.items():
        if new is None:
            for path in [*root.glob(name)]:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif callable(new):
            new(root / name)
        elif isinstance(new, np.ndarray):
            (root / name).parent.mkdir(exist_ok=True)
            np.save(root / name, new) if name.endswith('.npy') else save(root / name, new)
        elif isinstance(new, list | dict):
            write_json(root / name, new)
        else:
            write_files({name: new if isinstance(new, bytes) else new.encode()}, root)


def cut(path):
    path.write_bytes(path.read_bytes()[: int(0.6 * path.stat().st_size)])


def add(line):
    return lambda path: path.write_text(f'{path.read_text(encoding="utf-8")}{line}\n', encoding='utf-8')


def lines(*found):
    return ''.join(f'{line}\n' for line in found)


def points(count, *found):
    """Landmarks as of 300-W."""
    return lines(f'n_points: {count}', '{', *(f'{x} {y}' for x, y in found), '}')


def released(function, *args, **options):
    """Write a part of another release beside a file."""
    return lambda path: getattr(language, function)(path.parent, *args, **options)


def archive(**changed):
    return partial(language.region_archive, **changed)


def without_classifier(path):
    weights = torch.load(path, weights_only=True)
    del weights['state_dict']['roi_head.bbox_head.fc_cls.weight']
    torch.save(weights, path)


BLACK, RED = np.zeros((20, 26, 3), np.uint8), np.full((20, 26, 3), (255, 0, 0), np.uint8)
RED[3, 4], RED[5, 6] = (0, 255, 255), (254, 0, 0)
SQUARE = (5, 6), (15, 6), (10, 12), (10, 17)
TEST, SPLIT = iwslt14.TESTS, 'dataset_flickr8k.json'
IMAGES = karpathy(['train'] * 3 + ['val'] * 2, 'filename', 0)['images']
QUESTIONS, ANSWERS = language.vqa_entries([1, 2, 3, 4])
ANSWERS[0]['multiple_choice_answer'] = 'perhaps'
ANSWERS[1]['answers'].pop()
ANSWERS[2]['image_id'] = 9
TRAIN, VAL = ('v2_mscoco_train2014_annotations.json', 'v2_mscoco_val2014_annotations.json')
ASKED = 'v2_OpenEnded_mscoco_train2014_questions.json'
BOXES, FEATURES = random_regions(9, 2, 6)
OUTSIDE, EMPTY, BROKEN = BOXES.copy(), BOXES.copy(), FEATURES.copy()
OUTSIDE[1, 2], EMPTY[0, 2], BROKEN[1, 0] = 50.5, EMPTY[0, 0], np.nan
ROWS = [bottom_up_line(100 + i, *random_regions(i, 2, 6)) for i in range(5)]
BAD_ROWS = [  # but for the first
    ROWS[0],
    ROWS[1].replace(b'\t', b' ', 1),
    bottom_up_line('a', BOXES, FEATURES, size=('x', 40)),
    bottom_up_line('b', BOXES, FEATURES, count=3),
    bottom_up_line('c', BOXES[:0], FEATURES[:0]),
    bottom_up_line('d', OUTSIDE, FEATURES),
    bottom_up_line('e', EMPTY, FEATURES),
    bottom_up_line('f', BOXES, BROKEN),
    bottom_up_line('g', BOXES, FEATURES[:, :3]),
    ROWS[0],
    ROWS[2][:-8] + b'\n',
    ROWS[3].replace(b'\n', b'\tmore\n'),
    ROWS[4][:-8],
]
SIZES = np.array([[50.0, 40.0], [50.5, 40.0], [np.nan, 40.0]])
RELATIVE = np.array([[[0.1, 0.2, 0.5, 0.7], [0, 0, 1, 1]] * 2] * 3, np.float32)  # to the image
ARCHIVES = [  # what is changed in an archive, and what each fault names
    (dict(size=None, boxes=None), ['boxes', 'sizes']),
    (dict(step=None, score=np.zeros((3, 5)), boxes=np.zeros((2, 4, 4))), ['boxes', 'scores', 'step']),
    (dict(size=np.array([50, 40, 9])), ['sizes']),
    (dict(feat=np.zeros((3, 4))), ['features']),
    (dict(num_regions=np.array([1, 2, 5])), ['num_regions']),
    (dict(num_regions=np.array([1.0, 2.0, 2.0])), ['num_regions']),
    (dict(num_regions=np.array([1, 0, 3]), image_id=np.array([7, 8, 7])), ['image 1: image 8', 'image 2: image 7']),
    (dict(features=np.zeros((3, 4, 6), np.float32)), ['features and feat']),
    (dict(image_id=np.array([b'a', b'b', b'c'])), ['image_ids']),
    (dict(size=SIZES, cls=np.zeros((3, 4))), ['1, 2', 'classes']),
    (dict(boxes=RELATIVE), ['0: image 7: boxes', '1: image', '2: image 9']),
    (dict(feat=np.array([{}], object)), ['NumPy']),
]
GOOD = np.ones((1, 3, 6), np.float32)
FAULTS = {
    'bottom_up_features': [
        ({'1.tsv': b''.join(BAD_ROWS)}, ' | '.join(f'/1.tsv, line {number}' for number in range(2, 14))),
        ({'1.tsv': b'', '2.tsv': b''}, 'OUT'),
        ({'*.tsv': None}, '/1.tsv | /2.tsv'),
    ],
    'camvid': [
        ({'CamVid/valannot/0016E5_00000.png': np.full((20, 26), 12, np.uint8)}, '/CamVid/valannot/0016E5_00000.png')
    ],
    'caption_attributes': [
        ({'dataset_coco.json': karpathy(['train'] * 4 + ['val'])}, '/dataset_coco.json … 4'),
        ({'dataset_coco.json': karpathy(['train'] * 8)}, '/dataset_coco.json … val'),
        ({'dataset_coco.json': karpathy(['train'] * 6 + ['val'], start=300)}, '/regions … image 300 … image 306'),
        ({}, '--num-attributes', '--num-attributes 99'),
    ],
    'coco_qa': [
        (
            {'train': released('coco_qa', 'train', *(('a', 'b', 7, 4), ('', 'b', 7, 0), ('a', 'b', 'x', 0)))}
            | {'test/types.txt': add('1')},
            '/train, line 1 | /train, line 2 | /train, line 3 | /test',
        )
    ],
    'color_labels': [
        (
            dict.fromkeys(('images/train/lonely.jpg', 'images/train/other.png', 'images/train/a.jpeg'), BLACK)
            | {'masks/val/lonely.png': BLACK, 'masks/train/other.png': BLACK[:, :2], 'masks/val/b.png': cut}
            | {'masks/train/a.png': np.full((20, 25, 3), (0, 1, 2), np.uint8)},
            '/images: | /images/train/a.png | /images/train/lonely.jpg | /masks/val/lonely.png | /masks/val/b.png'
            ' | /masks/train/other.png | /masks/train/a.png … 500 … 2.2 … 0,1,2',
        ),
        ({}, '/images … --val-fraction', '--val-fraction 0.5'),  # divided already
        ({}, '--crop … --val-fraction', '--crop 16'),
        ({}, '--crop … 0', '--val-fraction 0.5 --crop 0'),
        ({}, '--pretrained … --val-fraction', '--from-scratch'),
        ({}, '/none.pth', '--val-fraction 0.5 --pretrained {}/none.pth'),
        ({}, '/images … --masks', '--masks {}/images'),
        ({}, '--max-distance … -5', '--max-distance -5'),
        ({'masks/train/a.png': np.dstack([RED[:, :25], BLACK[:, :25, 0]])}, '/masks/train/a.png … alpha'),
        ({'masks/train/a.png': np.full((20, 25), 256, np.uint16)}, '/masks/train/a.png … 256'),
        ({}, '/masks/none', '--masks {}/masks/none'),
        ({}, '--val-fraction … 1', '--val-fraction 1'),
        ({}, "palette … 'a:0,0,256'", '--palette a:0,0,256'),
        ({}, 'palette … a:0,0', '--palette a:0,0 b:1,1,1'),
        ({}, 'palette … b', '--palette a:0,0,0 b:0,0,0'),
        ({}, 'palette … 256', f'--palette {" ".join(f"{i}:{i},0,0" for i in range(256))}'),
        ({}, 'palette … no_file.txt', '--palette no_file.txt'),
        ({}, f'palette … {os.devnull}', f'--palette {os.devnull}'),
    ],
    'daquar': [
        (
            {'qa.37.raw.train.txt': lines('what ?', 'bed', 'what in the image3 ?', '', 'image4 ? a', 'a')}
            | {'qa.37.raw.val.txt': 'what in the image3 ?\n'},
            '/qa.37.raw.train.txt, line 1 | /qa.37.raw.train.txt, line 3 | /qa.37.raw.train.txt, line 5'
            ' | /qa.37.raw.val.txt',
        ),
        (
            {'qa.894.train.txt': 'what in the image3 ?\na\n', 'qa.37.raw.test.txt': None},
            '/ … qa.37.raw.train.txt, qa.894.train.txt | / … qa.*val.txt',
        ),
    ],
    'easy_vqa': [
        (
            {'test_*': None, 'x': released('easy_vqa', 'test', [0, 1], packed=False)}
            | {'test/questions.json': [['a', 'b', 0], ['a', 'b'], ['a', 3, 1], ['a', 'b', 7]]},
            '/test/questions.json | /test/questions.json | /test/images',
        ),
        ({'test_*': None, 'train_images.zip': b''}, '/ … val_questions.json'),  # before archives are unpacked
    ],
    'fasseg': [
        (
            {'V3/Train_RGB/0/unknown.bmp': BLACK, 'V3/Train_labels/0/unknown.bmp': BLACK}
            | {'V3/Train_labels/0/personne01146+0+0.bmp': photo(0, (20, 48)), 'V3/Train_labels/+30/one.bmp': BLACK},
            ' | '.join(f'/V3/Train_labels/{name}.bmp' for name in ('+30/one', '0/personne01146+0+0', '0/unknown')),
        )
    ],
    'flickr8k': [
        *(
            ({SPLIT: dict(images=images), 'features_train.npz': archive(image_id=np.arange(5))}, fault)
            for images, fault in (
                ([*IMAGES[:3], dict(IMAGES[3], split='test'), IMAGES[0]], f'/{SPLIT} … image 0: '),
                ([*IMAGES[:3], dict(IMAGES[3], split='test')], f'/{SPLIT} … test, train'),
                ([*IMAGES[:4], dict(IMAGES[4], split='trian')], f'/{SPLIT} … image 4: '),
                ([*IMAGES, dict(IMAGES[3], filename='9.jpg')], f'/{SPLIT} … 9'),
                (IMAGES[:4], f'/{SPLIT}, split val'),  # of one image
            )
        ),
        ({'*.npz': None}, '/'),
    ],
    'flickr_entities': [
        (
            {'val.txt': lines(200, 201, 100, 7), 'Sentences/101.txt': '[/EN#1/people A man\n\n[/EN#2/other ,] b\n'}
            | {'Annotations/102.xml': entity_annotation().replace('<xmin>1<', '<xmin>10<')}
            | {'features_all.npz': archive(boxes=None)},
            '/val.txt | /features_all.npz | Sentences/101.txt | Sentences/101.txt | Annotations/102.xml'
            ' | Sentences/7.txt | Annotations/7.xml',
        ),
        (
            {'Annotations/100.xml': entity_annotation((17, 18)), 'test.txt': None, 'val.txt': lines(200, 201)}
            | {'features_all.npz': archive(image_id=np.array([100, *range(102, 106), 200, 201]))},
            'image 100 | image 101',
        ),
        ({}, '/ … --regions', '--regions {}'),
        ({'*.npz': None}, '/'),
        ({'*.npz': None}, '/none', '--regions {}/none'),
        ({'Sentences': None}, '/ … annotations.zip'),
        ({'test.txt': None, 'val.txt': '200\n'}, '/val.txt … one image'),
        # lists are read before the archive
        ({'Sentences': None, 'annotations.zip': b'', 'train.txt': '', 'val.txt': None}, '/train.txt | /val.txt'),
    ],
    'grid_features': [
        ({}, '/mmseg.py … 4', '--level 4'),
        ({}, '/mmseg.py … (2, 2)', '--level 3'),
        ({}, '/mmseg.py … grid', '--grid 0'),
        ({'a/1.jpg': b''}, '/a/1.jpg … 1.png'),
        ({'7.jpg': b''}, '/7.jpg'),
        ({'7.png': lambda path: Image.new('RGB', (9, 9)).save(path, 'PCX')}, '/7.png'),  # OpenCV does not read it
        ({'beach.png': photo(0)}, '/beach.png', '--image-id last-number'),
        ({'mmseg.py': f'model = {dict(BACKBONE, type="mmseg.ResNet")}'}, '/mmseg.py … data_preprocessor'),
    ],
    'helen': [
        (
            {'exemplars.txt': lines('1 , 11_1', '2 , 12_1', '3 , 21_1', 'four', '5 , 13_2'), 'images/12_1.jpg': cut}
            | {'testing.txt': lines('1 , 31_1', '2 , 99_9'), 'labels/22_1/22_1_lbl10.png': BLACK}
            | {'labels/11_1/11_1_lbl04.png': BLACK[:, 1:, 0]},
            '/exemplars.txt:4 | /tuning.txt:1 | /images/12_1.jpg | /images/99_9.jpg | /labels/11_1/11_1_lbl04.png | '
            + ' | '.join(['/labels/22_1/22_1_lbl10.png', *(f'/labels/99_9/99_9_lbl{i:02}.png' for i in range(11))]),
        ),
        ({}, '--size … --margin', '--align --size 0'),
        ({}, '--size … -0.5', '--align --margin -0.5'),
        ({}, '--size … --align', '--size 64'),
        ({}, '/none', '--align {}/none'),
        (
            {'points/11_1.pts': None, 'points/12_1.pts': points(3, *SQUARE[:3])}
            | {'points/13_2.pts': points(3, *SQUARE[:2]), 'points/14_1.pts': lines('n_points: 3', '1 2')}
            | {'points/22_1.pts': points(4, *[(5, 5)] * 4)}
            | {'points/21.txt': lines('21_1', *(f'{x} , {y}' for x, y in SQUARE)), 'images/21_1.jpg': cut}
            | {'points/31_1.pts': points(4, *((9 * x, 9 * y) for x, y in SQUARE))},
            '/points: … 11_1 | /points: … 13_2 | /points: … 14_1 | /points: … 22_1'
            ' | /points/12_1.pts | /points/13_2.pts | /points/14_1.pts | /points/21_1.pts'
            ' | /points/22_1.pts | /images/21_1.jpg | /images/31_1.jpg',
            '--align',
        ),
    ],
    'iwslt14': [
        (
            {f'{TEST[4]}.en.xml': None, 'train.tags.de-en.en': add('one more'), f'{TEST[0]}.de.xml': xml(['one'])}
            | {f'{TEST[1]}.en.xml': '<seg id="1">cut\n'},
            f'/ … {TEST[4]}.en.xml | /train.tags.de-en.de | /{TEST[0]}.de.xml | /{TEST[1]}.en.xml, line 1',
        )
    ],
    'lfw_pl': [
        (
            {'lists/parts_validation.txt': lines('Bo 1', 'Ann_Lee 0001', 'No_One 7', '../Ann_Lee 1')}
            | {f'parts_lfw_funneled_gt_images/{name}.ppm': pixels for name, pixels in (
                ('Ann_Lee_0012', RED), ('No_One_0007', RED[:-1]), ('Bo_0001', RED[:1, :1]))}
            | {'lists/parts_test.txt': None},
            '/lists/parts_validation.txt:2 | /lists/parts_validation.txt:4 | /lists/parts_test.txt'
            ' | /parts_lfw_funneled_gt_images/Ann_Lee_0012.ppm … 2 pixels … 0,255,255'
            ' | /parts_lfw_funneled_gt_images/Bo_0001.ppm | /parts_lfw_funneled_gt_images/No_One_0007.ppm'
            ' | /lfw_funneled/No_One/No_One_0007.jpg',
        )
    ],
    'multi30k': [
        (
            {'val.de.gz': None, 'train.de.gz': None, 'train.de': text(GERMAN[:3]), 'test_2016_flickr.en.gz': None}
            | {'test_2016_flickr.en': b'one\n\xff\n'},
            '/ … val.de | /train.en.gz | /test_2016_flickr.en, line 2',
        ),
        ({}, '--source … de', '--source de'),
        ({'val.en': 'A dog.\n \n', 'val.en.gz': None}, 'val: … 2'),  # an empty line to translate
    ],
    'region_features': [
        (
            {'photos/0.png': photo(0), 'photos/2.jpg': photo(2), 'photos/3.png': b''},
            '/photos/a/0.JPG | /photos/b/2.JPG',  # of the ids of others
        ),
        ({'photos/a/0.JPG': cut, 'photos/3.png': b''}, '/photos/a/0.JPG | /photos/3.png'),
        ({'detector.pth': None}, '/detector.pth'),
        ({'detector.pth': without_classifier}, '/detector.pth … fc_cls'),
    ],
    'region_npz': [
        *(
            ({'a.npz': archive(**changed)}, ' | '.join(f'/a.npz … {word}' for word in words))
            for changed, words in ARCHIVES
        ),
        ({'a.npz': lambda path: zipfile.ZipFile(path, 'a').writestr('num_regions', b'3')}, '/a.npz … num_regions'),
    ],
    'still_clips': [
        (
            dict.fromkeys(('images/a/b.png', 'images/a_b.png', 'images/c.png'), BLACK)
            | dict.fromkeys(('masks/a/b.png', 'masks/a_b.png', 'masks/alone.png'), BLACK[..., 0])
            | {'masks/0.png': BLACK[:4, :4, 0], 'masks/1.png': b'no image'},
            '/images/c.png | /masks/alone.png | /images: … a_b | /masks/0.png | /masks/1.png',
        ),
        ({}, '/masks … object', '--objects 9'),
        ({}, '--min-area … 1', '--min-area 1'),
        ({}, '--max-objects … 0', '--max-objects 0'),
    ],
    'vatex_features': [
        (
            {'v_0.npy': GOOD, 'again/v_0.npy': GOOD, 'b.npy': GOOD[0, 0], 'c.npy': GOOD.astype(int)}
            | {'d.npy': GOOD[:, :0], 'e.npy': GOOD * np.nan, 'v_1.npy': cut},
            '/v_0.npy | /b.npy | /c.npy | /d.npy | /e.npy | /v_1.npy',
        ),
        ({'*.npy': None}, '/'),
    ],
    'visual_genome': [
        (
            {'x': released('visual_genome', 7), 'image_data.json': [dict(image_id=1)]},
            ' | '.join(['/none/questions_train.json', '/none/questions_val.json', '/image_data.json'])
            + ' | /question_answers.json.gz' * 5,
            '--vqa {}/none',
        )
    ],
    'vqa': [
        (
            {ASKED: dict(questions=QUESTIONS[:3] + [dict(QUESTIONS[0], question_id=77)])}
            | {TRAIN: dict(annotations=ANSWERS), 'x': released('vqa', 'val', [4])}
            | {VAL: dict(annotations=[dict(question_id=1)] + language.vqa_entries([4])[1] * 2)},
            ' | '.join(f'/{TRAIN} … question {number}' for number in (1000, 2001, 3002, 77, 4003))
            + f' | /{VAL} … annotations[0] | /{VAL} … question 4000',
        ),
        ({ASKED: None, VAL: None}, '/ | /'),
        ({'x': released('vqa', 'val', [4], prefix='')}, '/OpenEnded_mscoco_val2014_questions.json … 2.0 and 1.0'),
        (
            {'features_all.npz': archive(image_id=np.arange(3, 7))},
            '{}, test: … 7, 8 | {}, test-dev: … 7, 8',
        ),
        ({}, '/ … --hold-out', '--hold-out'),  # it has a test set
    ],
    'wmt14': [
        (
            {'train.tok.clean.bpe.32000.en': None, 'vocab.bpe.32000': None, 'bpe.32000': 'a b\na\n'}
            | {'newstest2014.tok.bpe.32000.de': text(GERMAN[:3])}
            | dict.fromkeys(('newstest2013.en', 'newstest2013.de'), 'a\nb\n'),
            '/ … train.tok.clean.bpe.32000.en | / … vocab.bpe.32000 | /newstest2014.tok.bpe.32000.en | /newstest2013.en'
            ' | /bpe.32000',
        ),
        ({}, '--merges', '--merges 5'),
    ],
    'youtube_vos_split': [
        ({'wrong.txt': 'a\ne\n'}, '/wrong.txt … e', '--train {}/wrong.txt'),
        ({'crossing.txt': 'a\nb\n'}, '/crossing.txt … a', '--val {}/crossing.txt'),
        ({'one.txt': 'a\nb\nc\n'}, 'OUT/meta.json … val'),
        ({'one.txt': ''}, 'OUT/meta.json … train'),
    ],
}  # fmt: skip
MARKS = dict(region_features=requires('mmcv operators'))


@pytest.mark.parametrize(
    ('name', 'changes', 'faults', 'options'),
    [
        pytest.param(name, changes, faults, ''.join(options), id=f'{name}-{i}', marks=MARKS.get(name, ()))
        for name, rows in FAULTS.items()
        for i, (changes, faults, *options) in enumerate(rows)
    ],
)
def test_every_fault_is_told_at_once_with_its_place(tmp_path, capfd, name, changes, faults, options):
    run = Run(CONVERTERS[name], tmp_path, capfd)
    apply(run.source, changes)
    said = run.fails(*(word.replace('{}', str(run.source)) for word in options.split())).splitlines()
    said = [line for line in said if 'images are kept in' not in line and not line.startswith('warning: ')]
    found = faults_of(said) if said[0].startswith('error: ') else [' '.join(said)]
    for fault in faults.split(' | '):
        start, *words = re.sub('^/', '{}/', fault).split(' … ')
        start = start.replace('{}', str(run.source)).replace('OUT', str(run.out)).removesuffix('/')
        same = [line for line in found if line.startswith(start) and all(word in line for word in words)]
        assert same, (fault, found)
        found.remove(same[0])
    assert not found
