"""Index maps and overlays of files of every kind, against the model run by hand; and what must be an error."""

import math
import re
import runpy
import sys

import numpy as np
import pytest
import torch
from mmengine.registry import MODELS
from mmseg.apis import inference_model
from mmseg.structures import SegDataSample
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode

from mmattn.segmentation import face_parsing
from mmattn.segmentation import inferencer as inferencer_module
from mmattn.segmentation.inferencer import SegmentationInferencer
from mmattn.segmentation.tiles import join_tiles, resize_rows, segment_in_tiles

from ..forked_tools import tool
from ..tiny_segmentors import CLASSES, MEAN, PALETTE, STD, argmax, blocks, config, random_model, shown, write_images

FIT = dict(type='Resize', scale=(56, 40), keep_ratio=True)


@pytest.fixture(scope='module')
def model():
    return random_model()


@pytest.fixture
def save(model, tmp_path):
    """Save a checkpoint; return its path."""

    def save(weights=None, **meta):
        path = tmp_path / 'checkpoint.pth'
        torch.save(dict(meta=meta, state_dict=weights or model.state_dict()), path)
        return str(path)

    return save


@pytest.fixture
def checkpoint(save):
    return save(dataset_meta=dict(classes=CLASSES, palette=PALETTE, label_map=None))


@pytest.fixture
def inferencer(checkpoint):
    return SegmentationInferencer(config(), checkpoint, device='cpu', show_progress=False)


def test_the_model_segments_arrays_by_inference_model_of_mmseg(checkpoint, tmp_path):
    cfg = config()
    cfg.test_pipeline = cfg.test_dataloader.dataset.pipeline
    inferencer = SegmentationInferencer(cfg, checkpoint, device='cpu', show_progress=False)
    pixels = blocks(40, 56)
    Image.fromarray(pixels).save(tmp_path / 'a.png')
    (path,) = inferencer(tmp_path / 'a.png', tmp_path / 'out')
    labels = inference_model(inferencer.model, pixels[..., ::-1].copy()).pred_sem_seg.data[0].numpy()
    assert (labels == np.array(Image.open(path))).all()
    assert len(np.unique(labels)) > 1


@pytest.fixture
def folder(tmp_path):
    return write_images(tmp_path)


def with_logits(channels):
    """The config of a model of that many logits. One logit tells two classes apart."""
    cfg = config()
    loss = dict(type='CrossEntropyLoss', use_sigmoid=channels == 1)
    cfg.model.decode_head.update(num_classes=max(2, channels), out_channels=channels, loss_decode=loss, threshold=0.4)
    return cfg


