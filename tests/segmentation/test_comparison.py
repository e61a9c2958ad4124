"""Several models on the same images: the results of each, what the sheet shows, and errors before a model runs."""

import shutil

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from mmattn.segmentation import comparison
from mmattn.segmentation.comparison import compare_segmentations, comparison_sheet
from mmattn.segmentation.inferencer import SegmentationInferencer

from .test_inferencer import (  # noqa: F401
    CLASSES,
    PALETTE,
    blocks,
    checkpoint,
    config,
    demo,
    folder,
    model,
    save,
    shown,
)


@pytest.fixture
def checkpoints(model, save, checkpoint, tmp_path):  # noqa: F811
    """Two checkpoints of the config: the second has other weights."""
    other = {
        name: x.flip(0) if name.startswith('decode_head.conv_seg') else x for name, x in model.state_dict().items()
    }
    first = shutil.copyfile(checkpoint, tmp_path / 'first.pth')
    save(other, dataset_meta=dict(classes=CLASSES, palette=PALETTE))
    return str(first), str(shutil.move(checkpoint, tmp_path / 'second.pth'))


@pytest.fixture
def inferencers(checkpoints):
    return {
        name: SegmentationInferencer(config(), path, device='cpu', show_progress=False)
        for name, path in zip(('U-Net', 'U-Net-BA'), checkpoints)
    }


@pytest.fixture
def truth(folder, tmp_path):  # noqa: F811
    """Masks of all labels, with a part that is ignored."""
    path = tmp_path / 'truth'
    path.mkdir()
    for image in (path for path in folder.iterdir() if path.is_file() and path.name[0] != '.'):
        height, width = shown(image).shape[:2]
        labels = (np.arange(height * width) % 5).reshape(height, width)
        Image.fromarray(np.where(labels == 4, 255, labels).astype(np.uint8)).save(path / f'{image.stem}.png')
    return path


@pytest.fixture
def sheets(monkeypatch):
    """What the sheets show: rows, columns and colours."""
    recorded = []
    draw = comparison.comparison_sheet
    monkeypatch.setattr(comparison, 'comparison_sheet', lambda *args: recorded.append(args) or draw(*args))
    return recorded


def test_a_sheet_has_names_and_colours(drawn_panels):
    greys = np.arange(0, 240, 60, dtype=np.uint8).reshape(2, 2, 1, 1, 1)
    pictures = dict(zip('ab', np.broadcast_to(greys, (2, 2, 4, 6, 1))))
    sheet = comparison_sheet(pictures, ['image', 'ours'], dict(road=(255, 0, 0), car=(0, 51, 0)))
    rows = np.reshape(drawn_panels[:4], (2, 2))
    assert [panel.title for panel in rows[0]] == ['image', 'ours']
    assert [panel.caption for panel in rows[:, 0]] == ['a', 'b']
    assert all((panel.picture == grey).all() for panel, grey in zip(rows.flat, greys.flat))
    starts = []
    for colour in ((255, 0, 0), (0, 51, 0)):
        square = np.argwhere((sheet == colour).all(-1))
        assert len(square) == 81
        starts.append(square[0])
    assert starts[0][0] == starts[1][0] > 2 * 147
    assert starts[0][1] < starts[1][1]


def test_a_sheet_shows_what_the_models_wrote(inferencers, folder, truth, sheets, tmp_path):  # noqa: F811
    path = compare_segmentations(inferencers, folder, tmp_path / 'out', opacity=0.25, truth=truth, max_images=5)
    assert path == tmp_path / 'out/comparison.jpg'
    assert Image.open(path).width > 800
    ((rows, columns, colours),) = sheets
    assert columns == ['image', 'truth', 'U-Net', 'U-Net-BA']
    assert colours == dict(zip(CLASSES, PALETTE))
    assert [*rows] == ['even, too.png', 'even.png', 'gray.png', 'odd.ppm', 'rgba.png']
    for name, (image, masked, *of_models) in rows.items():
        stem = name.rpartition('.')[0]
        np.testing.assert_array_equal(np.broadcast_to(image, shown(folder / name).shape), shown(folder / name))
        labels = np.array(Image.open(truth / f'{stem}.png'))
        for at in ((0, 0), (0, 1), (1, 3), (2, 5)):
            colour = image[at] if labels[at] == 255 else 0.75 * image[at] + 0.25 * np.array(PALETTE[labels[at]])
            np.testing.assert_array_equal(masked[at], np.rint(np.broadcast_to(colour, 3)))
        for of_model, picture in zip(inferencers, of_models):
            np.testing.assert_array_equal(
                picture, np.array(Image.open(tmp_path / 'out' / of_model / f'vis/{stem}.png'))
            )
        assert not np.array_equal(*of_models)
    for name, inferencer in inferencers.items():
        for alone in inferencer(folder, tmp_path / 'alone' / name):
            assert alone.read_bytes() == (tmp_path / 'out' / name / 'pred' / alone.name).read_bytes()


