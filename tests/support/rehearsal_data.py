"""Data sets of a rehearsal: a tiny release of each, converted by its converter where it has one."""

import runpy
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common.conversion import replace_folder
from mmattn.language import Regions, RegionWriter
from mmattn.utils import config_path
from reproduction.protocol import data_sets

from . import language_releases, releases

WORDS = ('is', 'it', 'what', 'color', 'dog', 'image', 'man', 'hat')  # with published vectors, in questions and phrases
RESNET152 = "grid_features.py, resnet152_imagenet.py, resnet152.pth, {'size': 448, 'level': -1, 'grid': 14}"
SPLITS = dict(train=range(100, 106), val=range(200, 204), test=range(300, 302))  # numbers of images


@cache
def script(tool: str) -> dict[str, Any]:
    folder = str(config_path().parent / 'tools/dataset_converters')
    sys.path.insert(0, folder)  # as Python does for a script
    try:
        return runpy.run_path(f'{folder}/{tool}.py')
    finally:
        sys.path.remove(folder)


def convert(tool: str, *arguments: str | Path) -> None:
    words = [*map(str, arguments)]
    if script(tool)['main'](words):
        raise RuntimeError(f'{tool}.py {" ".join(words)} failed')


def images() -> list[int]:
    return [number for numbers in SPLITS.values() for number in numbers]


def add_regions(root: Path, source: Path, ids: list, store: str = 'regions', width: int = 6) -> None:
    """Convert bottom-up-attention features of some images to a region store in a data set."""
    tsv = language_releases.bottom_up(source / f'{store}.tsv', ids, width)
    convert('bottom_up_features', tsv, '--out-dir', root / store)


def add_grid(root: Path, ids: list, store: str = 'resnet152') -> None:
    """Store random features of some images as ``grid_features.py`` stores ResNet-152's, without the network."""
    with RegionWriter(root / store, RESNET152) as writer:
        for number, image_id in enumerate(ids):
            boxes, features = map(torch.from_numpy, language_releases.random_regions(number, 4, 6))
            writer.write(str(image_id), Regions(features, boxes, (40, 50)))


# Segmentation, detection, video.


def make_helen(root: Path, source: Path, *options: str | Path) -> None:
    lists = {'exemplars.txt': ['11_1', '12_1', '13_2', '14_1'], 'tuning.txt': ['21_1', '22_1'], 'testing.txt': ['31_1']}
    releases.helen(source, lists)
    add_landmarks(source / 'points', [name for names in lists.values() for name in names])
    convert('helen', source, '--out-dir', root, '--allow-other-counts', *options)


def add_landmarks(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True)
    for seed, name in enumerate(names):
        points = np.array([[5, 6], [15, 6], [10, 12], [10, 17]]) + np.random.default_rng(seed).normal(size=(4, 2))
        (folder / f'{name}.pts').write_text(
            f'n_points: 4\n{{\n{chr(10).join(f"{x} {y}" for x, y in points)}\n}}\n', encoding='utf-8'
        )


def make_lfw_pl(root: Path, source: Path, aligned: bool = False) -> None:
    lists = {
        'parts_train.txt': [('Ann_Lee', 1), ('Ann_Lee', 12), ('Jo-Jo_K', 3), ('Di', 1)],
        'parts_validation.txt': [('Bo', 1), ('Bo', 2)],
        'parts_test.txt': [('Cy_D', 2)],
    }
    arguments = releases.lfw_pl(source, lists)
    add_landmarks(source / 'points', [f'{name}_{number:04}' for names in lists.values() for name, number in names])
    options: list[str | Path] = ['--align', source / 'points', '--size', '40'] if aligned else []
    convert('lfw_pl', *arguments, *options, '--out-dir', root)


def make_davis(root: Path, resolution: str, lists: str) -> None:
    masks = [releases.squares(position, 1) for position in range(3)]
    releases.davis(root, resolution, lists, bear=masks, goat=masks)


def make_youtube_vos(root: Path) -> None:
    for part in ('train', 'valid'):
        releases.youtube_vos(root / part, dict(a={1: ('cat', 0), 5: ('yak', 1)}, b={3: ('cat', 0)}), dict(a=3, b=3))
    (root / 'train.txt').write_text('a\n', encoding='utf-8')
    convert('youtube_vos_split', root / 'train', '--train', root / 'train.txt', '--overwrite')


def make_camvid(root: Path, source: Path) -> None:
    releases.camvid(source, train=4, val=2, test=2)
    convert('camvid', source, '--out-dir', root, '--allow-other-counts')


def make_fasseg(root: Path, source: Path) -> None:
    releases.fasseg(source, (1, 2, 7, 8))
    convert('fasseg', source, '--out-dir', root)


def make_stills(root: Path, source: Path) -> None:
    for seed in range(2):
        labels = np.kron(np.random.default_rng(seed).integers(0, 3, (4, 5)), np.ones((8, 8), int)).astype(np.uint8)
        releases.save(source / f'images/{seed}.png', releases.photo(seed, labels.shape))
        releases.save(source / f'masks/{seed}.png', labels)
    convert('still_clips', '--images', source / 'images', '--masks', source / 'masks', '--out-dir', root)


