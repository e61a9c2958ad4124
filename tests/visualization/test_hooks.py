"""Hooks that draw in tests and validations, without a training: which images, where to, and what is passed on."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmcv.transforms import LoadImageFromFile
from mmengine.dataset import Compose
from mmengine.registry import TRANSFORMS
from mmengine.structures import InstanceData, PixelData
from mmseg.structures import SegDataSample
from mmseg.visualization import SegLocalVisualizer
from PIL import Image
from torch import nn

from mmattn.layers import BilateralNonLocal2d
from mmattn.segmentation.load_channels import LoadChannels
from mmattn.visualization import (
    AttentionMapHook,
    PictureHook,
    attention_map_hook,
    attention_maps,
    picture_hook,
    picture_names,
)
from mmattn.visualization.figure import image_loader, read_image

from ..requirements import requires

META = dict(classes=('ground', 'roof', 'tree'), palette=[[250, 0, 0], [0, 250, 0], [0, 0, 250]])
FIT = dict(type='Resize', scale=(36, 36), keep_ratio=True)
OPERATORS = requires('mmcv operators')


@pytest.fixture
def samples(tmp_path):
    """Two images of one name, whose truth is class 1 and whose prediction is class 0 or 2."""
    made = []
    for number, folder in enumerate(('a', 'b')):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / '1.jpg'
        Image.new('RGB', (40, 30), (100, 100, 100 + number)).save(path)
        maps = {'gt_sem_seg': 1, 'pred_sem_seg': 2 * number}
        data = {key: PixelData(data=torch.full((1, 30, 40), label)) for key, label in maps.items()}
        made.append(SegDataSample(metainfo=dict(img_path=str(path)), **data))
    return made


@pytest.fixture
def runner(samples):
    visualizer = SegLocalVisualizer(alpha=1.0, name='pictures')
    visualizer.dataset_meta = META
    dataset = type('Data', (list,), dict(get_data_info=lambda self, i: dict(img_path=samples[i].img_path)))([0, 1])
    warnings = []
    return SimpleNamespace(
        visualizer=visualizer,
        test_dataloader=SimpleNamespace(dataset=dataset),
        logger=SimpleNamespace(warning=warnings.append),
        warnings=warnings,
    )


def colours(picture, left, right):
    """The colours of the palette that occur between two columns."""
    part = picture[:, left:right].reshape(-1, 3).astype(int)
    return [label for label, colour in enumerate(META['palette']) if (abs(part - colour).sum(1) < 9).mean() > 0.3]


@pytest.mark.parametrize('legend', [False, True])
def test_truth_is_on_the_left_and_the_prediction_on_the_right(tmp_path, samples, runner, legend):
    options = dict(legend=True) if legend else {}  # none by default
    hook = PictureHook(str(tmp_path / 'out'), with_labels=False, **options)
    hook.before_test(runner)
    hook.after_test_iter(runner, 0, {}, samples)
    assert runner.warnings == []
    files = sorted(path.relative_to(tmp_path / 'out').as_posix() for path in (tmp_path / 'out').rglob('*.*'))
    assert files == ['a/1.png', 'b/1.png']
    for file, label in zip(files, (0, 2)):
        picture = np.array(Image.open(tmp_path / 'out' / file).convert('RGB'))
        assert picture.shape[1] >= 80
        assert (colours(picture[:30], 0, 40), colours(picture[:30], 40, 80)) == ([1], [label])
        below = {tuple(pixel) for pixel in picture[31:].reshape(-1, 3).tolist()}
        shown = [i for i, colour in enumerate(META['palette']) if tuple(colour) in below]
        assert shown == (sorted([1, label]) if legend else [])


def test_a_picture_may_have_the_prediction_alone(tmp_path, samples, runner):
    """The legend then has its classes. Options of the visualizer are passed on."""
    hook = PictureHook(tmp_path / 'out', legend=True, draw_gt=False, with_labels=False)
    hook.before_test(runner)
    del samples[1].gt_sem_seg
    hook.after_test_iter(runner, 0, {}, samples[1:])
    picture = np.array(Image.open(tmp_path / 'out/b/1.png').convert('RGB'))
    assert colours(picture[:30], 0, 40) == [2]
    assert not (picture == META['palette'][1]).all(-1).any()
    assert not (tmp_path / 'out/a').exists()


@pytest.mark.parametrize('first', [True, False])
def test_of_several_processes_the_first_draws_and_says_what_is_left_out(tmp_path, samples, runner, monkeypatch, first):
    monkeypatch.setattr(picture_hook, 'get_world_size', lambda: 2)
    monkeypatch.setattr(picture_hook, 'is_main_process', lambda: first)
    hook = PictureHook(tmp_path / 'out', with_labels=False)
    hook.before_test(runner)
    (said,) = runner.warnings
    assert '1 of 2' in said
    hook.after_test_iter(runner, 0, {}, samples[:1])
    assert (tmp_path / 'out/a/1.png').is_file() == first


@requires('mmcv operators')
@pytest.mark.parametrize('palette', [[[250, 0, 0]], [[250, 0, 0], [0, 250, 0], [0, 0, 250]]])
def test_objects_of_classes_beyond_the_palette_are_drawn(tmp_path, samples, runner, palette):
    """mmdet would raise an IndexError, and for colours that are lists an AssertionError."""
    from mmdet.structures import DetDataSample
    from mmdet.visualization import DetLocalVisualizer

    runner.visualizer = DetLocalVisualizer(name='objects')
    runner.visualizer.dataset_meta = dict(META, palette=palette)
    boxes = InstanceData(bboxes=torch.tensor([[5.0, 5, 30, 25]]), labels=torch.tensor([2]), scores=torch.ones(1))
    sample = DetDataSample(metainfo=dict(img_path=samples[0].img_path), pred_instances=boxes)
    hook = PictureHook(tmp_path / 'out', pred_score_thr=0.3, draw_gt=False)
    hook.before_test(runner)
    hook.after_test_iter(runner, 0, {}, [sample])
    picture = np.array(Image.open(tmp_path / 'out/a/1.png').convert('RGB'))
    assert picture.std((0, 1)).max() > 5
    if len(palette) == 3:
        assert picture[15, 5].argmax() == 2


class Model(nn.Module):
    """Two layers of attention, of which the second runs twice."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (BilateralNonLocal2d(8, window_size=3) for _ in range(2))
        self.seen = []

    def data_preprocessor(self, data, training):
        return data

    def forward(self, inputs, **_):
        self.seen.append(len(inputs))
        return self.second(self.second(self.first(inputs)))

    def test_step(self, data):
        return self(**data)

    predict = val_step = test_step