def test_a_sheet_has_eight_images_by_default(inferencers, sheets, tmp_path):
    (tmp_path / 'images').mkdir()
    for i in range(9):
        Image.fromarray(blocks(16, 24, seed=i)).save(tmp_path / f'images/{i}.png')
    paths = [
        compare_segmentations(dict(net=inferencers['U-Net']), tmp_path / 'images', tmp_path / name, **options)
        for name, options in (('a', {}), ('b', dict(batch_size=1, opacity=0.5, max_images=8)))
    ]
    assert [len(rows) for rows, *_ in sheets] == [8, 8]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_what_does_not_fit_is_an_error_before_a_model_runs(inferencers, folder, truth, tmp_path, monkeypatch):  # noqa: F811
    def fail(*args):
        raise AssertionError('a model ran')

    monkeypatch.setattr(SegmentationInferencer, 'forward', fail)
    out = tmp_path / 'out'

    def call(**options):
        compare_segmentations(inferencers, folder, **dict(dict(out_dir=out, truth=truth), **options))

    shutil.copytree(truth, out / 'U-Net/pred')
    with pytest.raises(ValueError, match='U-Net/pred would replace an input'):
        call(truth=out / 'U-Net/pred')
    shutil.rmtree(out)
    mask = truth / 'even.png'
    Image.new('L', (56, 40), 4).save(mask)
    with pytest.raises(ValueError, match=r'even\.png has labels \[4\]; the model has 4 classes, from 0'):
        call()
    Image.new('L', (40, 56)).save(mask)
    with pytest.raises(ValueError, match=r'even\.png: 40×56 pixels, but the image has 56×40'):
        call()
    Image.new('RGB', (56, 40)).save(mask)
    with pytest.raises(ValueError, match=r'even\.png is not an index map: it has the mode RGB'):
        call()
    mask.unlink()
    with pytest.raises(FileNotFoundError, match=r'even\.png'):
        call()
    meta = inferencers['U-Net-BA'].model.dataset_meta
    for key, value, said in (
        ('palette', PALETTE[::-1], 'the palettes of U-Net and U-Net-BA differ'),
        ('classes', CLASSES[::-1], 'the classes of U-Net and U-Net-BA differ'),
    ):
        inferencers['U-Net-BA'].model.dataset_meta = dict(meta, **{key: value})
        with pytest.raises(ValueError, match=said):
            call()
    assert not out.exists()


def test_masks_whose_0_is_ignored(checkpoints, folder, sheets, tmp_path):  # noqa: F811
    """As in ADE20K: a data set with ``reduce_zero_label`` stores class c as c + 1."""
    cfg = config()
    cfg.test_dataloader.dataset.reduce_zero_label = True
    inferencer = SegmentationInferencer(cfg, checkpoints[0], device='cpu', show_progress=False)
    labels = np.arange(40 * 56).reshape(40, 56) % 5
    (tmp_path / 'truth').mkdir()
    Image.fromarray(labels.astype(np.uint8)).save(tmp_path / 'truth/even.png')
    image = folder / 'even.png'
    compare_segmentations({'net': inferencer}, image, tmp_path / 'out', opacity=1.0, truth=tmp_path / 'truth')
    _, masked, _ = sheets[0][0]['even.png']
    np.testing.assert_array_equal(masked[labels > 0], np.array(PALETTE)[labels[labels > 0] - 1])
    np.testing.assert_array_equal(masked[labels == 0], shown(image)[labels == 0])


