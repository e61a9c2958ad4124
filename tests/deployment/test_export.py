"""Exported files return the logits of PyTorch, at sizes other than that of the export, and describe themselves."""

import json
import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmseg.models import EncoderDecoder
from mmseg.registry import MODELS, TRANSFORMS
from PIL import Image

from mmattn.deployment import load_pt2
from mmattn.deployment.exporter import MIN_TORCH, export_network, write_onnx
from mmattn.deployment.metadata import describe_network
from mmattn.deployment.network import LogitsNetwork
from mmattn.deployment.pt2 import quiet, write_pt2
from mmattn.ops.dispatch import kernels_run

from ..full_disk import full_disk
from ..layers.test_every_layer import made
from ..requirements import requires
from .networks import CLASSES, NAMES, PALETTE, config, segmentor

if tuple(map(int, torch.__version__.split('.')[:2])) < MIN_TORCH:
    pytest.skip('torch is too old to export', allow_module_level=True)
pytestmark = requires('onnx', 'onnxruntime', 'onnxscript')

ROOT = Path(__file__).parents[2]
PAGE = ROOT / 'docs/deployment.md'
TOOLS = ROOT / 'tools' / 'deployment'
SIZES = [(1, 3, 64, 64), (3, 3, 70, 101), (2, 3, 150, 97)]
TOLERANCE = 1e-5  # of the range of the logits; 1e-4 is the accepted difference
OPERATORS = {
    'BiCCHead': 'grid_attention',
    'BiNLHead': 'global_attention',
    'DeepLabV3PlusBAHead': 'local_attention',
    'UNetBAHead': 'local_attention',
    '1111': 'global_attention',
    '0110,': 'local_attention',
    'DynamicConv2d': 'dynamic_conv',
}

WITH_COMPOSITIONS = [  # of each operator
    'BilateralCrissCrossAttention',
    'BilateralNonLocal2d',
    'LocalBilateralAttention',
    'DynamicConv2d',
    'GridAttention3d',
]


def open_session(path):
    import onnxruntime

    return onnxruntime.InferenceSession(path, providers=['CPUExecutionProvider'])


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
    """Return a function: the network of a name, the folder of its two files, and their metadata."""
    made = {}

    def make(name, align_corners=False):
        key = name, align_corners
        if key not in made:
            cfg = config(name, align_corners)
            model = segmentor(cfg)
            network = LogitsNetwork(model).eval()
            about = describe_network(cfg, model)
            folder = tmp_path_factory.mktemp('exported')
            program = export_network(network)
            write_pt2(program, folder / 'network.pt2', about)
            write_onnx(program, folder / 'network.onnx', about)
            made[key] = network, folder, about
        return made[key]

    return make


def assert_same_logits(network, run):
    """Compare a file with the network at three sizes of images and of batches, of which none is that of the export."""
    for seed, shape in enumerate(SIZES):
        image = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            expected = network(image)
            found = run(image)
        assert found.shape == expected.shape == (shape[0], len(CLASSES), *shape[2:])
        span = expected.max() - expected.min()
        assert span > 0.1
        assert (found - expected).abs().max() <= TOLERANCE * span
        assert (found.argmax(1) == expected.argmax(1)).double().mean() >= 0.9999


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'align_corners'), [*((name, False) for name in NAMES), ('DeepLabV3PlusBAHead', True), ('UNetBAHead', True)]
)
def test_the_files_have_the_logits_of_pytorch(exported, name, align_corners):
    network, folder, about = exported(name, align_corners)
    session = open_session(folder / 'network.onnx')
    assert_same_logits(network, lambda image: torch.from_numpy(session.run(['logits'], {'image': image.numpy()})[0]))
    model, found = load_pt2(folder / 'network.pt2')
    assert found == json.loads(json.dumps(about))
    with kernels_run() as kernels:
        assert_same_logits(network, model)
    operator = OPERATORS.get(name.split()[0])
    assert operator is None or operator in kernels  # the operators of the file are not compositions


@pytest.mark.slow
def test_a_file_of_torch_export_loads_without_mmseg(exported, run_python):
    network, folder, _ = exported('BiCCHead')
    code = (
        'import sys, torch; from mmattn.deployment import load_pt2; '
        f'network, about = load_pt2({str(folder / "network.pt2")!r}); '
        'print(network(torch.ones(1, 3, 64, 96)).sum().item(), about["classes"]); '
        'assert not {"mmseg", "mmcv", "mmengine", "onnx"} & set(sys.modules)'
    )
    total, classes = run_python(code).split(maxsplit=1)
    assert classes.strip() == str(list(CLASSES))
    with torch.no_grad():  # the sum of 30,720 logits, which cancel, rounds by the number of threads
        torch.testing.assert_close(float(total), network(torch.ones(1, 3, 64, 96)).sum().item(), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    'head',
    [
        dict(type='mmseg.DAHead', in_channels=64, in_index=3, pam_channels=4),
        dict(type='mmseg.EncHead', in_channels=[32, 64], in_index=[2, 3], num_codes=4),
    ],
)
def test_of_several_outputs_of_a_head_the_first_are_the_logits(head):
    """As in its predictions; the others are for losses."""
    backbone = dict(type='mmseg.ResNet', depth=18, base_channels=8, stem_channels=8)
    head = dict(head, channels=8, num_classes=3)
    model = MODELS.build(dict(type='mmseg.EncoderDecoder', backbone=backbone, decode_head=head)).eval()
    image = torch.rand(1, 3, 64, 96)
    with torch.no_grad():
        assert len(model(image, mode='tensor')) in (2, 3)
        expected = model.encode_decode(image, [dict(img_shape=image.shape[2:])])
        torch.testing.assert_close(LogitsNetwork(model).eval()(image), expected)


