"""Every converter with a tiny release, and what of the contract it does not promise.

The releases are those of a rehearsal of tables where it has one.
"""

import gzip
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np

from mmattn.language.vqa.questions import Question, write_questions

from ..dataset_converters import test_grid_features as grids
from ..dataset_converters import test_region_converters as regions
from ..dataset_converters.conftest import scripts
from ..support import language_releases, rehearsal_data, releases
from ..support.language_releases import region_archive
from ..support.releases import pack, photo, save, text, write_files, write_json


@dataclass
class Converter:
    """A script, and a function that writes a release to a folder, and returns the arguments."""

    script: str
    write: Callable[[Path, Path], list]  # of the folders of the release and of the output
    archives: tuple[int, ...] = ()  # which arguments may be archives
    counts: tuple[str, ...] = ()  # what is named where the numbers are not those of the release
    unseen: str = '^$'  # files that may be missing, as a pattern
    unread: str = '^$'  # files that are not read
    kind: str = 'folder'  # the output: a 'folder' of its own, 'files' in another one, or a region 'store'
    overwrites: bool = True

    @property
    def main(self):
        (module,) = scripts(self.script)
        return module.main


class Reached(Exception):
    pass


def rehearsed(script, make, **options):
    """The release of a rehearsal, which is left before its converter runs."""

    def write(source, out):
        words = []

        def convert(tool, *arguments):
            words.extend(arguments)
            raise Reached

        with patch.object(rehearsal_data, 'convert', convert), suppress(Reached):
            make(out, source)
        return words

    return Converter(script, write, **options)


# Of images.


def write_masks(source, out):
    for seed, name in enumerate(('train/a', 'val/b')):
        mask = np.random.default_rng(seed).integers(0, 2, (20, 25))
        save(source / f'images/{name}.png', photo(seed, mask.shape))
        save(source / f'masks/{name}.png', np.uint8([[0, 0, 0], [255, 255, 0]])[mask])
    return ['--images', source / 'images', '--masks', source / 'masks', '--palette', 'no:0,0,0', 'skin:255,255,0']


def write_faces(source, out):
    releases.fasseg(source, (1,), height=20)
    return [source]


def write_export(source, out):
    for seed, name in enumerate('abc'):
        save(source / f'{name}.png', photo(seed, (40, 50)))
        shape = dict(label='thing', points=[[9, 9], [30, 9], [30, 30]], shape_type='polygon')
        content = dict(shapes=[shape], imagePath=f'{name}.png', imageWidth=50, imageHeight=40)
        write_json(source / f'{name}.json', content)
    return [source, '--task', 'segmentation', '--val-fraction', 0.4]


def write_videos(source, out):
    releases.youtube_vos(out, {name: {1: ('cat', 1), 4: ('yak', 0)} for name in 'abc'}, dict.fromkeys('abc', 2))
    write_files({'one.txt': b'c\na\n'}, source)
    return [out, '--train', source / 'one.txt']


# Of text.


def write_text_and_table(source, out):
    pairs = [(f'A dog runs {n} miles.', f'Ein Hund läuft {n} Meilen.') for n in range(60)]
    english, german = (text(side) for side in zip(*pairs))
    write_files({'a.en': english, 'a.de.gz': gzip.compress(german), 'val.tsv': b'one\teins\n'}, source)
    files = [source / 'a.en', source / 'a.de.gz', '--val', source / 'val.tsv', '--test', source / 'val.tsv']
    return [*files, '--source', 'en', '--target', 'de', '--merges', 12]


def write_genome(source, out):
    language_releases.visual_genome(source, 'Yes.', 'A zebra.')
    out.mkdir(parents=True)
    for split, image in (('train', '3'), ('val', '5')):
        write_questions(out / f'questions_{split}.json', [Question(0, image, '?')])
    return [source, '--vqa', out]


# Of region features.


def write_archives(source, out):
    source.mkdir(parents=True)
    region_archive(source / 'a.npz')
    region_archive(source / 'b.npz', image_id=np.array([1, 2]))
    return [source / 'a.npz', source / 'b.npz']


def write_rows(source, out):
    return [language_releases.bottom_up(source / f'{name}.tsv', range(5 * name, 5 * name + 3)) for name in (1, 2)]


def write_steps(source, out):
    source.mkdir(parents=True)
    for i in range(3):
        np.save(source / f'v_{i}.npy', np.random.default_rng(i).standard_normal((1, 3 + i, 6)).astype(np.float32))
    return [source]