# Text and captions.


def make_multi30k(root: Path, source: Path) -> None:
    release = releases.write_files(language_releases.multi30k(dict(train=4, val=2, test_2016_flickr=3)), source)
    convert('multi30k', release, '--merges', '12', '--allow-other-counts', '--out-dir', root)


def make_iwslt14(root: Path, source: Path) -> None:
    release = releases.write_files(language_releases.iwslt14(script('iwslt14')['TESTS']), source)
    convert('iwslt14', release, '--merges', '30', '--out-dir', root)


def make_wmt14_en_de(root: Path, source: Path) -> None:
    merges = ['#version: 0.2', 'H u', 'd o', 'do g</w>']
    segmented, published = (script('wmt14')[name].values() for name in ('SEGMENTED', 'PUBLISHED'))
    release = language_releases.wmt14_en_de(merges, segmented, published)
    convert('wmt14', 'en-de', releases.write_files(release, source), '--allow-other-counts', '--out-dir', root)


def make_wmt14_en_fr(root: Path, source: Path) -> None:
    source.mkdir(parents=True)
    for archive, files in language_releases.wmt14_en_fr(script('wmt14')['CORPORA']).items():
        releases.pack(source / archive, files, 'w' if archive.endswith('.tar') else 'w:gz')
    convert('wmt14', 'en-fr', source, '--merges', '40', '--allow-other-counts', '--out-dir', root)


def make_coco_captions(root: Path, source: Path) -> None:
    releases.write_json(
        root / 'dataset_coco.json',
        language_releases.karpathy(['train'] * 5 + ['restval', 'val', 'val', 'test', 'test']),
    )
    add_regions(root, source, [*range(100, 110)])
    add_regions(root, source, [*range(100, 110)], 'vgg16', 512)
    detect_attributes(root, 'dataset_coco.json')


def detect_attributes(root: Path, name: str) -> None:
    words: list[str | Path] = ['--num-words', '5', '--num-attributes', '3', '--out', root / 'attributes.json']
    convert('caption_attributes', root / name, root / 'regions', *words)


def make_flickr8k(root: Path, source: Path) -> None:
    splits = ['train'] * 6 + ['val'] * 4
    annotations = language_releases.karpathy(splits, 'filename')
    releases.write_json(source / 'dataset_flickr8k.json', annotations)
    language_releases.region_archive(source / 'features_train.npz', image_id=np.arange(100, 110))
    convert('flickr8k', source, '--out-dir', root)
    detect_attributes(root, 'dataset_flickr8k.json')


def make_vatex(root: Path, source: Path) -> None:
    """VATEX: ten captions of each video, and features of its time steps."""
    files = {'training_v1.0': 4, 'validation_v1.0': 2, 'public_test_english_v1.1': 2}
    names = []
    for file, count in files.items():
        videos = [dict(videoID=f'{file}_{i}', enCap=language_releases.captions(i) * 2) for i in range(count)]
        names += [video['videoID'] for video in videos]
        releases.write_json(root / f'vatex_{file}.json', videos)
    source.mkdir(parents=True, exist_ok=True)
    for name in names:
        np.save(source / f'{name}.npy', np.random.default_rng(0).normal(size=(1, 4, 6)))
    convert('vatex_features', source, '--out-dir', root / 'regions')


def make_grounding(root: Path, source: Path) -> None:
    language_releases.entities(source, SPLITS)
    language_releases.region_archive(source / 'features_all.npz', image_id=np.array(images()))
    convert('flickr_entities', source, '--out-dir', root)


# Questions.


def make_vqa(root: Path, source: Path, prefix: str) -> None:
    """VQA 2.0 or 1.0: its test has no answers; for VQA 2.0 also the questions of Visual Genome, and captions."""
    for split, numbers, year in (('train', [3, 4] * 10, '2014'), ('val', [5, 6], '2014'), ('test', [7, 8], '2015')):
        language_releases.vqa(source, split, numbers, prefix, year)
    language_releases.vqa(source, 'test-dev', [7, 8], prefix, '2015')
    convert('vqa', source, '--out-dir', root)
    add_regions(root, source, [*range(3, 9)])
    add_grid(root, [*range(3, 9)])
    if prefix:
        language_releases.visual_genome(source / 'genome', 'yes', 'no')
        convert('visual_genome', source / 'genome', '--vqa', root)
        for split in ('train', 'val'):
            captions = [dict(caption=line) for line in language_releases.captions(3)]
            releases.write_json(root / f'captions_{split}2014.json', dict(annotations=captions))


def make_coco_vqa_mini(root: Path, source: Path) -> None:
    language_releases.vqa(source, 'minitrain', [3, 4] * 10, year='')
    language_releases.vqa(source, 'minival', [5, 6, 7, 8], year='')
    language_releases.region_archive(source / 'features_all.npz', image_id=np.arange(3, 9))
    convert('vqa', source, '--hold-out', '--out-dir', root)