@pytest.fixture
def drawn(monkeypatch):
    """What a hook has drawn: the points, the map, and the threshold of each picture."""
    calls = []
    monkeypatch.setattr(
        attention_map_hook,
        'draw_attention_maps',
        lambda image, points, maps, threshold: calls.append((points, maps, threshold)) or image,
    )
    return calls


@pytest.mark.parametrize(
    ('options', 'batches'),
    [({}, [0, 2, 4]), (dict(interval=2), [0, 4]), (dict(num_images=2), [0, 1, 2, 3, 4, 5])],
)
def test_the_first_image_of_the_first_batches_of_some_validations(tmp_path, samples, drawn, options, batches):
    """Of three validations of two batches; by default with one query in the centre."""
    model, added = Model().eval(), []
    hook = AttentionMapHook(layer='second', **options)
    visualizer = SimpleNamespace(add_image=lambda name, picture, step: added.append((name, picture.shape, step)))
    runner = SimpleNamespace(model=model, visualizer=visualizer, val_dataloader=SimpleNamespace(dataset=None))
    hook.before_run(runner)
    for validation in range(3):
        runner.iter = 10 * validation
        for batch in range(2):
            sample = SimpleNamespace(img_shape=(5, 6, 3))  # some loaders write the channels, too
            data = dict(inputs=torch.randn(2, 8, 5, 6), data_samples=[sample, sample])
            hook.after_val_iter(runner, batch, data, [samples[0], SimpleNamespace(img_path='not read')])
        hook.after_val(runner)
    assert added == [('attention_maps_1', (30, 40, 3), 10 * (number // 2)) for number in batches]
    assert model.seen == [1] * len(batches)
    for points, maps, threshold in drawn:
        assert (tuple(points), threshold) == (((0.5, 0.5),), 0.02)
        assert (maps.layer, maps.run) == ('second', 2)


def test_processes_that_are_not_the_first_run_the_model_and_draw_nothing(samples, drawn, monkeypatch):
    """Its weights may be sharded."""
    monkeypatch.setattr(attention_map_hook, 'is_main_process', lambda: False)
    model = Model().eval()
    data = dict(inputs=torch.randn(2, 8, 5, 6), data_samples=[SimpleNamespace(img_shape=(5, 6))] * 2)
    AttentionMapHook().after_val_iter(SimpleNamespace(model=model), 0, data, samples)
    assert (model.seen, drawn) == ([1], [])


@pytest.mark.parametrize('point', [(1, 0.5), (0.5, 1.0), (-0.1, 0.5), (0.5, -0.1)])
def test_points_are_within_the_image(point):
    AttentionMapHook(points=[(0, 0), (0.99, 0.99)])
    with pytest.raises(ValueError, match='points'):
        AttentionMapHook(points=[(0.5, 0.5), point])


def test_a_model_whose_layers_do_not_run_is_named():
    model = Model().eval()
    model.forward = lambda **_: None
    data = dict(inputs=torch.randn(1, 8, 5, 6), data_samples=[SimpleNamespace(img_shape=(5, 6))])
    with pytest.raises(ValueError, match=r'Model .*first, second'):
        attention_maps(model, data, [(0.5, 0.5)])


@pytest.mark.parametrize('colours', ['color', 'color_ignore_orientation', 'unchanged'])
def test_pictures_are_turned_as_the_network_saw_them(tmp_path, runner, monkeypatch, colours):
    """By both hooks, also in a wrapper of data sets. A quarter turn to the right by EXIF brings the red side up."""
    pixels = np.full((30, 40, 3), 100, np.uint8)
    pixels[:, :20] = 250, 0, 0
    exif = Image.Exif()
    exif[0x0112] = 6
    path = str(tmp_path / 'a.jpg')
    Image.fromarray(pixels).save(path, exif=exif, quality=100, subsampling=0)
    expected = np.rot90(pixels, -1) if colours == 'color' else pixels
    pipeline = Compose([LoadImageFromFile(color_type=colours)])
    dataset = SimpleNamespace(pipeline=pipeline, get_data_info=lambda i: dict(img_path=path))
    seen = pipeline(dict(img_path=path))['img'][..., ::-1]
    assert abs(seen.astype(int) - expected).max() < 9

    labels = PixelData(data=torch.zeros((1, *expected.shape[:2]), dtype=int))
    sample = SegDataSample(metainfo=dict(img_path=path), pred_sem_seg=labels)
    drawn = []
    runner.visualizer.add_datasample = lambda name, image, *_, **__: drawn.append(image)
    runner.test_dataloader.dataset = SimpleNamespace(datasets=[dataset])
    hook = PictureHook(tmp_path / 'out')
    hook.names = {path: 'a.png'}
    monkeypatch.setattr(picture_hook, 'atomic_write', nullcontext)
    hook.after_test_iter(runner, 0, {}, [sample])

    monkeypatch.setattr(attention_map_hook, 'draw_attention_maps', lambda image, *_: image)
    runner.visualizer.add_image = lambda name, image, step: drawn.append(image)
    runner.model, runner.iter, runner.val_dataloader = Model().eval(), 0, runner.test_dataloader
    data = dict(inputs=torch.randn(1, 8, 5, 6), data_samples=[SimpleNamespace(img_shape=(5, 6))])
    AttentionMapHook().after_val_iter(runner, 0, data, [sample])
    assert len(drawn) == 2
    for image in drawn:
        np.testing.assert_array_equal(image, seen)


def test_a_loader_of_all_channels_and_one_of_the_users_own(tmp_path):
    """The latter may require more than the path: the image is then read without it."""
    pixels = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
    exif = Image.Exif()
    exif[0x0112] = 3
    path = str(tmp_path / 'a.png')
    Image.fromarray(pixels).save(path, exif=exif)

    class Pairs(LoadImageFromFile):
        def transform(self, results):
            return dict(img=results['first'] - results['second'])

    loader = LoadChannels(3)
    assert image_loader(Compose([loader])) is loader
    np.testing.assert_array_equal(read_image(path, loader=loader), pixels)
    assert image_loader(Compose([Pairs()])) is None
    np.testing.assert_array_equal(read_image(path, loader=None), pixels[::-1, ::-1])


@pytest.mark.parametrize(
    ('kind', 'steps', 'size'),
    [
        ('mmseg', [], (48, 24)),
        ('mmseg', [dict(type='Pad', size=(64, 72))], (48, 24)),
        ('mmseg', [FIT, dict(type='Pad', size_divisor=32)], (36, 18)),
        ('mmseg', [dict(type='mmseg.ResizeToMultiple', size_divisor=32)], (64, 32)),
        pytest.param('mmdet', [], (48, 24), marks=OPERATORS),
        pytest.param('mmdet', [FIT, dict(type='Pad', size_divisor=32)], (36, 18), marks=OPERATORS),
        pytest.param(
            'mmdet',
            [dict(type='Resize', scale=(72, 36)), dict(type='CenterCrop', crop_size=16)],
            (16, 16),
            marks=OPERATORS,
        ),
    ],
)
def test_padding_by_the_pipeline_is_not_the_image(kind, steps, size):
    """An image of 48×24 pixels."""
    if kind == 'mmdet':
        from mmdet.structures import DetDataSample as Sample
    else:
        Sample = SegDataSample
    image = np.zeros((48, 24, 3), np.uint8)
    results = dict(img=image, img_shape=(48, 24), ori_shape=(48, 24))
    with TRANSFORMS.switch_scope_and_registry('mmcv'):
        results = Compose([TRANSFORMS.build(step) for step in steps])(results)
    height, width = results['img'].shape[:2]
    keys = 'img_shape', 'ori_shape', 'scale_factor', *(['pad_shape'] if kind == 'mmseg' else [])
    sample = Sample(metainfo={key: results[key] for key in keys if key in results})
    data = dict(inputs=torch.randn(1, 8, height, width), data_samples=[sample])
    maps = attention_maps(Model().eval(), data, [(0, 0)])
    assert maps[-1].extent == (width / size[1], height / size[0])


def test_what_is_no_image_is_named(tmp_path):
    (tmp_path / 'a.png').write_bytes(b'text')
    with pytest.raises(ValueError, match=r'a\.png'):
        read_image(str(tmp_path / 'a.png'))
    Image.new('RGB', (2, 1), (250, 9, 3)).save(tmp_path / 'a.png')
    assert read_image(str(tmp_path / 'a.png')).tolist() == [[[250, 9, 3]] * 2]
    Image.fromarray(np.array([[0, 60000]], np.uint16)).save(tmp_path / 'deep.png')
    assert read_image(str(tmp_path / 'deep.png')).tolist() == [[[0] * 3, [255] * 3]]


@pytest.mark.parametrize(
    ('paths', 'names'),
    [
        ([], []),
        (['val/a.jpg'], ['a.png']),
        (['val/a.jpg', 'val/b.png', 'val/a.jpg'], ['a.png', 'b.png', 'a.png']),
        (['/d/val/bonn/bonn_1.png', '/d/val/ulm/ulm_1.png'], ['bonn_1.png', 'ulm_1.png']),
        (['/d/val/bonn/1.png', '/d/val/ulm/1.png', '/d/val/2.png'], ['bonn/1.png', 'ulm/1.png', '2.png']),
        (['a/1.png', 'b/1.png'], ['a/1.png', 'b/1.png']),
        ([str(Path('a/1.png').absolute()), 'b/1.png', 'b/2.png'], ['a/1.png', 'b/1.png', 'b/2.png']),
        (['val/a.jpg', 'val/a.png', 'val/b.png'], ['a.jpg.png', 'a.png.png', 'b.png.png']),
    ],
)
def test_names_are_as_short_as_all_can_differ(paths, names):
    assert [picture_names(paths)[path] for path in paths] == names
