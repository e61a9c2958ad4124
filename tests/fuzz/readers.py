"""The files that the package reads, by kind, and the entrance through which it reads each."""

import io
import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from PIL import Image

import mmattn.registry  # noqa: F401
from mmattn.check.driver import check_data
from mmattn.engine import read_checkpoint
from mmattn.language.captioning import COCOCaptionDataset, VATEXDataset
from mmattn.language.grounding.datasets import EntitiesDataset
from mmattn.language.regions.image_inputs import given_picture
from mmattn.language.regions.region_store import Regions, RegionStore
from mmattn.language.regions.region_writer import RegionWriter
from mmattn.language.translation.datasets import ParallelTextDataset
from mmattn.language.vqa.datasets import VQADataset
from mmattn.language.vqa.encoders import read_skip_thought
from mmattn.language.vqa.transforms import read_picture
from mmattn.language.vqa.word_vectors import read_word_vectors
from mmattn.utils.faults import Faults, FaultsError
from mmattn.utils.resumable import Resumable
from mmattn.video.backbone_weights import load_backbone
from mmattn.video.clip_readers import open_clip
from mmattn.video.datasets import DAVISDataset, YouTubeVOSDataset
from mmattn.video.frame_files import read_frame
from mmattn.video.masks import read_mask, write_mask

from .. import tiny_data
from ..check.conftest import data_set, write
from ..contracts.converters import CONVERTERS
from ..contracts.test_converters import Run
from ..support import language_releases, releases

ROOT = Path(__file__).parents[2]
ARCHIVE = 'features_all.npz'


class Kind(NamedTuple):
    """A kind of files: what writes them into a folder, which are changed, and what reads them.

    A reader returns None, or the faults that it lists.
    """

    write: Callable[[Path], object]
    read: Callable[[Path], str | None]
    changed: str = '**/*'


def _every(dataset):
    for index in range(len(dataset)):
        dataset[index]


def _data_set(kind, ann_file, *cfgs, **more):
    """Build data sets and get each sample, as in training, and check them, as before it."""
    more.update({} if ann_file is None else dict(ann_file=ann_file, regions='regions'))
    model = SimpleNamespace(
        num_features=tiny_data.FEATURES, reads_attributes='attributes' in more, num_answers=None, modules=lambda: []
    )

    def read(folder):
        faults = Faults()
        for cfg in cfgs or [{}]:
            data = kind(**cfg, **more, data_root=str(folder))
            data.check_for_model(model, faults)
            if not faults:
                _every(data)
        return str(FaultsError(faults.by_path)) if faults else ''

    return read


TEST, KARPATHY = dict(test_mode=True), dict(attributes='attributes.json', min_count=0)


def _check(folder, cfg):
    runner = SimpleNamespace(cfg=Config(dict(train_dataloader=dict(dataset=cfg))), work_dir=str(folder / 'work'))
    check_data(runner, ['train_dataloader'])


def _check_boxes(folder, cfg):
    import mmdet.datasets  # noqa: F401

    init_default_scope('mmdet')
    scales = dict(filter_cfg=dict(filter_empty_gt=True, min_size=8), pipeline=[])
    _check(folder, {**cfg, **scales, 'data_root': str(folder)})


def _check_masks(folder):
    init_default_scope('mmseg')
    _check(folder, data_set(folder))


def _write_segmentation(folder):
    rng = np.random.default_rng(0)
    for number in range(2):
        write(folder / f'img/train/{number}.png', rng.integers(0, 255, (40, 48, 3), np.uint8))
        write(folder / f'ann/train/{number}.png', rng.integers(0, 2, (40, 48)).astype(np.uint8))
    palette = Image.open(folder / 'ann/train/0.png').convert('P')
    palette.putpalette([0, 0, 0, 255, 0, 0])
    palette.save(folder / 'ann/train/0.png')


def _state():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).state_dict()


CONFIG = (ROOT / 'configs/_base_/models/san.py').read_text(encoding='utf-8')


def _write_checkpoint(folder, zipped=True):
    from mmengine.logging import HistoryBuffer

    meta = dict(cfg=CONFIG, epoch=3, iter=12, dataset_meta=dict(classes=('a', 'b'), palette=[[0, 0, 0], [9, 9, 9]]))
    content = dict(meta=meta, state_dict=_state(), message_hub=dict(loss=HistoryBuffer([1.0], [1])))
    content['param_schedulers'] = [dict(last_step=3, base_values=[0.1])]
    torch.save(content, folder / 'model.pth', _use_new_zipfile_serialization=zipped)