def as_tiles(cfg, tile, stride=None):
    """The config with mmseg's own sliding windows."""
    cfg.model.test_cfg = dict(mode='slide', crop_size=(tile, tile), stride=(stride or tile * 2 // 3,) * 2)
    return cfg


def resized(cfg, **options):
    cfg.test_dataloader.dataset.pipeline.insert(1, dict(type='Resize', **options))
    return cfg


@pytest.mark.parametrize('channels', [1, 4])
@pytest.mark.parametrize(
    ('size', 'tile', 'stride', 'batch_size', 'resize'),
    [
        ((40, 56), 16, 10, 1, None),
        ((33, 47), 16, None, 3, dict(scale_factor=1.0)),
        ((50, 21), 24, 24, 2, dict(scale=(41, 99), keep_ratio=True)),
        ((24, 61), 64, 1, 1, dict(scale=(40, 17), keep_ratio=False)),
        ((9, 30), 12, 5, 1, dict(scale_factor=2.5)),
        ((47, 60), 9, 5, 2, dict(scale=(33, 26))),
    ],
)
@pytest.mark.parametrize('align_corners', [False, True])
def test_tiles_are_the_sliding_windows_of_mmseg(
    model, save, tmp_path, channels, size, tile, stride, batch_size, resize, align_corners, monkeypatch
):
    """Of the image as the test pipeline resizes it; labels have the size of the file."""
    weights = {key: value[:channels] if 'conv_seg' in key else value for key, value in model.state_dict().items()}
    classes = max(2, channels)
    checkpoint = save(weights, dataset_meta=dict(classes=CLASSES[:classes], palette=PALETTE[:classes]))
    Image.fromarray(blocks(*size)).save(tmp_path / 'image.png')
    cfg = as_tiles(with_logits(channels), tile, stride)
    cfg.model.decode_head.align_corners = align_corners
    if resize:
        resized(cfg, **resize)
    results = []
    for kind in ('mmattn.TiledEncoderDecoder', 'EncoderDecoder', 'EncoderDecoder'):
        cfg.model.type = kind
        inferencer = SegmentationInferencer(cfg, checkpoint, device='cpu', show_progress=False)
        (pred,) = inferencer(tmp_path / 'image.png', tmp_path / 'out', batch_size, probabilities=True)
        results.append(dict(labels=np.array(Image.open(pred)), prob=np.load(tmp_path / 'out/prob/image.npy')))
        if kind == 'EncoderDecoder':
            monkeypatch.setattr(SegmentationInferencer, '_windows', lambda self: None)  # by mmseg itself
    tiled, found, expected = results
    assert all((tiled[name] == found[name]).all() for name in found)
    assert (found['labels'] != expected['labels']).mean() < 0.002  # where two classes are as likely
    assert found['prob'].dtype == np.float16
    assert found['prob'].shape == (classes, *size)
    np.testing.assert_allclose(found['prob'], expected['prob'], atol=1e-3)
    np.testing.assert_allclose(found['prob'].astype(np.float32).sum(0), 1, atol=2e-3)
    if channels > 1:
        np.testing.assert_array_equal(
            found['prob'].max(0), np.take_along_axis(found['prob'], found['labels'][None], 0)[0]
        )
    else:
        np.testing.assert_array_equal(found['prob'][1] > 0.4, found['labels'])


@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize(
    ('size', 'shape', 'heights'),
    [((7, 5), (20, 3), [3, 1, 3]), ((20, 4), (7, 9), [1] * 20), ((1, 1), (5, 4), [1]), ((6, 6), (1, 1), [4, 2])],
)
def test_rows_are_resized_as_the_whole_map(size, shape, heights, align_corners):
    scores = torch.randn(2, *size)
    parts = [*resize_rows(scores.split(heights, 1), size, shape, align_corners, 3)]
    assert max(part.shape[1] for part in parts) <= 3
    expected = torch.nn.functional.interpolate(scores[None], shape, mode='bilinear', align_corners=align_corners)[0]
    torch.testing.assert_close(torch.cat(parts, 1), expected)


def test_a_row_of_tiles_is_as_high_as_a_tile(model):
    image, sample = torch.zeros(3, 100, 30, dtype=torch.uint8), SegDataSample(metainfo=dict(ori_shape=(100, 30)))
    heights = [rows.shape[1] for rows in segment_in_tiles(model, image, sample, 16, 7)]
    assert max(heights) <= 16
    assert sum(heights) == 100


class LargestMap(TorchDispatchMode):
    """The most floats of one result: no map of all classes is held."""

    def __init__(self):
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point():
            self.most = max(self.most, result.numel())
        return result


@pytest.mark.parametrize(('classes', 'channels'), [(4, 4), (2, 1)])
def test_the_tiled_segmentor_has_the_labels_of_a_sliding_window_without_its_maps(model, classes, channels):
    windows = dict(mode='slide', crop_size=(24, 16), stride=(17, 12))
    cfg = config().model
    cfg.decode_head.update(num_classes=classes, out_channels=channels, threshold=0.4)
    cfg.test_cfg = windows
    torch.manual_seed(0)
    stock, tiled = (MODELS.build(dict(cfg, type=kind)).eval() for kind in (cfg.type, 'mmattn.TiledEncoderDecoder'))
    for weight in stock.parameters():
        torch.nn.init.normal_(weight)
    stock.decode_head.conv_seg.weight.data.mul_(1e-3)  # probabilities that are no zeros and ones
    tiled.load_state_dict(stock.state_dict())
    image = torch.from_numpy(blocks(100, 45)).permute(2, 0, 1)[None]
    with torch.no_grad():
        inputs = stock.data_preprocessor(dict(inputs=image))['inputs']
        logits = stock.slide_inference(inputs, [dict(ori_shape=(100, 45))])
    stock.decode_head.threshold = tiled.decode_head.threshold = logits.sigmoid().median()
    for shape in ((100, 45), (67, 90)):
        results = []
        for segmentor in (stock, tiled):
            samples = [SegDataSample(metainfo=dict(ori_shape=shape, img_shape=(100, 45)))]
            data = segmentor.data_preprocessor(dict(inputs=image, data_samples=samples))
            with torch.no_grad(), LargestMap() as largest:
                results.append((*segmentor.predict(data['inputs'], data['data_samples']), largest.most))
        (expected, most), (found, less) = results
        assert (found.pred_sem_seg.data == expected.pred_sem_seg.data).all()
        assert found.pred_sem_seg.data.unique().numel() > 1
        assert most >= channels * math.prod(shape)
        assert less < 0.6 * most or channels == 1  # of one channel, features of a window are larger
    flipped = [SegDataSample(metainfo=dict(ori_shape=(100, 45), img_shape=(100, 45), flip=False))]
    with torch.no_grad():
        (kept,) = tiled.predict(inputs, flipped)
    assert torch.equal(kept.seg_logits.data, logits[0] if channels > 1 else logits[0].sigmoid())


def test_a_pipeline_that_pads_leaves_the_windows_of_the_config_to_the_model(checkpoint, tmp_path):
    images = [tmp_path / 'a.png', tmp_path / 'b.png']
    for seed, path in enumerate(images):
        Image.fromarray(blocks(70, 90, seed=seed)).save(path)
    cfg = config()
    cfg.model.test_cfg = dict(mode='slide', crop_size=(32, 24), stride=(21, 16))
    cfg.test_dataloader.dataset.pipeline.insert(1, dict(type='Pad', size_divisor=32))
    inferencer = SegmentationInferencer(cfg, checkpoint, 'cpu', show_progress=False)
    for image, path in zip(images, inferencer(images, tmp_path / 'out'), strict=True):
        [expected] = inferencer._segment([inferencer.pipeline(dict(img_path=str(image)))])
        [(labels, _)] = expected.rows
        assert (np.array(Image.open(path)) == labels.numpy()).all()
        assert labels.unique().numel() > 1


@pytest.mark.parametrize(
    ('steps', 'warns'),
    [
        ([FIT], False),
        ([FIT, dict(type='Pad', size=(56, 56))], True),
        ([FIT, dict(type='Pad', size=(56, 40))], False),  # no padding
        ([dict(type='Pad', size=(64, 64))], True),
        ([FIT, dict(type='ResizeToMultiple', size_divisor=16)], False),
    ],
)
def test_labels_that_padding_displaces(checkpoint, tmp_path, monkeypatch, steps, warns):
    """Of images of 60×84, which FIT makes 40×56: one warning for all."""
    logged = []
    monkeypatch.setattr(inferencer_module, 'print_log', lambda message, *_: logged.append(message))
    for name in ('a', 'b'):
        Image.fromarray(blocks(60, 84)).save(tmp_path / f'{name}.png')
    cfg = config()
    cfg.test_dataloader.dataset.pipeline[1:1] = steps
    inferencer = SegmentationInferencer(cfg, checkpoint, 'cpu', show_progress=False)
    written = inferencer([tmp_path / 'a.png', tmp_path / 'b.png'], tmp_path / 'out')
    assert [Image.open(path).size for path in written] == [(84, 60)] * 2
    assert [bool(re.search(r'a\.png: .*displaced', message)) for message in logged] == [True] * warns


def test_padding_in_a_tiled_model_is_named(checkpoint, tmp_path):
    Image.fromarray(blocks(70, 90)).save(tmp_path / 'a.png')
    cfg = config()
    cfg.model.update(
        type='mmattn.TiledEncoderDecoder', test_cfg=dict(mode='slide', crop_size=(32, 24), stride=(21, 16))
    )
    cfg.test_dataloader.dataset.pipeline.insert(1, dict(type='Pad', size_divisor=32))
    inferencer = SegmentationInferencer(cfg, checkpoint, 'cpu', show_progress=False)
    with pytest.raises(ValueError, match='96×96 of 90×70'):
        inferencer(tmp_path / 'a.png', tmp_path / 'out')


def test_windows_with_gaps_are_an_error(model):
    with pytest.raises(ValueError, match=r'stride.*\(4, 4\).*\(4, 6\)'):
        next(join_tiles(None, torch.zeros(3, 20, 20), 1, torch.device('cpu'), (4, 4), (4, 6)))


def test_an_image_whose_orientation_is_ignored_keeps_its_pixels(checkpoint, folder, tmp_path):
    cfg = config()
    cfg.test_dataloader.dataset.pipeline[0].color_type = 'color_ignore_orientation'
    inferencer = SegmentationInferencer(cfg, checkpoint, device='cpu', show_progress=False)
    (pred,) = inferencer(folder / 'turned.jpg', tmp_path)
    assert Image.open(pred).size == Image.open(tmp_path / 'vis/turned.png').size == (61, 24)


def test_neighbours_of_the_same_size_go_together_and_nothing_is_kept(inferencer, folder, tmp_path, monkeypatch):
    """Each result is written before the next batch goes through the model."""
    batches, forward = [], inferencer.forward

    def counting(batch):
        batches.append((len(batch['inputs']), len(list(tmp_path.glob('out/pred/*')))))
        return forward(batch)

    monkeypatch.setattr(inferencer, 'forward', counting)
    names = ['even.png', 'even, too.png', 'odd.ppm', 'gray.png']
    inferencer([folder / name for name in names], tmp_path / 'out', 2)
    assert batches == [(2, 0), (1, 2), (1, 3)]


@pytest.mark.parametrize(('batch_size', 'windows'), [(1, None), (3, None), (2, ((64, 64), (42, 42)))])
def test_an_image_on_which_the_model_fails(inferencer, folder, tmp_path, monkeypatch, batch_size, windows):
    """The images of its batch go through the model one by one, and those after one that cannot be read."""
    pixels = torch.from_numpy(shown(folder / 'even.png')).float()
    bad = ((pixels - torch.tensor(MEAN)) / torch.tensor(STD)).permute(2, 0, 1)
    (folder / 'f.png').write_text('no image')

    def fail(backbone, inputs):
        if any(image.shape == bad.shape and image.allclose(bad) for image in inputs[0]):
            raise RuntimeError('Expected more\nthan 1 value')

    inferencer.model.backbone.register_forward_pre_hook(fail)
    monkeypatch.setattr(inferencer, '_windows', lambda: windows)
    fault = r'/even\.png: .*56×40 .*Expected more than 1 value\n  .*/f\.png: '
    with pytest.raises(ValueError, match=rf'2 of 9 images .*\n  .*{fault}'):
        inferencer(folder, tmp_path / 'out', batch_size)
    good = {path.stem for path in folder.glob('*.*')} - {'even', 'f', '.hidden'}
    assert len(good) == 7
    assert {path.stem for path in (tmp_path / 'out/pred').iterdir()} == good
    assert {path.stem for path in (tmp_path / 'out/vis').iterdir()} == good
    with Image.open(folder / 'odd.ppm') as image, Image.open(tmp_path / 'out/pred/odd.png') as labels:
        np.testing.assert_array_equal(labels, argmax(inferencer.model, np.array(image)))


def test_kinds_of_pixels(inferencer, folder, tmp_path):
    """What OpenCV converts is segmented as the picture that a viewer shows."""
    grey = blocks(40, 56, 1)
    for path in folder.glob('*.*'):
        path.unlink()
    Image.fromarray(grey).save(folder / 'grey.png')
    Image.fromarray(grey.astype(np.uint16) * 257).save(folder / 'deep.png')
    palette = Image.fromarray(grey)
    palette = palette.convert('P')
    palette.putpalette([i for i in range(256) for _ in range(3)])
    palette.save(folder / 'palette.PNG', transparency=3)
    Image.merge('LA', [Image.fromarray(grey), Image.fromarray(grey // 2)]).save(folder / 'alpha.png')
    black = Image.fromarray(255 - grey)
    Image.merge('CMYK', [Image.new('L', (56, 40))] * 3 + [black]).save(folder / 'ink.TIF')
    Image.fromarray(grey).save(folder / 'lossless.webp', lossless=True)
    Image.fromarray(grey).save(folder / 'map.tif', tiffinfo={42113: '300'})  # GDAL's number of pixels without data
    Image.fromarray(grey).save(folder / 'part.tif', tiffinfo={42113: str(grey[5, 7])})
    found = {path.stem: np.array(Image.open(path)) for path in inferencer(folder, tmp_path / 'out')}
    assert set(found) == {'grey', 'deep', 'palette', 'alpha', 'ink', 'lossless', 'map', 'part'}
    part = found.pop('part')
    np.testing.assert_array_equal(part, np.where(grey == grey[5, 7], 255, found['grey']))
    for labels in found.values():
        np.testing.assert_array_equal(labels, found['grey'])


def test_one_class_has_no_colour_for_the_rest(save, model):
    weights = {key: value[:1] if 'conv_seg' in key else value for key, value in model.state_dict().items()}
    one = config()
    one.model.decode_head.num_classes = 1
    path = save(weights, dataset_meta=dict(classes=['face'], palette=[[9, 9, 9]]))
    with pytest.raises(ValueError, match='num_classes=2 and out_channels=1'):
        SegmentationInferencer(one, path, device='cpu')


@pytest.mark.parametrize('count', [256, 257])
def test_an_index_map_has_256_classes(save, tmp_path, count):
    cfg = config()
    cfg.model.decode_head.num_classes = count
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.decode_head.conv_seg.bias.data[count - 1] = 1e6
    meta = dict(classes=[*map(str, range(count))], palette=[[i % 256, 0, 0] for i in range(count)])
    path = save(model.state_dict(), dataset_meta=meta)
    if count > 256:
        with pytest.raises(ValueError, match=r'256 .*257'):
            SegmentationInferencer(cfg, path, device='cpu')
        return
    Image.fromarray(blocks(9, 8)).save(tmp_path / 'a.png')
    (pred,) = SegmentationInferencer(cfg, path, device='cpu', show_progress=False)(tmp_path / 'a.png', tmp_path / 'out')
    with Image.open(pred) as labels:
        assert (np.array(labels) == 255).all()


def test_classes_and_palette_may_be_the_data_sets(save):
    cfg = config()
    cfg.test_dataloader.dataset.metainfo = dict(classes=CLASSES[::-1], palette=PALETTE[::-1])
    inferencer = SegmentationInferencer(cfg, save(), device='cpu')
    assert list(inferencer.model.dataset_meta['classes']) == list(CLASSES[::-1])
    assert inferencer.visualizer.dataset_meta['palette'] == PALETTE[::-1]


@pytest.fixture
def demo(monkeypatch, tmp_path, checkpoint):
    """Run the command line on an image or a folder; return the folder of the results."""
    config().dump(tmp_path / 'config.py')

    def demo(image, *options):
        words = [image, tmp_path / 'config.py', checkpoint, '--out-dir', tmp_path / 'out', *options]
        monkeypatch.setattr(sys, 'argv', [*map(str, tool('image_demo.py', *words)[1:])])
        runpy.run_path(sys.argv[0], run_name='__main__')
        return tmp_path / 'out'

    return demo


def test_the_command_line(demo, model, folder, capsys):
    """What is wrong is said without a traceback."""
    out = demo(folder, '--device', 'cpu', '--opacity', '1', '--batch-size', '2')
    assert '8 index maps and overlays are in' in capsys.readouterr().out
    labels = np.array(Image.open(out / 'pred/even.png'))
    np.testing.assert_array_equal(labels, argmax(model, shown(folder / 'even.png')))
    np.testing.assert_array_equal(np.array(Image.open(out / 'vis/even.png')), np.array(PALETTE)[labels])
    (folder / 'notes.png').write_text('no image')
    with pytest.raises(SystemExit, match=r'1 of 9 images .*:\n  .*notes\.png: '):
        demo(folder)
    with pytest.raises(SystemExit, match='gpu'):
        demo(folder, '--device', 'gpu')


def test_the_name_in_face_parsing_is_the_same_class():
    assert face_parsing.FaceParsingInferencer is SegmentationInferencer
