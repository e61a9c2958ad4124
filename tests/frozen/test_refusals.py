"""What commit 35ee0772 refused wrongly trains."""

import json
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import init_default_scope

from ..forked_tools import tool
from ..requirements import requires
from .refusals import PROJECTS, write


@pytest.mark.e2e
@pytest.mark.parametrize('name', PROJECTS)
def test_project(name, attempt, tmp_path):
    config = write(PROJECTS[name], tmp_path)
    done = attempt(*tool('train.py', config, '--work-dir', tmp_path / 'work'), merged=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert [*(tmp_path / 'work').glob('*.pth')]


def detections(folder):
    """Six images with boxes of three classes, twice."""
    rng = np.random.default_rng(0)
    (folder / 'img').mkdir()
    boxes = [dict(category_id=c, bbox=[10 * c, 5, 20, 20], area=400, iscrowd=0) for c in (1, 2, 3)]
    for part in ('train', 'val'):
        images = [dict(id=i, file_name=f'{part}_{i}.jpg', width=80, height=64) for i in range(1, 7)]
        for image in images:
            cv2.imwrite(str(folder / 'img' / image['file_name']), rng.integers(0, 255, (64, 80, 3), np.uint8))
        annotations = [dict(box, id=3 * i + n, image_id=i) for i in range(1, 7) for n, box in enumerate(boxes)]
        categories = [dict(id=c, name=name) for c, name in enumerate('abc', 1)]
        content = dict(images=images, annotations=annotations, categories=categories)
        (folder / f'{part}.json').write_text(json.dumps(content))


def saved_again(folder):
    """The file of the metric is not that of the data set, but has the same boxes."""
    content = json.loads((folder / 'val.json').read_text())
    (folder / 'again.json').write_text(json.dumps(dict(content, info='x')))
    return 'again.json'


def mostly_negative(folder):
    """The images of a part of a data set, and the boxes of all of it."""
    content = json.loads((folder / 'train.json').read_text())
    boxes = [box for box in content['annotations'] if box['image_id'] == 1]
    boxes += [dict(box, id=100 + i, image_id=100 + i) for i, box in enumerate(content['annotations'][:9])]
    (folder / 'train.json').write_text(json.dumps(dict(content, annotations=boxes)))
    return 'val.json'


@requires('mmdet')
@pytest.mark.parametrize('change', [saved_again, mostly_negative])
def test_boxes(change, tmp_path):
    import mmdet.evaluation  # noqa: F401

    from mmattn.check.driver import find_faults

    init_default_scope('mmdet')
    detections(tmp_path)
    metric = change(tmp_path)
    load = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True), dict(type='PackDetInputs')]
    loaders = {
        f'{part}_dataloader': dict(
            batch_size=1,
            dataset=dict(
                type='CocoDataset',
                data_root=f'{tmp_path}/',
                ann_file=f'{part}.json',
                data_prefix=dict(img='img/'),
                metainfo=dict(classes=('a', 'b', 'c')),
                filter_cfg=dict(filter_empty_gt=True, min_size=1),
                test_mode=part != 'train',
                pipeline=load,
            ),
        )
        for part in ('train', 'val')
    }
    evaluator = dict(type='CocoMetric', ann_file=str(tmp_path / metric), metric='bbox')
    config = Config(dict(**loaders, val_evaluator=evaluator, default_hooks={}))
    faults = find_faults(SimpleNamespace(cfg=config), ('train_dataloader', 'val_dataloader'))
    assert not [fault for fault in faults if fault.is_error]