def test_predictions_are_not_shifted_as_truth(checkpoints, folder, sheets, tmp_path):  # noqa: F811
    """With ``reduce_zero_label``, annotations are shifted, but what an inferencer wrote has class indices."""
    cfg = config()
    cfg.test_dataloader.dataset.reduce_zero_label = True
    inferencer = SegmentationInferencer(cfg, checkpoints[0], device='cpu', show_progress=False)
    (path,) = inferencer(folder / 'even.png', tmp_path / 'first')
    compare_segmentations({'a': inferencer}, folder / 'even.png', tmp_path / 'out', truth=path.parent)
    _, truth, predicted = sheets[0][0]['even.png']
    assert np.array_equal(truth, predicted)


def test_the_command_line_compares(demo, checkpoints, folder, truth, tmp_path, capsys):  # noqa: F811
    shutil.copyfile(checkpoints[0], tmp_path / 'checkpoint.pth')
    more = [str(tmp_path / 'config.py'), checkpoints[1]]
    # Further positional arguments stand beside the first ones, before the options.
    out = demo(folder, *more, '--names', 'first', 'second', '--truth', str(truth), '--device', 'cpu', positional=True)
    assert sorted(path.name for path in out.iterdir()) == ['comparison.jpg', 'first', 'second']
    assert 'comparison.jpg; index maps and overlays are in' in capsys.readouterr().out
    for arguments, said in (
        (more, 'the names of the models must be different: models of one config need --names; got config, config'),
        (more[:1], 'a CHECKPOINT must follow each CONFIG; got 3 paths'),
        ([*more, '--names', 'a'], '--names must name each of 2 models; got a'),
        ([*more, '--names', 'a', 'a'], 'the names of the models must be different; got a, a'),
        ([*more, '--names', 'a', 'b/c'], "--names must be usable as folder names; got 'b/c'"),
    ):
        with pytest.raises(SystemExit, match=said):
            demo(folder, *arguments, positional=True)


@pytest.mark.parametrize(
    ('dataset', 'reduced', 'label_map'),
    [
        ({}, False, None),
        (dict(type='ADE20KDataset'), True, None),
        (dict(type='ADE20KDataset', reduce_zero_label=False), False, None),
        (dict(type='ConcatDataset', datasets=[dict(type='ADE20KDataset')]), True, None),
        (dict(type='CityscapesDataset', metainfo=dict(classes=['sky', 'road'])), False, {0: 1, 10: 0}),
    ],
)
def test_masks_are_read_as_the_data_set_reads_them(dataset, reduced, label_map):
    """Which need not be here."""
    cfg = Config(dict(test_dataloader=dict(dataset=dataset)) if dataset else {})
    found = comparison._reading(cfg)
    assert found['reduce_zero_label'] == reduced
    mapped = found.get('label_map') or {}
    assert {label: mapped.get(label) for label in label_map or ()} == (label_map or {})
    assert bool(mapped) == bool(label_map)


def test_a_progress_file_is_of_one_model(inferencers, folder, tmp_path):  # noqa: F811
    options = dict(inputs=folder / 'even.png', out_dir=tmp_path / 'out', progress_file=tmp_path / 'part')
    with pytest.raises(ValueError, match=r'progress_file .*2'):
        compare_segmentations(inferencers, **options)
    assert not [*tmp_path.glob('out/**/*.*')]
    first = dict([*inferencers.items()][:1])
    assert compare_segmentations(first, **options) == compare_segmentations(first, **options)


def test_images_may_come_from_a_generator(checkpoints, folder, sheets, tmp_path):  # noqa: F811
    inferencer = SegmentationInferencer(config(), checkpoints[0], device='cpu', show_progress=False)
    images = (folder / name for name in ('even.png',))
    compare_segmentations({'a': inferencer, 'b': inferencer}, images, tmp_path / 'out')
    assert [*sheets[0][0]] == ['even.png']
    assert all((tmp_path / 'out' / name / 'pred/even.png').is_file() for name in 'ab')