def _read_checkpoint(folder):
    path = folder / 'model.pth'
    read_checkpoint(path)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    load_backbone(module, dict(type='x', init_cfg=dict(checkpoint=path)))


def _read_archive(folder):
    from common.region_archives import read_images

    for _, _, read in read_images([folder / ARCHIVE], '{}'):
        read()


def _read_store(folder):
    store = RegionStore(folder / 'regions')
    said = store.image_faults()
    for image_id in store.image_ids:
        store[image_id]
    return '\n'.join([str(folder / 'regions'), *said]) if said else None


def _write_progress(folder):
    with Resumable(folder / 'out.json.part', dict(model='a', beam=3), resume=False) as run:
        run.add({number: dict(caption='a dog', score=-1.5) for number in range(3)})


def _read_progress(folder):
    with Resumable(folder / 'out.json.part', dict(model='a', beam=3)) as run:
        run.add({7: dict(caption='a')})
        json.dumps([run.done[number] for number in sorted(run.done)])


def _regions(count=3):
    boxes, features = map(torch.from_numpy, language_releases.random_regions(0, count, 6))
    return Regions(features, boxes, (50, 40))


def _write_part(folder):
    writer = RegionWriter(folder / 'regions', 'a source')
    for name in 'abc':
        writer.write(name, _regions())
    writer.__exit__(KeyboardInterrupt, None, None)


def _resume_part(folder):
    with RegionWriter(folder / 'regions', 'a source') as writer:
        for name in 'abcd':
            if name not in writer:
                writer.write(name, _regions())
    return _read_store(folder)


def _write_pictures(folder):
    for number, suffix in enumerate(('.png', '.jpg', '.webp', '.bmp', '.tif', '.gif')):
        releases.save(folder / f'{number}{suffix}', releases.photo(number))


def _read_pictures(folder):
    for path in sorted(folder.iterdir()):
        if path.suffix == '.gif':
            given_picture(path)
            continue
        read_frame(path)
        read_picture(path)
        given_picture(path)


def _write_masks(folder):
    write_mask(folder / '0.png', np.eye(20, 30, dtype=np.uint8) * 3)
    Image.fromarray(np.eye(20, 30, dtype=np.uint8)).save(folder / '1.png')
    Image.fromarray(np.eye(20, 30, dtype=np.uint16)).save(folder / '2.png')


def _read_masks(folder):
    for path in sorted(folder.iterdir()):
        ids = read_mask(path)
        assert ids.dtype == np.uint8
        assert ids.ndim == 2


def _write_clip(folder):
    import cv2

    writer = cv2.VideoWriter(str(folder / 'clip.avi'), cv2.VideoWriter.fourcc(*'MJPG'), 10, (44, 30))
    for position in range(4):
        writer.write(releases.frame(releases.squares(position, 1), position))
    writer.release()


def _read_clip(folder):
    for _, image in open_clip(folder / 'clip.avi').read():
        assert image.ndim == 3


def _read_vectors(folder):
    read_word_vectors(folder / 'glove.txt', ['dog', 'cat'], 6)
    read_word_vectors(folder / 'utable.npy', ['dog', 'cat'], 12, folder / 'dictionary.txt')
    gru = torch.nn.GRU(12, 8)
    weights = read_skip_thought(folder / 'uni_skip.npz')
    try:
        gru.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f'uni_skip.npz: {error}') from error


def _write_vectors(folder):
    language_releases.skip_thought(folder, ('dog', 'cat'))
    language_releases.glove(folder / 'glove.txt', ('dog', 'cat', 'a'))


def _converter(case):
    """The release of the converter's contract, and its conversion."""
    runs = {}

    def write(folder):
        assert case.main  # what it requires is imported
        runs[folder] = Run(case, folder)

    def read(folder):
        said = io.StringIO()
        with redirect_stderr(said):
            code, *_ = runs[folder]()
        return said.getvalue() or f'exit {code}' if code else None

    return Kind(write, read, '*/release/**/*')


CLASSES = ('RBC', 'WBC', 'Platelets')


def _coco(folder):
    releases.coco(folder)
    shutil.rmtree(folder / 'val2017')
    (folder / 'annotations/instances_val2017.json').unlink()