def make_coco_qa(root: Path, source: Path) -> None:
    for split, numbers in (('train', SPLITS['train']), ('test', SPLITS['val'])):
        rows = [
            ('what color is it', colour, number, kind)
            for number in numbers
            for kind, colour in enumerate(('dog', 'two', 'red'))
        ]
        language_releases.coco_qa(source, split, *rows)
    language_releases.region_archive(source / 'features_all.npz', image_id=np.array(images()))
    convert('coco_qa', source, '--out-dir', root)


def make_daquar(root: Path, source: Path) -> None:
    for split, numbers in (('train', SPLITS['train']), ('test', SPLITS['val'])):
        rows = [(f'what is in the image{number} ?', answer) for number in numbers for answer in ('bed', 'book, cup')]
        language_releases.daquar(source, f'qa.37.raw.{split}.txt', *rows)
    language_releases.region_archive(source / 'features_all.npz', image_id=np.array(images()))
    convert('daquar', source, '--out-dir', root)


def make_easy_vqa(root: Path, source: Path) -> None:
    for split, numbers in (('train', range(40)), ('test', range(4))):  # two questions are 1/16
        language_releases.easy_vqa(source, split, [*numbers], packed=True, size=64)
    convert('easy_vqa', source, '--out-dir', root)


def make_glove(root: Path, _: Path) -> None:
    for corpus in ('6B', '840B'):
        language_releases.glove(root / f'glove.{corpus}.300d.txt', WORDS)


# By the environment variable of a data set's folder: writes the folder, with a second folder for the release.
DATA: dict[str, Callable[[Path, Path], None]] = {
    'ADE20K_ROOT': lambda root, _: releases.ade20k(root),
    'BCCD_ROOT': lambda root, _: releases.voc(root, ('RBC', 'WBC', 'Platelets')),
    'BUILDINGS_ROOT': lambda root, _: releases.folders(root, '.png', 2),
    'CAMVID_ROOT': make_camvid,
    'CITYSCAPES_ROOT': lambda root, _: releases.cityscapes(root),
    'COCO_CAPTIONS_ROOT': make_coco_captions,
    'COCO_QA_ROOT': make_coco_qa,
    'COCO_ROOT': lambda root, _: releases.coco(root),
    'COCO_VQA_MINI_ROOT': make_coco_vqa_mini,
    'DAQUAR_ROOT': make_daquar,
    'DAVIS_2016_ROOT': lambda root, _: make_davis(root, '480p', 'ImageSets/480p'),
    'DAVIS_240P_ROOT': lambda root, _: make_davis(root, '240p', 'ImageSets'),
    'DAVIS_ROOT': lambda root, _: make_davis(root, '480p', 'ImageSets/2017'),
    'EASY_VQA_ROOT': make_easy_vqa,
    'FASSEG_ROOT': make_fasseg,
    'FLICKR30K_GROUNDING_ROOT': make_grounding,
    'FLICKR8K_GROUNDING_ROOT': make_grounding,
    'FLICKR8K_ROOT': make_flickr8k,
    'GLOVE_ROOT': make_glove,
    'HELEN_ALIGNED_ROOT': lambda root, source: make_helen(root, source, '--align', '--size', '40'),
    'HELEN_ROOT': make_helen,
    'IWSLT14_ROOT': make_iwslt14,
    'LFW_PL_ALIGNED_ROOT': lambda root, source: make_lfw_pl(root, source, aligned=True),
    'LFW_PL_ROOT': make_lfw_pl,
    'MULTI30K_ROOT': make_multi30k,
    'SKIP_THOUGHT_ROOT': lambda root, _: language_releases.skip_thought(root, WORDS),
    'STILLS_ROOT': make_stills,
    'TREES_ROOT': lambda root, _: releases.voc(root, ('Tree',)),
    'VATEX_ROOT': make_vatex,
    'VQA1_ROOT': lambda root, source: make_vqa(root, source, ''),
    'VQA2_ROOT': lambda root, source: make_vqa(root, source, 'v2_'),
    'WMT14_EN_DE_ROOT': make_wmt14_en_de,
    'WMT14_EN_FR_ROOT': make_wmt14_en_fr,
    'YOUTUBE_VOS_2018_ROOT': lambda root, _: make_youtube_vos(root),
    'YOUTUBE_VOS_2019_ROOT': lambda root, _: make_youtube_vos(root),
}


def variables() -> list[str]:
    """Return the environment variables of all data sets and word vectors that the configs read."""
    return sorted({*data_sets().values(), 'GLOVE_ROOT', 'SKIP_THOUGHT_ROOT', 'STILLS_ROOT'})


def place(variable: str, folder: Path) -> Path:
    """Return the folder of a variable's data set below ``folder``."""
    return folder / variable.removesuffix('_ROOT').lower()


def make(variable: str, folder: Path) -> None:
    """Make the data set of a variable below ``folder``, unless it is there."""
    root = place(variable, folder)
    if not root.exists():
        with replace_folder(root) as scratch:
            DATA[variable](scratch / 'new', scratch / 'source')
