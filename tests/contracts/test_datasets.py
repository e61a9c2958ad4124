"""What every data set promises: wrong options and files are named; parts and copies have the samples of the whole."""

import json
import pickle
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.dataset import BaseDataset, ConcatDataset

from mmattn.language.captioning import COCOCaptionDataset, VATEXDataset
from mmattn.language.grounding import EntitiesDataset
from mmattn.language.translation import ParallelTextDataset
from mmattn.language.vqa import VQADataset
from mmattn.segmentation import face_parsing
from mmattn.video.datasets import DAVISDataset, VideoFolderDataset, YouTubeVOSDataset

from .. import tiny_data
from ..support import rehearsal_data, releases
from .test_converters import kinds

ROOT = Path(__file__).parents[2]


@dataclass
class Case:
    kind: type
    make: object  # writes the data to a folder
    options: dict = field(default_factory=dict)  # of a test
    unread: str = '^$'  # files that a test does not read, as a pattern
    unseen: str = '^$'  # files that may be missing: the last frame, and masks behind the first

    def build(self, root, **options):
        return self.kind(**dict(data_root=str(root), test_mode=True) | self.options | options)


QUESTIONS = 'questions_val.json'
COUNTED = dict(vocab_files=['questions_train.json'], answer_files=['questions_train.json'], min_answers=1)
CAPTIONS = dict(ann_file='dataset_coco.json', regions='regions', split='val', min_count=0)
STILLS = [releases.squares(position, 1) for position in range(3)]
CASES = dict(
    captions=Case(COCOCaptionDataset, lambda root: tiny_data.captions(root, 'coco'), CAPTIONS, 'vgg16|attributes'),
    attributes=Case(
        COCOCaptionDataset,
        lambda root: tiny_data.captions(root, 'coco'),
        CAPTIONS | dict(attributes='attributes.json'),
        'vgg16',
    ),
    videos=Case(
        VATEXDataset,
        tiny_data.vatex,
        dict(ann_file='vatex_validation_v1.0.json', regions='regions', vocab_file='vatex_training_v1.0.json'),
        'public',
    ),
    phrases=Case(
        EntitiesDataset,
        tiny_data.entities,
        dict(ann_file='entities_val.json', regions='regions', vocab_file='entities_train.json'),
        'test',
    ),
    questions=Case(
        VQADataset, tiny_data.questions, dict(ann_file=QUESTIONS, regions='regions', **COUNTED), 'test|resnet152'
    ),
    pictures=Case(
        VQADataset,
        partial(tiny_data.questions, pictures=True),
        dict(ann_file=QUESTIONS, images='images', **COUNTED),
        'test|png',  # pictures are read one by one
    ),
    translation=Case(
        ParallelTextDataset,
        lambda root: tiny_data.parallel_text(root, 'en', 'de'),
        dict(split='val'),
        unread='test|train',
        unseen='raw',
    ),
    davis=Case(
        DAVISDataset,
        lambda root: releases.davis(root, bear=STILLS, goat=STILLS),
        dict(ann_file='ImageSets/val.txt', resolution='240p'),
        unread='train',
        unseen='0000',
    ),
    youtube=Case(
        YouTubeVOSDataset, lambda root: rehearsal_data.make_youtube_vos(root / 'a'), unread='train|val', unseen='000'
    ),
    folder=Case(VideoFolderDataset, lambda root: [releases.clip(root, name, STILLS) for name in 'ab'], unseen='0000'),
)
OF_MMENGINE = [name for name, case in CASES.items() if issubclass(case.kind, BaseDataset)]
PLAIN = {face_parsing.HELENDataset, face_parsing.LFWPLDataset}  # mmseg's, with other names of classes
each = pytest.mark.parametrize('case', CASES, indirect=True)


@pytest.fixture
def case(request):
    return CASES[request.param]


@pytest.fixture
def root(case, tmp_path):
    root = tmp_path / 'Daten ü 雪'
    case.make(root)
    return root / 'a/train' if case.kind is YouTubeVOSDataset else root


def plain(x):
    """A sample as JSON, with all values of its arrays."""
    if hasattr(x, 'to_dict'):
        x = x.to_dict()
    if isinstance(x, np.ndarray | torch.Tensor):
        x = [str(x.dtype), x.tolist()]
    if isinstance(x, dict):
        return {str(key): plain(value) for key, value in x.items()}
    return [*map(plain, x)] if isinstance(x, list | tuple) else x


def samples(data, without=('sample_idx', 'index', 'line')):
    """The samples but for their positions, in text that can be compared."""
    return [re.sub(rf'"({"|".join(without)})": \d+,? ?', '', json.dumps(plain(data[i]))) for i in range(len(data))]


def test_all_data_sets_are_here():
    texts = [path.read_text(encoding='utf-8') for path in (ROOT / 'mmattn').rglob('*.py')]
    names = {name for text in texts for name in re.findall(r'^@DATASETS\.register_module\(\)\nclass (\w+)', text, re.M)}
    assert names == {kind.__name__ for kind in PLAIN | {case.kind for case in CASES.values()}}


@each
def test_an_unknown_option_is_an_error(case, root):
    with pytest.raises(TypeError, match='test_mod'):
        case.build(root, test_mod=1)


@each
def test_parts_and_copies_have_the_samples_of_the_whole(case, root):
    """In any order of their positions; words and answers are those of all samples. Copies are those of workers."""
    whole = case.build(root)
    expected = samples(whole)
    assert len({*expected}) == len(expected) > 1
    assert samples(pickle.loads(pickle.dumps(whole))) == expected
    order = [len(expected) - 1, 0]
    for indices, chosen in ((order, order), (1, [0]), (-1, order[:1])):
        part = case.build(root, indices=indices)
        assert samples(part) == [expected[i] for i in chosen]
        assert part.metainfo == whole.metainfo


@pytest.mark.parametrize('case', [name for name in CASES if name not in OF_MMENGINE], indirect=True)
def test_wrong_indices(case, root):
    count = len(case.build(root))
    for indices in (0, 'ab', [0, 0], [count], [-count - 1], [], 1.5, True):
        with pytest.raises(ValueError, match='indices'):
            case.build(root, indices=indices)


@pytest.mark.parametrize('case', OF_MMENGINE, indirect=True)
def test_memory_may_be_shared_and_data_be_read_later(case, root):
    whole, later = case.build(root), case.build(root, lazy_init=True)
    later.full_init()
    assert samples(later) == samples(case.build(root, serialize_data=False)) == samples(whole)
    assert samples(whole.get_subset([1, 0])) == samples(whole)[1::-1]
    assert samples(ConcatDataset([whole, later])) == samples(whole) * 2


def damaged(path):
    """Half of a file. Half of a text may be one, too."""
    text = path.suffix in ('.codes', '.de', '.en', '.json', '.txt')
    return path.read_bytes()[: path.stat().st_size // 2] + b'\xff' * text


@each
def test_missing_and_damaged_files_are_named(case, root):
    """Each alone, and before a sample is read."""
    paths = [path for path in kinds(root) if not re.search(case.unread, str(path.relative_to(root)))]
    spoilt = {path: damaged(path) for path in paths}
    for path in paths:
        whole = path.read_bytes()
        for data in (spoilt[path], *([] if re.search(case.unseen, path.name) else [None])):
            path.unlink() if data is None else path.write_bytes(data)
            with pytest.raises((OSError, ValueError), match=re.escape(path.stem)):
                case.build(root)
            path.write_bytes(whole)
