"""Index maps and overlays of files of every kind, against the model run by hand; and what must be an error."""

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from PIL import Image, ImageOps

from mmattn.segmentation import face_parsing
from mmattn.segmentation import inferencer as module
from mmattn.segmentation.inferencer import SegmentationInferencer
from mmattn.utils import trained_model
from mmattn.utils.paths import config_path

from ..full_disk import full_disk

ROOT = Path(__file__).parents[2]
CLASSES, PALETTE = ('skin', 'hair', 'nose', 'brows'), [[10, 20, 30], [250, 0, 0], [0, 250, 5], [7, 0, 250]]
MEAN, STD = [120.0, 110.0, 100.0], [60.0, 55.0, 50.0]
ORIENTATION = 0x0112
TURNED_LEFT = 6  # to be shown a quarter turn to the right


def config(**options):
    return Config(
        dict(
            model=dict(
                type='EncoderDecoder',
                data_preprocessor=dict(type='SegDataPreProcessor', mean=MEAN, std=STD, bgr_to_rgb=True),
                backbone=dict(
                    type='ResNet',
                    depth=18,
                    base_channels=4,
                    out_indices=(0,),
                    num_stages=1,
                    strides=(1,),
                    dilations=(1,),
                    norm_cfg=dict(type='SyncBN'),
                ),
                decode_head=dict(
                    type='FCNHead',
                    num_convs=1,
                    concat_input=False,
                    in_channels=4,
                    in_index=0,
                    channels=8,
                    num_classes=len(CLASSES),
                    norm_cfg=dict(type='SyncBN'),
                ),
                test_cfg=dict(mode='whole'),
            ),
            test_dataloader=dict(
                dataset=dict(
                    type='BaseSegDataset',
                    pipeline=[dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'), dict(type='PackSegInputs')],
                )
            ),
            **options,
        )
    )


@pytest.fixture(scope='module')
def model():
    """The model by itself, which tells classes apart, and as it was saved."""
    init_default_scope('mmseg')
    torch.manual_seed(0)
    model = MODELS.build(config().model).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    return model


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


def blocks(height, width, channels=3, seed=0):
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (-(-height // 8), -(-width // 8), channels), np.uint8)
    return coarse.repeat(8, 0).repeat(8, 1)[:height, :width].squeeze()


@pytest.fixture
def folder(tmp_path):
    """Images of different sizes and kinds."""
    path = tmp_path / 'images'
    path.mkdir()
    Image.fromarray(blocks(40, 56)).save(path / 'even.png')
    Image.fromarray(blocks(33, 47)).save(path / 'odd.ppm')
    Image.fromarray(blocks(40, 56, seed=2)).save(path / 'even, too.png')
    Image.fromarray(blocks(1, 9)).save(path / 'thin.bmp')
    Image.fromarray(blocks(1, 1)[None, None]).save(path / 'tiny.PNG')
    Image.fromarray(blocks(31, 64, 1)).save(path / 'gray.png')
    Image.fromarray(blocks(50, 21, 4)).save(path / 'rgba.png')
    turned = Image.fromarray(blocks(24, 61))
    exif = turned.getexif()
    exif[ORIENTATION] = TURNED_LEFT
    turned.save(path / 'turned.jpg', quality=95, subsampling=0, exif=exif)
    (path / '.hidden').write_text('no image')
    (path / 'deeper').mkdir()
    return path


def shown(path):
    """The image as a viewer shows it: uint8 ``(H, W, 3)``, RGB, without its alpha."""
    return np.array(ImageOps.exif_transpose(Image.open(path)).convert('RGB'))


@torch.no_grad()
def argmax(model, image):
    x = (torch.from_numpy(image).float() - torch.tensor(MEAN)) / torch.tensor(STD)
    logits = model.decode_head(model.backbone(x.permute(2, 0, 1)[None]))
    return torch.nn.functional.interpolate(logits, image.shape[:2], mode='bilinear')[0].argmax(0).numpy()


@pytest.mark.parametrize('batch_size', [1, 3])
def test_every_file_has_its_index_map_and_overlay(model, inferencer, folder, tmp_path, batch_size):
    out = tmp_path / 'deep/out'
    paths = sorted(path for path in folder.iterdir() if path.is_file() and path.name != '.hidden')
    assert inferencer(str(folder), out, batch_size, opacity=0.25) == [out / f'pred/{path.stem}.png' for path in paths]
    assert sorted(str(path.relative_to(out)) for path in out.rglob('*')) == sorted(
        ['pred', 'vis', *(f'pred/{path.stem}.png' for path in paths), *(f'vis/{path.stem}.png' for path in paths)]
    )
    for path in paths:
        image = shown(path)
        expected = argmax(model, image)
        with Image.open(out / f'pred/{path.stem}.png') as written:
            found = np.array(written)
            assert written.mode == 'P'
            assert np.reshape(written.getpalette(), (-1, 3)).tolist()[: len(PALETTE)] == PALETTE
        if path.suffix == '.jpg':  # PIL and OpenCV may decode it with small differences
            assert image.shape[:2] == (61, 24)
            assert (found == expected).mean() > 0.99
        else:
            np.testing.assert_array_equal(found, expected)
        assert path.stem in ('thin', 'tiny') or len(np.unique(found)) > 1
        overlay = 0.75 * image + 0.25 * np.array(PALETTE)[found]
        difference = np.abs(np.array(Image.open(out / f'vis/{path.stem}.png')) - overlay)
        assert difference.max() < (1 if path.suffix != '.jpg' else 10)


def test_a_folder_may_hold_other_files(inferencer, folder, tmp_path):
    (folder / 'notes.txt').write_text('no image')
    names = {path.stem for path in inferencer(folder, tmp_path / 'out')}
    assert 'notes' not in names
    assert len(names) > 3


def test_neighbours_of_the_same_size_go_together(inferencer, folder, tmp_path, monkeypatch):
    sizes = []
    forward = inferencer.forward
    monkeypatch.setattr(inferencer, 'forward', lambda batch: sizes.append(len(batch['inputs'])) or forward(batch))
    names = ['even.png', 'even, too.png', 'odd.ppm', 'gray.png']
    inferencer([folder / name for name in names], tmp_path / 'out', 2)
    assert sizes == [2, 1, 1]


def test_a_list_in_its_order_one_file_and_a_path(inferencer, folder, tmp_path):
    out = tmp_path / 'out'
    names = ['odd.ppm', 'even.png']
    assert inferencer([folder / names[0], str(folder / names[1])], out) == [out / 'pred/odd.png', out / 'pred/even.png']
    assert inferencer(folder / 'gray.png', str(out)) == [out / 'pred/gray.png']
    assert len(list(out.glob('pred/*'))) == len(list(out.glob('vis/*'))) == 3


def test_a_resized_prediction_has_the_size_of_its_image(checkpoint, folder, tmp_path):
    cfg = config()
    cfg.test_dataloader.dataset.pipeline.insert(1, dict(type='Resize', scale=(32, 32), keep_ratio=True))
    inferencer = SegmentationInferencer(cfg, checkpoint, device='cpu', show_progress=False)
    for pred in inferencer(folder, tmp_path / 'out', 4):
        (source,) = folder.glob(f'{pred.stem}.*')
        assert Image.open(pred).size == shown(source).shape[1::-1]


def test_overlay_and_index_map_ignore_the_orientation_together(checkpoint, folder, tmp_path):
    cfg = config()
    cfg.test_dataloader.dataset.pipeline[0].color_type = 'color_ignore_orientation'
    (pred,) = SegmentationInferencer(cfg, checkpoint, device='cpu', show_progress=False)(
        folder / 'turned.jpg', tmp_path
    )
    assert Image.open(pred).size == Image.open(tmp_path / 'vis/turned.png').size == (61, 24)


def test_nothing_is_kept_but_what_is_written(inferencer, folder, tmp_path, monkeypatch):
    """Each result is written before the next batch goes through the model."""
    out, written = tmp_path / 'out', []
    forward = inferencer.forward

    def counting(batch):
        written.append(len(list(out.glob('pred/*'))))
        return forward(batch)

    monkeypatch.setattr(inferencer, 'forward', counting)
    inferencer([path for path in sorted(folder.glob('*.*')) if path.name != '.hidden'], out)
    assert written == list(range(8))


def test_a_run_that_breaks_leaves_whole_files_only(inferencer, folder, tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(Image.Image, 'save', broken)
    with pytest.raises(KeyboardInterrupt):
        inferencer(folder, tmp_path / 'out')
    assert [path.name for path in (tmp_path / 'out').rglob('*') if path.is_file()] == []
    assert [path.name for path in (tmp_path / 'out').iterdir()] == ['pred']


@pytest.fixture
def idle(inferencer, monkeypatch):
    """An inferencer that must not come as far as its model."""
    monkeypatch.setattr(inferencer, 'forward', lambda *args: pytest.fail('the model ran'))
    return inferencer


def spoil(folder):
    """Add files that cannot be read; return their names, in order."""
    (folder / 'notes.png').write_text('no image')
    (folder / 'empty.png').write_bytes(b'')
    for name in ('even.png', 'turned.jpg', 'odd.ppm'):
        content = (folder / name).read_bytes()
        (folder / f'cut_{name}').write_bytes(content[: len(content) * 2 // 3])
    damaged = bytearray((folder / 'rgba.png').read_bytes())
    damaged[len(damaged) // 2] ^= 255
    (folder / 'damaged.png').write_bytes(damaged)
    (folder / 'folder.png').mkdir()
    (folder / 'link.png').symlink_to(folder / 'nowhere.png')
    (folder / 'float.tif').write_bytes(b'')
    Image.fromarray(np.ones((4, 4), np.float32)).save(folder / 'float.tif')
    return sorted(
        ['notes', 'empty', 'cut_even', 'cut_turned', 'cut_odd', 'damaged', 'folder', 'link', 'float'],
    )


@pytest.mark.parametrize('batch_size', [1, 3])
def test_bad_images_do_not_lose_the_results_of_the_others(inferencer, folder, tmp_path, batch_size):
    inferencer(folder, tmp_path / 'alone')
    bad = spoil(folder)
    with pytest.raises(ValueError, match=r'9 of 17 images cannot be segmented; the results of the others') as raised:
        inferencer(folder, tmp_path / 'out', batch_size)
    named = re.findall(r'^  (.*?): ', str(raised.value), re.MULTILINE)
    assert [Path(path).stem for path in named] == bad
    written = {path.relative_to(tmp_path / 'out') for path in (tmp_path / 'out').rglob('*.*')}
    assert written == {path.relative_to(tmp_path / 'alone') for path in (tmp_path / 'alone').rglob('*.*')}
    for path in written:
        assert (tmp_path / 'out' / path).read_bytes() == (tmp_path / 'alone' / path).read_bytes()


@pytest.mark.parametrize('batch_size', [1, 3])
def test_an_image_on_which_the_model_fails(inferencer, folder, tmp_path, monkeypatch, batch_size):
    """The images of its batch go through the model one by one."""
    forward = inferencer.forward
    bad = torch.from_numpy(np.array(Image.open(folder / 'even.png'))[..., ::-1].copy()).permute(2, 0, 1)

    def failing(batch):
        if any(torch.equal(image, bad) for image in batch['inputs']):
            raise RuntimeError('Expected more\nthan 1 value')
        return forward(batch)

    monkeypatch.setattr(inferencer, 'forward', failing)
    message = r'1 of 8 images .*\n  .*/even\.png: the model fails on 56×40 pixels: Expected more than 1 value$'
    with pytest.raises(ValueError, match=message):
        inferencer(folder, tmp_path / 'out', batch_size)
    assert len(list((tmp_path / 'out/pred').iterdir())) == len(list((tmp_path / 'out/vis').iterdir())) == 7


def test_nothing_is_created_if_no_image_can_be_read(idle, folder, tmp_path):
    bad = spoil(folder)
    paths = [path for path in folder.iterdir() if path.stem in bad] + [folder / 'missing.png', folder / 'deeper']
    with pytest.raises(ValueError, match=r'^11 of 11 images cannot be segmented:\n') as raised:
        idle(paths, tmp_path / 'out')
    assert (
        len(
            re.findall(
                r'^  /.*?: (?:unreadable: |a TIFF of 32-bit floating point|cv2 cannot decode it).',
                str(raised.value),
                re.MULTILINE,
            )
        )
        == 11
    )
    assert not (tmp_path / 'out').exists()


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
    found = {path.stem: np.array(Image.open(path)) for path in inferencer(folder, tmp_path / 'out')}
    assert set(found) == {'grey', 'deep', 'palette', 'alpha', 'ink', 'lossless'}
    for labels in found.values():
        np.testing.assert_array_equal(labels, found['grey'])


def test_16_bits_that_pillow_would_cut_off_are_refused(checkpoint, tmp_path):
    cfg = config()
    cfg.test_dataloader.dataset.pipeline[0].imdecode_backend = 'pillow'
    Image.fromarray(np.full((8, 8), 40000, np.uint16)).save(tmp_path / 'deep.png')
    inferencer = SegmentationInferencer(cfg, checkpoint, device='cpu', show_progress=False)
    with pytest.raises(ValueError, match=r'deep\.png: pictures must have 8 bits per channel'):
        inferencer(tmp_path / 'deep.png', tmp_path / 'out')


def test_what_is_left_out_of_a_folder_is_named(inferencer, folder, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(module, 'print_log', lambda message, *args: told.append(message))
    for name in ('a.heic', 'b.txt', 'c.pdf'):
        (folder / name).write_text('')
    inferencer(folder, tmp_path / 'out')
    assert told == [f'{folder}: skipped, no suffix of an image: a.heic, b.txt, c.pdf, deeper']


def test_a_full_disk_ends_the_run_and_names_the_file(inferencer, tmp_path):
    (tmp_path / 'images').mkdir()
    for name in 'abc':
        Image.fromarray(blocks(96, 96)).save(tmp_path / f'images/{name}.bmp')
    for size, what in ((100, 'pred'), (2000, 'vis')):
        with full_disk(size), pytest.raises(OSError, match=rf"File too large: '{tmp_path}/out/{what}/a\.png'"):
            inferencer(tmp_path / 'images', tmp_path / 'out')
        assert not list((tmp_path / 'out').rglob('.*'))


def test_a_folder_that_cannot_be_written_to_and_no_such_device(idle, checkpoint, folder, tmp_path):
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out/vis').write_text('')
    with pytest.raises(OSError, match=rf"this folder cannot be written to .*: '{tmp_path}/out/vis'"):
        idle(folder, tmp_path / 'out')
    with pytest.raises(ValueError, match=r"device must be one of cpu.*; got 'cuda:99'"):
        SegmentationInferencer(config(), checkpoint, device='cuda:99')


@pytest.mark.parametrize(
    ('inputs', 'said'),
    [
        ('deeper', 'inputs contain no image'),
        ((), 'inputs contain no image'),
        (('even.png', 'other/even.ppm'), r'even\.png from .*even.png and .*other/even.ppm'),
        (('even.png', 'even.png'), r'inputs must have distinct names'),
        (('out/pred/a.png',), r'overwrite inputs.*\n.*out/pred/a\.png'),
    ],
)
def test_wrong_inputs(idle, folder, inputs, said):
    paths = folder / inputs if isinstance(inputs, str) else [folder / name for name in inputs]
    with pytest.raises(ValueError, match=said):
        idle(paths, folder / 'out')


@pytest.mark.parametrize('options', [dict(batch_size=0), dict(batch_size=1.5), dict(opacity=1.5)])
def test_wrong_options(idle, folder, tmp_path, options):
    with pytest.raises(ValueError, match=f'{next(iter(options))} must be .*; got {next(iter(options.values()))}'):
        idle(folder, tmp_path / 'out', **options)


@pytest.mark.parametrize('value', [b'a.png', np.zeros((4, 4, 3)), Image.new('RGB', (4, 4)), None])
def test_what_is_no_path(idle, tmp_path, value):
    name = type(value).__name__
    for argument, inputs, out_dir in (
        ('inputs', value, tmp_path),
        ('inputs', [value], tmp_path),
        ('out_dir', 'a', value),
    ):
        with pytest.raises(TypeError, match=rf'{argument} must be a path \(str or Path\); got {name}'):
            idle(inputs, out_dir)


@pytest.mark.parametrize(
    ('path', 'name'),
    [
        pytest.param(
            'attended_residual/faster-rcnn_r50-w16_fpn_1xb4-100_trees-400x400.py',
            'FasterRCNN',
            marks=pytest.mark.mmcv_operators,
        ),
        ('sst/sst-grid_r18-d8-half_1xb4-400_davis-240p.py', 'mmattn.SST'),
    ],
)
def test_models_that_are_no_segmentors(checkpoint, path, name):
    with pytest.raises(
        ValueError, match=rf'the model must be a segmentor; the config has {name} \(.* SST, .* detectors'
    ):
        SegmentationInferencer(config_path(path), checkpoint)


def test_another_model_than_trained_is_named(save, monkeypatch):
    said = []
    monkeypatch.setattr(trained_model, 'print_log', lambda message, *_: said.append(message))
    path = save(cfg=config().pretty_text, dataset_meta=dict(classes=CLASSES, palette=PALETTE))
    other = config()
    other.model.decode_head.align_corners = True
    for cfg in (config(), other):
        SegmentationInferencer(cfg, path, 'cpu')
    assert said == [
        f'{path}: its weights were trained with another model: model.decode_head.align_corners is True '
        '(in training: not set)'
    ]


def test_classes_and_palette_may_be_the_data_sets(save):
    cfg = config()
    cfg.test_dataloader.dataset.metainfo = dict(classes=CLASSES[::-1], palette=PALETTE[::-1])
    inferencer = SegmentationInferencer(cfg, save(), device='cpu')
    assert list(inferencer.model.dataset_meta['classes']) == list(CLASSES[::-1])
    assert inferencer.visualizer.dataset_meta['palette'] == PALETTE[::-1]


@pytest.mark.parametrize(
    ('meta', 'said'),
    [
        ({}, 'classes and palette are not in'),
        (dict(dataset_meta=dict(classes=CLASSES, palette=None)), 'classes and palette are not in'),
        (
            dict(dataset_meta=dict(classes=CLASSES[1:], palette=PALETTE[1:])),
            'the model has 4 classes, but the metainfo has 3',
        ),
        (dict(dataset_meta=dict(classes=CLASSES, palette=[[0, 0, 300]] * 4)), 'three values from 0 to 255'),
    ],
)
def test_there_is_no_default_for_the_classes(save, meta, said):
    with pytest.raises(ValueError, match=said):
        SegmentationInferencer(config(), save(**meta), device='cpu')


def test_one_class_has_no_colour_for_the_rest(save, model):
    cfg = config()
    cfg.model.decode_head.num_classes = 1
    weights = {key: value[:1] if 'conv_seg' in key else value for key, value in model.state_dict().items()}
    with pytest.raises(ValueError, match='use num_classes=2 and out_channels=1'):
        SegmentationInferencer(
            cfg, save(weights, dataset_meta=dict(classes=['face'], palette=[[9, 9, 9]])), device='cpu'
        )


def test_a_checkpoint_of_another_model_is_an_error(save, model):
    weights = model.state_dict()
    weights['decode_head.other.weight'] = weights.pop('decode_head.conv_seg.weight')
    with pytest.raises(RuntimeError, match=r'(?s)decode_head\.other\.weight.*decode_head\.conv_seg\.weight'):
        SegmentationInferencer(config(), save(weights, dataset_meta=dict(classes=CLASSES, palette=PALETTE)))
    with pytest.raises(ValueError, match='weights must be'):
        SegmentationInferencer(config(), None)


def test_the_config_may_be_a_path(checkpoint, tmp_path):
    config().dump(tmp_path / 'config.py')
    assert SegmentationInferencer(tmp_path / 'config.py', checkpoint).model.num_classes == len(CLASSES)
    with pytest.raises(FileNotFoundError, match=r'missing\.py'):
        SegmentationInferencer(str(tmp_path / 'missing.py'), checkpoint)


@pytest.fixture
def demo(monkeypatch, tmp_path, checkpoint):
    """Run the command line on an image or a folder; return the folder of the results."""
    config().dump(tmp_path / 'config.py')

    def demo(image, *options, positional=False):
        tool = str(ROOT / 'tools/image_demo.py')
        words, out = [tool, str(image), str(tmp_path / 'config.py'), checkpoint], ['--out-dir', str(tmp_path / 'out')]
        monkeypatch.setattr(sys, 'argv', [*words, *options, *out] if positional else [*words, *out, *options])
        runpy.run_path(tool, run_name='__main__')
        return tmp_path / 'out'

    return demo


def test_the_command_line(demo, model, folder, capsys):
    out = demo(folder, '--device', 'cpu', '--opacity', '1', '--batch-size', '2')
    assert '8 index maps and overlays are in' in capsys.readouterr().out
    labels = np.array(Image.open(out / 'pred/even.png'))
    np.testing.assert_array_equal(labels, argmax(model, shown(folder / 'even.png')))
    np.testing.assert_array_equal(np.array(Image.open(out / 'vis/even.png')), np.array(PALETTE)[labels])


def test_the_command_line_says_what_is_wrong_without_a_traceback(demo, folder, tmp_path):
    (folder / 'notes.png').write_text('no image')
    with pytest.raises(SystemExit, match=r'1 of 9 images cannot be segmented; .*:\n  .*notes\.png: '):
        demo(folder)
    (tmp_path / 'checkpoint.pth').unlink()
    with pytest.raises(SystemExit, match=r'checkpoint\.pth'):
        demo(folder)


def test_the_name_in_face_parsing_is_the_same_class():
    assert face_parsing.FaceParsingInferencer is SegmentationInferencer
