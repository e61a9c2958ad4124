"""A converter is a folder of a release and the folder that it makes of it.

``outputs/`` has what each small release becomes, whole, and the numbers that the command prints, to be read beside the
functions that write the releases. After an intended change, ``MMATTN_RECORD=1`` writes what is made now.
"""

import json
import os
import re
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from ..contracts.converters import CONVERTERS, Converter
from ..contracts.test_converters import Run
from ..support import language_releases as releases
from ..support.language_releases import ENGLISH, GERMAN, region_archive
from ..support.releases import pack, text, write_files, write_json
from .conftest import scripts

iwslt14, wmt14 = scripts('iwslt14', 'wmt14')
FOLDER = Path(__file__).parent / 'outputs'


def plain(path):
    """What a file holds, however it is encoded."""
    if path.suffix == '.png':
        return np.array(Image.open(path)).tolist()
    if path.suffix == '.h5':
        with h5py.File(path) as file:
            arrays = {name: file[name][...].tolist() for name in file if name != 'names'}
            return dict(arrays, names=[*file['names'].asstr()], source=file.attrs['source'])
    whole = path.read_text(encoding='utf-8')
    if path.suffix != '.json':
        return whole.split('\n')
    found = json.loads(whole)
    found.pop('versions', None)
    return found


def made(tool, write, *options):
    """A converter and a release: a function that writes to a folder."""
    script, *words = tool.split()

    def arguments(source, out):
        write(source)
        return [*words, source, *options]

    return Converter(script, arguments)


def vqa(prefix, suffix=''):
    def write(source):
        releases.vqa(source / 'a', 'train', [3, 3, 4], prefix, suffix=suffix)
        releases.vqa(source, 'val', [5, 6], prefix, suffix=suffix)
        releases.vqa(source / 'a/b', 'test', [7], prefix, '2015', suffix)
        releases.vqa(source, 'test-dev', [7], prefix, '2015', suffix)
        write_json(source / 'MultipleChoice_mscoco_val2014_questions.json', {})  # of VQA 1.0: not read

    return write


def vqa_mini(source):
    """Every second image of val, in the order of the questions, is held out with all its questions."""
    releases.vqa(source, 'minitrain', [1, 2], year='')
    releases.vqa(source, 'minival', [9, 5, 9, 7, 5, 6], year='')
    for part, images in dict(train=(1, 2, 3), val=(9, 5, 7), more=(6, 8, 4)).items():
        region_archive(source / f'features_{part}.npz', image_id=np.array(images))


def coco_qa(part):
    def write(source):
        folder = source / 'cocoqa'
        releases.coco_qa(folder, 'train', ('what is it', 'dog', 7, 0), ('how many', 'two', 8, 1))
        releases.coco_qa(folder, part, ('which color', 'red', 9, 2), ('where is it', 'café', 12, 3))

    return write


def daquar(source):
    """The image's name is cut off at the end; elsewhere, it stays."""
    rows = (
        ('what is on the desk in the image9 ?', 'book, paper_tray'),
        ('what is left of the image10 behind it in the image10 ?', 'bed'),
        ('what is found in this image3 ?', 'bed'),
        ('how many are in image12 ?', '3'),
        ('what is on the table image108 ?', 'cup'),
        ('which color of the image108?', 'red'),
    )
    releases.daquar(source, 'qa.37.raw.train.txt', *rows)
    releases.daquar(source, 'qa.37.raw.test.txt', *((f'what {i} in the image{i // 2} ?', 'x') for i in range(2, 8)))


def easy_vqa(source):
    releases.easy_vqa(source, 'train', [0, 1, 2], packed=True)
    releases.easy_vqa(source, 'test', [0, 1], packed=False)


def texts(files):
    return lambda source: write_files(files, source)


MULTI30K = releases.multi30k(dict(train=4, val=2, test_2016_flickr=3))
EMPTY = {f'train.{code}': text([*lines, '', 'x']) for code, lines in (('en', ENGLISH), ('de', GERMAN))}
EMPTY |= {f'{name}.de': text(['a', '', 'b ', ' ']) for name in ('val', 'test_2016_flickr')}
EMPTY |= {f'{name}.en': text('abcd') for name in ('val', 'test_2016_flickr')}
IWSLT = releases.iwslt14(iwslt14.TESTS)
MERGES = ['#version: 0.2', 'H u', 'd o', 'do g</w>']
GOOGLE = releases.wmt14_en_de(MERGES, wmt14.SEGMENTED.values(), wmt14.PUBLISHED.values())
SYMBOLS = GOOGLE['vocab.bpe.32000'].split(b'\n')
UNPUBLISHED = {name: data for name, data in GOOGLE.items() if not name.startswith('newstest2014.d')}
UNPUBLISHED['vocab.bpe.32000'] = b'\n'.join([SYMBOLS[0], *SYMBOLS[5:]])