def write_photographs(source, out):
    for i in range(3):
        save(source / f'{i}.png', photo(i, (40, 48 + 5 * i)))
    return [*grids.write_model(source, 'mmseg'), source, *grids.OPTIONS]


def write_detected(source, out):
    model = regions.write_detector(source)
    save(source / 'photos/b/2.JPG', photo(2, (40, 50)), format='JPEG')
    return [*model, *regions.OPTIONS]


def write_captions(source, out):
    write_json(source / 'dataset_coco.json', language_releases.karpathy(['train'] * 6 + ['val'] * 2))
    rehearsal_data.add_grid(source, [*range(100, 108)], 'regions')
    return [source / 'dataset_coco.json', source / 'regions', '--out', out / 'attributes.json', '--num-attributes', 3]


VQA = partial(rehearsal_data.make_vqa, prefix='v2_')
STORE = partial(Converter, kind='store')
FILE = partial(Converter, kind='files', overwrites=False)  # an existing file is an error
CONVERTERS = dict(
    annotations=Converter('annotations', write_export, archives=(0,), unseen='json'),  # images without are left out
    bottom_up_features=STORE('bottom_up_features', write_rows),
    camvid=rehearsed('camvid', rehearsal_data.make_camvid, archives=(0,), counts=('train', 'val', 'test')),
    caption_attributes=FILE('caption_attributes', write_captions),
    coco_qa=rehearsed('coco_qa', rehearsal_data.make_coco_qa, unseen='npz'),
    color_labels=Converter('color_labels', write_masks),
    # without questions of training, it is a test set for a trained model
    daquar=rehearsed('daquar', rehearsal_data.make_daquar, unseen='npz|train'),
    easy_vqa=rehearsed('easy_vqa', rehearsal_data.make_easy_vqa, unseen='zip|train'),
    fasseg=Converter('fasseg', write_faces, archives=(0,), unseen='labels/'),  # a photograph may have no labels
    flickr8k=rehearsed('flickr8k', rehearsal_data.make_flickr8k, unseen='npz'),
    flickr_entities=rehearsed('flickr_entities', rehearsal_data.make_grounding, unseen='npz|test.txt'),
    grid_features=STORE('grid_features', write_photographs, unseen='png', unread=r'\.py'),
    helen=rehearsed(
        'helen',
        rehearsal_data.make_helen,
        archives=(0,),
        counts=('exemplars.txt', 'tuning.txt', 'testing.txt'),
        unseen='points',
        unread='points',
    ),
    iwslt14=rehearsed('iwslt14', rehearsal_data.make_iwslt14, archives=(0,)),
    lfw_pl=rehearsed(
        'lfw_pl',
        rehearsal_data.make_lfw_pl,
        archives=(1, 3),
        counts=('parts_train.txt', 'parts_validation.txt', 'parts_test.txt'),
        unseen='points',
        unread='points',
    ),
    multi30k=rehearsed(
        'multi30k',
        rehearsal_data.make_multi30k,
        archives=(0,),
        counts=('train', 'val', 'test_2016_flickr'),
        unseen='fr.gz',
        unread='fr.gz',
    ),
    parallel_text=Converter('parallel_text', write_text_and_table),
    region_features=STORE(
        'region_features',
        write_detected,
        unseen='JPG',
        unread=r'\.py',
    ),
    region_npz=STORE('region_npz', write_archives),
    still_clips=rehearsed('still_clips', rehearsal_data.make_stills),
    vatex_features=STORE('vatex_features', write_steps, unseen='npy'),
    visual_genome=Converter('visual_genome', write_genome, kind='files'),
    vqa=rehearsed('vqa', VQA, unseen='test'),
    wmt14=rehearsed(
        'wmt14',
        rehearsal_data.make_wmt14_en_de,
        archives=(1,),
        counts=('newstest2013.tok.bpe.32000', 'newstest2014.tok.bpe.32000'),
        unseen=r'newstest\d+\.\w\w$',
    ),
    youtube_vos_split=Converter('youtube_vos_split', write_videos, kind='files'),
)
ALONE = {'sample_data'}  # fetches from a package index, and leaves a complete output alone: see test_sample_data.py


def archived(case, args, folder, suffix):
    """The arguments with archives in place of folders. In an archive there is one folder, but not in an export."""
    args = [*args]
    for number in case.archives:
        root = args[number]
        prefix = f'{root.name}/' * (case.script != 'annotations')
        paths = [path for path in root.rglob('*') if path.is_file()]
        files = {f'{prefix}{path.relative_to(root)}': path.read_bytes() for path in paths}
        args[number] = pack(folder / f'{root.name}{suffix}', files)
    return args
