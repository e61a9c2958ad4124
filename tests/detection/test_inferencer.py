"""Boxes of image files, against mmdet's own function; and what must be an error. The command line runs both tasks."""

import json
import runpy
import sys

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from PIL import Image

from ..forked_tools import tool
from ..requirements import requires
from ..tiny_detectors import PIPELINE, detector

pytestmark = requires('mmcv operators')
META = dict(classes=('red', 'white', 'plate'), palette=[[220, 60, 60], [120, 60, 220], [60, 180, 90]])
ORIENTATION, TURNED = 0x0112, 6  # to be shown a quarter turn to the right


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """Return the model, and the paths of its config and of its checkpoint. The test pipeline drops empty images."""
    folder = tmp_path_factory.mktemp('trained')
    load, resize, pack = PIPELINE
    labels = dict(type='LoadAnnotations', with_bbox=True), dict(type='FilterAnnotations', keep_empty=False)
    dataset = dict(type='CocoDataset', metainfo=META, pipeline=[load, resize, *labels, pack])
    cfg = Config(dict(default_scope='mmdet', model=detector('faster'), test_dataloader=dict(dataset=dataset)))
    init_default_scope('mmdet')
    torch.manual_seed(0)
    model = MODELS.build(cfg.model).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    torch.save(dict(meta=dict(dataset_meta=META), state_dict=model.state_dict()), folder / 'weights.pth')
    cfg.dump(folder / 'config.py')
    model.cfg, model.dataset_meta = cfg.copy(), META
    model.cfg.test_dataloader.dataset.pipeline = PIPELINE
    return model, folder / 'config.py', folder / 'weights.pth'


@pytest.fixture
def folder(tmp_path):
    """Two images, of which one is turned by its EXIF orientation."""
    path = tmp_path / 'images'
    path.mkdir()
    for name, size in (('a.png', (70, 50)), ('turned.jpg', (60, 90))):
        picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8))
        exif = picture.getexif()
        if name == 'turned.jpg':
            exif[ORIENTATION] = TURNED
        picture.save(path / name, exif=exif)
    return path


@pytest.fixture
def demo(monkeypatch, tmp_path, trained):
    """Run the command line; return the folder of the results."""

    def demo(image, *options, checkpoint=trained[2]):
        words = [image, trained[1], checkpoint, '--out-dir', tmp_path / 'out', '--device', 'cpu', *options]
        monkeypatch.setattr(sys, 'argv', [*map(str, tool('image_demo.py', *words)[1:])])
        runpy.run_path(sys.argv[0], run_name='__main__')
        return tmp_path / 'out'

    return demo


def test_the_boxes_are_those_of_mmdet_and_a_broken_image_does_not_stop_the_run(trained, folder, demo):
    from mmdet.apis import inference_detector

    (folder / 'broken.png').write_bytes((folder / 'a.png').read_bytes()[:99])
    with pytest.raises(SystemExit, match=r'1 of 3 images.*\n.*broken\.png: ') as error:
        demo(folder, '--score-threshold', '0.4')
    out = folder.parent / 'out'
    assert str(out) in str(error.value)
    for name, size in (('a.png', (50, 70)), ('turned.jpg', (60, 90))):
        found = json.loads((out / f'pred/{name[:-4]}.json').read_text())
        expected = inference_detector(trained[0], str(folder / name)).pred_instances
        kept = expected[expected.scores >= 0.4]
        assert 0 < len(kept) < len(expected)
        assert found['labels'] == kept.labels.tolist()
        assert found['classes'] == [META['classes'][label] for label in kept.labels]
        np.testing.assert_allclose(found['bboxes'], kept.bboxes.numpy(), atol=1e-3)
        np.testing.assert_allclose(found['scores'], kept.scores.numpy(), atol=1e-5)
        with Image.open(out / f'vis/{name[:-4]}.png') as picture:
            assert picture.size == size
    assert {path.name for path in out.rglob('*.*')} == {'a.json', 'a.png', 'turned.json', 'turned.png'}


@pytest.mark.parametrize(
    ('options', 'names'),
    [
        (['--score-threshold', '2'], 'score_threshold'),
        (['--opacity', '0.3', '--truth', 'masks'], '--truth, --opacity'),
    ],
)
def test_options_are_checked_before_the_model_runs(folder, demo, options, names):
    with pytest.raises(SystemExit, match=names):
        demo(folder, *options)
    assert not list(folder.parent.glob('out/**/*.*'))


@pytest.mark.parametrize(
    ('change', 'names'),
    [
        (lambda checkpoint: checkpoint['meta'].clear(), 'classes'),
        (lambda checkpoint: checkpoint['state_dict'].pop('roi_head.bbox_head.fc_cls.weight'), r'fc_cls\.weight'),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_an_error(trained, folder, demo, tmp_path, change, names):
    checkpoint = torch.load(trained[2])
    change(checkpoint)
    torch.save(checkpoint, tmp_path / 'other.pth')
    with pytest.raises(SystemExit, match=names):
        demo(folder, checkpoint=tmp_path / 'other.pth')