def nested(source):
    """The archive of a pair of languages in a folder of the release."""
    (source / 'texts/de/en').mkdir(parents=True)
    pack(source / 'texts/de/en/de-en.tgz', {f'de-en/{name}': data for name, data in IWSLT.items()})


def flickr8k(splits):
    def write(source):
        images = releases.karpathy(splits, 'filename', 1)['images']
        write_json(source / 'dataset_flickr8k.json.gz', dict(dataset='flickr8k', images=images))
        region_archive(source / 'features_train.npz', image_id=np.array([5, 1, 2]))
        region_archive(source / 'features_val.npz', image_id=np.array([3, 4, 6]), feat=np.full((3, 4, 6), 9, np.int8))

    return write


def entities(**lists):
    def write(source):
        releases.entities(source, lists)
        region_archive(source / 'features_train.npz', image_id=np.array([5, 1, 2]))
        region_archive(source / 'features_val.npz', image_id=np.array([3, 4, 6]))

    return write


OTHER_COUNTS = '--allow-other-counts'
CASES = {
    'vqa 2.0': made('vqa', vqa('v2_')),
    'vqa 1.0': made('vqa', vqa('', '.gz')),
    'vqa, held out': made('vqa', vqa_mini, '--hold-out'),
    'vqa, test alone': made('vqa', lambda source: releases.vqa(source, 'test', [1, 2])),
    'visual_genome': CONVERTERS['visual_genome'],
    'coco_qa, val': made('coco_qa', coco_qa('val')),
    'coco_qa, test': made('coco_qa', coco_qa('test')),
    'coco_qa, test alone': made(
        'coco_qa', lambda source: releases.coco_qa(source, 'test', ('what is it', 'dog', 1, 0))
    ),
    'daquar': made('daquar', daquar),
    'daquar, test alone': made(
        'daquar', lambda source: releases.daquar(source, 'qa.test.txt', ('what in the image1 ?', 'x'))
    ),
    'easy_vqa': made('easy_vqa', easy_vqa),
    'easy_vqa, test alone': made('easy_vqa', lambda source: releases.easy_vqa(source, 'test', [0, 1], packed=True)),
    'flickr8k': made('flickr8k', flickr8k(['train', 'train', 'val', 'val', 'train', 'val'])),
    'flickr8k, with a test': made('flickr8k', flickr8k(['train', 'train', 'val', 'test'])),
    'flickr_entities': made('flickr_entities', entities(train='125', val='346')),
    'flickr_entities, with a test': made('flickr_entities', entities(train='125', val='3', test='46')),
    'flickr_entities, test alone': made('flickr_entities', entities(test='46')),
    'multi30k': made('multi30k', texts(MULTI30K), '--merges', 12, OTHER_COUNTS),
    'multi30k, French': made(
        'multi30k', texts(MULTI30K), '--merges', 5, OTHER_COUNTS, '--source', 'fr', '--target', 'en', '--no-lowercase'
    ),
    'multi30k, empty lines': made('multi30k', texts(EMPTY), '--merges', 5, OTHER_COUNTS),
    'iwslt14': made('iwslt14', nested, '--merges', 30),
    'wmt14': CONVERTERS['wmt14'],
    'wmt14, without published text': made('wmt14 en-de', texts(UNPUBLISHED), OTHER_COUNTS),
}


@pytest.mark.parametrize('name', CASES)
def test_the_output_is_the_recorded_one(name, tmp_path, capfd, monkeypatch):
    run = Run(CASES[name], tmp_path, capfd)
    monkeypatch.setattr(sys, 'argv', [f'{run.case.script}.py'])  # stores name it
    code, *said = run()
    assert code == 0, said
    paths = [path for path in sorted(run.out.rglob('*')) if path.is_file() and path.name != 'converted.txt']
    found = {path.relative_to(run.out).as_posix(): plain(path) for path in paths}
    lines = ''.join(said).replace(str(tmp_path), '').splitlines()
    found['numbers that are printed'] = [re.findall(r'\d[\d,.]*', line) for line in lines]
    whole = ',\n'.join(f'{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}' for key, value in found.items())
    whole = re.sub(r'\d+ images [0-9a-f]{8}', 'images', whole.replace(str(tmp_path), ''))  # a digest of times
    path = FOLDER / f'{name}.json'
    if os.environ.get('MMATTN_RECORD'):
        path.write_text(f'{{\n{whole}\n}}\n', encoding='utf-8')
    assert json.loads(f'{{{whole}}}') == json.loads(path.read_text(encoding='utf-8'))