@pytest.mark.slow
def test_relative_encodings_of_criss_cross_attention_have_one_size(tmp_path):
    """Their windows are as large as the map; the other relative encodings are exported for any size."""
    network = LogitsNetwork(segmentor(config('BiCCHead relative'))).eval()
    with pytest.raises(ValueError, match='its size must be fixed: export the network with --input-size'):
        export_network(network)
    write_onnx(export_network(network, (72, 101)), tmp_path / 'network.onnx', {})
    session = open_session(tmp_path / 'network.onnx')
    image = torch.randn(1, 3, 72, 101, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = network(image)
    found = torch.from_numpy(session.run(None, {'image': image.numpy()})[0])
    assert (found - expected).abs().max() <= TOLERANCE * (expected.max() - expected.min())


@pytest.mark.slow
@pytest.mark.parametrize('name', WITH_COMPOSITIONS)
def test_torch_writes_a_layer_as_it_is_typed(name, tmp_path):
    """``torch.onnx.export`` of the layer itself: its file has its outputs, also at other sizes."""
    layer, (x, *_), _ = made(name)
    clip = x.dim() == 5  # its relative encodings are of one size
    axes = None if clip else (dict.fromkeys((0, 2, 3), torch.export.Dim.DYNAMIC),)
    with torch.no_grad(), quiet():
        torch.onnx.export(layer, (x,), tmp_path / 'layer.onnx', dynamic_shapes=axes, verbose=False)
    session = open_session(tmp_path / 'layer.onnx')
    for size in (x.shape, *([] if clip else [(3, 8, 9, 4)])):
        x = torch.randn(size, generator=torch.Generator().manual_seed(3))
        (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(found), layer(x), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_an_operator_without_a_composition_is_named():
    """With the page that lists what can be exported."""
    layer, (x, *_), _ = made('StridedAttention3d')
    with pytest.raises(torch.onnx.OnnxExporterError, match=r'mmattn\.ops\.strided_attention .*docs/deployment\.md'):
        torch.onnx.export(layer, (x,), verbose=False)


@pytest.mark.slow
def test_the_example_of_an_own_network_exports(tmp_path, monkeypatch):
    (example,) = re.findall(r'```python\n(import torch\n.*?)```', PAGE.read_text(encoding='utf-8'), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    scope = {}
    exec(example, scope)
    session = open_session('attention.onnx')
    module = torch.export.load('attention.pt2').module()
    network = scope['program'].module()
    for shape in [(1, 20, 17, 64), (4, 5, 30, 64)]:  # 4: as many images as heads
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            expected, found = network(x), module(x)
        assert torch.equal(found, expected)
        (found,) = session.run(None, {'x': x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_onnx_file_is_plain(exported):
    """Opset 18, no operator of another domain, named dynamic axes, and the metadata as JSON."""
    _, folder, about = exported('BiCCHead')
    import onnx

    model = onnx.load(folder / 'network.onnx')
    onnx.checker.check_model(model, full_check=True)
    assert [(each.domain, each.version) for each in model.opset_import] == [('', 18)]
    assert {node.domain for node in model.graph.node} == {''}
    assert len(model.functions) == 0
    (image,), (logits,) = model.graph.input, model.graph.output
    shapes = [[d.dim_param or d.dim_value for d in x.type.tensor_type.shape.dim] for x in (image, logits)]
    assert shapes == [['batch', channels, 'height', 'width'] for channels in (3, len(CLASSES))]
    assert json.loads({p.key: p.value for p in model.metadata_props}['mmattn']) == json.loads(json.dumps(about))


def test_the_metadata_is_that_of_the_config():
    cfg = config('BiCCHead')
    about = describe_network(cfg, segmentor(cfg))
    assert about == dict(
        classes=list(CLASSES),
        palette=PALETTE,
        threshold=None,
        align_corners=False,
        channel_order='RGB',
        mean=[120, 110, 100],
        std=[60, 50, 40],
        resize=dict(scale=[160, 120], scale_factor=None, keep_ratio=True),
        size_divisor=8,
        pad_value=0,
        mode='whole',
        not_described=[],
    )
    wrapped = deepcopy(cfg)
    wrapped.test_dataloader.dataset = dict(type='ConcatDataset', datasets=[cfg.test_dataloader.dataset] * 2)
    assert describe_network(wrapped, segmentor(cfg)) == about
    of_classes = deepcopy(cfg)  # as in pure Python
    of_classes.model.type = EncoderDecoder
    for step in of_classes.test_dataloader.dataset.pipeline:
        step.type = TRANSFORMS.get(step.type)
    assert describe_network(of_classes, segmentor(cfg)) == about
    cfg.model.decode_head.update(out_channels=1, num_classes=2, threshold=0.3)
    cfg.model.data_preprocessor = dict(type='SegDataPreProcessor', test_cfg=dict(size=(90, 80)))
    cfg.model.test_cfg = dict(mode='slide', crop_size=(64, 48), stride=(32, 16))
    cfg.test_dataloader.dataset.pipeline[1:2] = [
        dict(type='mmseg.RGB2Gray'),
        dict(type='Resize', scale_factor=0.5, interpolation='nearest'),
        dict(type='Resize', scale=(64, 32)),
    ]
    cfg.test_dataloader.dataset.pipeline[0].color_type = 'grayscale'
    about = describe_network(cfg, segmentor(cfg))
    assert {key: about[key] for key in ('threshold', 'channel_order', 'mean', 'std', 'size_divisor', 'mode')} == dict(
        threshold=0.3, channel_order='BGR', mean=[0, 0, 0], std=[1, 1, 1], size_divisor=1, mode='slide'
    )
    assert (about['crop_size'], about['stride']) == ([64, 48], [32, 16])
    assert about['resize'] == dict(scale=None, scale_factor=[0.5, 0.5], keep_ratio=False)
    assert about['not_described'] == ['RGB2Gray', 'color_type', 'Resize', 'interpolation', 'padding to test_cfg.size']


@pytest.fixture
def image(tmp_path):
    """A photograph-like image, larger than the scale of the config, and of a size that the divisor does not divide."""
    rng = np.random.default_rng(0)
    blocks = np.kron(rng.integers(0, 255, (9, 7, 3)), np.ones((23, 31, 1)))
    pixels = (blocks + rng.normal(0, 9, blocks.shape)).clip(0, 255).astype(np.uint8)
    path = tmp_path / 'image.png'
    Image.fromarray(pixels).save(path)
    return path


@pytest.mark.slow
def test_run_onnx_paints_the_labels_of_mmseg_without_torch(exported, image, tmp_path):
    """The whole way of an image: scaled, normalised, padded, segmented, cropped and scaled back."""
    from mmseg.apis import inference_model

    network, folder, _ = exported('BiCCHead')
    out = tmp_path / 'out'
    code = (
        'import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name="__main__"); '
        'assert not {"torch", "mmattn", "mmcv", "mmengine", "cv2", "onnx"} & set(sys.modules)'
    )
    arguments = [TOOLS / 'run_onnx.py', folder / 'network.onnx', image, '--out-dir', out]
    subprocess.run([sys.executable, '-c', code, *map(str, arguments)], check=True, env={}, cwd=tmp_path)
    model = network.segmentor
    model.cfg = Config(dict(test_pipeline=config('BiCCHead').test_dataloader.dataset.pipeline))
    init_default_scope('mmseg')
    result = inference_model(model, str(image))
    expected = result.pred_sem_seg.data[0].numpy()
    first, second = result.seg_logits.data.topk(2, 0).values.numpy()
    span = np.ptp(result.seg_logits.data.numpy())
    with Image.open(out / 'pred' / 'image.png') as painted:
        found = np.asarray(painted)
        assert painted.getpalette()[: 3 * len(PALETTE)] == np.ravel(PALETTE).tolist()
    assert len(np.unique(expected)) > 1
    assert found.shape == expected.shape == (207, 217)
    # Scaling rounds to other levels of grey than OpenCV, which decides between classes with nearly the same logit.
    other = found != expected
    assert other.mean() < 0.01
    assert (first - second)[other].max() < 0.01 * span


def test_a_full_disk_is_an_error_and_nothing_stays(tmp_path):
    program = torch.export.export(torch.nn.Linear(64, 64), (torch.zeros(1, 64),))
    with full_disk(1000), pytest.raises(OSError, match=rf"File too large: '{tmp_path}/a\.pt2'"):
        write_pt2(program, tmp_path / 'a.pt2', {})
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize('content', [b'', b'text', None], ids=['empty', 'text', 'checkpoint'])
def test_other_files_are_not_loaded(tmp_path, content):
    path = tmp_path / 'network.pt2'
    torch.save(dict(x=torch.zeros(1)), path) if content is None else path.write_bytes(content)
    with pytest.raises(ValueError, match=r'network\.pt2'):
        load_pt2(path)