def _check_coco(folder):
    from mmdet.datasets import CocoDataset

    cfg = dict(type='CocoDataset', ann_file='annotations/instances_train2017.json', metainfo=CocoDataset.METAINFO)
    _check_boxes(folder, dict(cfg, data_prefix=dict(img='train2017/')))


def _check_voc(folder):
    cfg = dict(type='VOCDataset', ann_file='ImageSets/Main/train.txt', data_prefix=dict(sub_data_root=''))
    _check_boxes(folder, dict(cfg, metainfo=dict(classes=CLASSES)))


def _captions(folder):
    """COCO's own layout of captions."""
    tiny_data._regions(folder / 'regions', ['1', '2', '3'])
    images = [dict(id=number, file_name=f'{number}.jpg') for number in (1, 2, 3)]
    captions = [
        dict(id=10 * number + n, image_id=number, caption=text)
        for number in (1, 2, 3)
        for n, text in enumerate(language_releases.captions(number))
    ]
    releases.write_json(folder / 'captions_train.json', dict(images=images, annotations=captions))


PARALLEL = partial(tiny_data.parallel_text, source='en', target='de')
VOC = partial(releases.voc, classes=CLASSES)
KINDS = {
    'checkpoint (zip)': Kind(_write_checkpoint, _read_checkpoint),
    'checkpoint (legacy)': Kind(partial(_write_checkpoint, zipped=False), _read_checkpoint),
    'region store': Kind(lambda folder: tiny_data._regions(folder / 'regions', 'abcd'), _read_store),
    'region store, unfinished': Kind(_write_part, _resume_part, '**/*.h5'),
    'region archive (npz)': Kind(lambda folder: language_releases.region_archive(folder / ARCHIVE), _read_archive),
    'COCO': Kind(_coco, _check_coco, 'annotations/*'),
    'VOC': Kind(VOC, _check_voc, 'Annotations/train*'),
    'VOC, list': Kind(VOC, _check_voc, 'ImageSets/Main/train.txt'),
    'captions (Karpathy), attributes': Kind(
        partial(tiny_data.captions, name='coco'),
        _data_set(COCOCaptionDataset, 'dataset_coco.json', dict(split='train'), dict(split='val'), **KARPATHY),
        '*.json',
    ),
    'captions (COCO)': Kind(_captions, _data_set(COCOCaptionDataset, 'captions_train.json', min_count=0), '*.json'),
    'captions (VATEX)': Kind(
        tiny_data.vatex, _data_set(VATEXDataset, 'vatex_training_v1.0.json', min_count=0), 'vatex_training*'
    ),
    'questions': Kind(
        tiny_data.questions,
        _data_set(VQADataset, 'questions_train.json', {}, TEST, min_answers=1),
        'questions_train.json',
    ),
    'entities': Kind(
        tiny_data.entities, _data_set(EntitiesDataset, 'entities_train.json', {}, TEST), 'entities_train.json'
    ),
    'parallel text': Kind(
        PARALLEL, _data_set(ParallelTextDataset, None, dict(split='train'), dict(TEST, split='val')), '[!t]*[!n]'
    ),
    'corpus.json': Kind(PARALLEL, _data_set(ParallelTextDataset, None, dict(split='train')), 'corpus.json'),
    'label maps': Kind(_write_segmentation, _check_masks, 'ann/**/*'),
    'images': Kind(_write_segmentation, _check_masks, 'img/**/*'),
    'pictures and frames': Kind(_write_pictures, _read_pictures),
    'masks of clips': Kind(_write_masks, _read_masks),
    'DAVIS': Kind(
        lambda folder: releases.davis(folder, cat=[releases.squares(p, 1, 2) for p in range(3)]),
        lambda folder: _every(DAVISDataset('ImageSets/train.txt', '240p', data_root=str(folder))),
    ),
    'YouTube-VOS': Kind(
        lambda folder: releases.youtube_vos(folder, {'a': {1: ('cat', 0), 2: ('dog', 1)}}, {'a': 3}),
        lambda folder: _every(YouTubeVOSDataset(data_root=str(folder), seen='meta.json')),
        'meta.json',
    ),
    'video': Kind(_write_clip, _read_clip),
    'word vectors': Kind(_write_vectors, _read_vectors),
    'progress of a run': Kind(_write_progress, _read_progress),
    # of region_features, mmdet reads the photographs, and its errors name them or not
    **{f'converter {name}': _converter(case) for name, case in CONVERTERS.items() if name != 'region_features'},
}
