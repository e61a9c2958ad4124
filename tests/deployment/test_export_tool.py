"""The command line of the export: a file of one size with its comparison, and errors before any work."""

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mmattn.deployment import load_pt2
from mmattn.deployment.exporter import MIN_TORCH
from mmattn.engine import load_config

from ..forked_tools import run_command
from ..requirements import requires
from .networks import config, segmentor

if tuple(map(int, torch.__version__.split('.')[:2])) < MIN_TORCH:
    pytest.skip('torch is too old to export', allow_module_level=True)
pytestmark = requires('onnx', 'onnxruntime', 'onnxscript')

ROOT = Path(__file__).parents[2]
TOOL = ROOT / 'tools' / 'deployment' / 'export.py'
DETECTOR = ROOT / 'configs/attended_residual/faster-rcnn_r50-w16-attn0010_fpn_1xb8-150_bccd-320x240.py'


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """Return paths of a config and of a checkpoint, which has no classes: they are those of the config."""
    folder = tmp_path_factory.mktemp('trained')
    cfg = config('BiCCHead')
    cfg.model.test_cfg = dict(mode='slide', crop_size=(96, 128), stride=(64, 64))
    cfg.dump(folder / 'config.py')
    torch.save(dict(state_dict=segmentor(cfg).state_dict()), folder / 'weights.pth')
    return folder / 'config.py', folder / 'weights.pth'


SMALL = 'small.png'


@pytest.mark.slow
@pytest.mark.parametrize('format', ['onnx', 'pt2'])
def test_a_file_of_one_size_is_compared_with_pytorch(trained, tmp_path, format):
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (150, 90, 3), np.uint8)).save(tmp_path / 'image.png')
    out = tmp_path / f'network.{format}'
    verified = '--verify', tmp_path / 'image.png'
    size = '--input-size', '96', '128'
    command = [sys.executable, '-u', TOOL, *trained, '--format', format, '--out', out, *size, *verified]
    done = run_command(command, merged=True, timeout=600)  # not in a fork: it starts processes of its own
    assert done.returncode == 0, done.stdout
    assert 'the network of one window' in done.stdout
    row = next(line for line in done.stdout.splitlines() if line.startswith('| image.png'))
    assert '96×128' in row
    assert float(re.search(r'= (\S+)', row).group(1)) <= 1e-5
    assert '100.0000%' in row
    assert [path.name for path in tmp_path.iterdir() if path.suffix == out.suffix] == [out.name]
    if format == 'pt2':
        network, about = load_pt2(out)
        assert about['mode'] == 'slide'
        x = torch.randn(1, 3, 96, 128)
        with torch.no_grad():
            expected = segmentor(load_config(trained[0]))(x, mode='tensor')
            assert network(x).shape == (1, expected.shape[1], 96, 128)


@pytest.mark.parametrize(
    ('arguments', 'names'),
    [
        (['--out', 'network.pt2'], '--out must end in .onnx'),
        (['--out', 'network.onnx', '--input-size', '0', '5'], '--input-size'),
        (['--out', '{exists}'], 'exists.onnx exists'),
        (['--out', 'network.onnx', '--verify', 'absent.png'], 'absent.png'),
        (['--out', 'network.onnx', '--verify', '{exists}'], 'exists.onnx'),
        (['--format', 'pt2', '--out', 'network.pt2', '--verify', SMALL], '16 pixels'),
        ([DETECTOR, '--out', 'network.onnx'], 'EncoderDecoder'),
    ],
)
def test_errors_come_before_the_export(trained, tmp_path, monkeypatch, arguments, names):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'exists.onnx').write_bytes(b'kept')
    Image.new('RGB', (200, 20)).save(tmp_path / SMALL)
    config, checkpoint = trained
    if arguments[0] == DETECTOR:
        config, *arguments = arguments
    arguments = [argument.format(exists=tmp_path / 'exists.onnx') for argument in arguments]
    done = run_command([sys.executable, TOOL, config, checkpoint, *arguments], merged=True)
    assert done.returncode in (1, 2)
    assert names in ' '.join(done.stdout.split())
    assert (tmp_path / 'exists.onnx').read_bytes() == b'kept'
    assert sorted(path.name for path in tmp_path.iterdir()) == ['exists.onnx', SMALL]


@pytest.mark.slow
def test_modules_of_custom_imports_are_imported_to_verify(tmp_path):
    (tmp_path / 'own_head.py').write_text(
        'from mmseg.registry import MODELS\n'
        'from mmattn.segmentation import BiCCHead\n'
        '@MODELS.register_module()\n'
        'class OwnHead(BiCCHead):\n'
        '    pass\n'
    )
    cfg = config('BiCCHead')
    torch.save(dict(state_dict=segmentor(cfg).state_dict()), tmp_path / 'weights.pth')
    cfg.model.decode_head.type = 'OwnHead'
    cfg.custom_imports = dict(imports=['own_head'])
    cfg.dump(tmp_path / 'config.py')
    Image.new('RGB', (90, 70)).save(tmp_path / SMALL)
    arguments = [tmp_path / 'config.py', tmp_path / 'weights.pth', '--format', 'pt2', '--out', tmp_path / 'network.pt2']
    environment = {**os.environ, 'PYTHONPATH': f'{tmp_path}{os.pathsep}{ROOT}'}
    command = [sys.executable, '-u', TOOL, *arguments, '--verify', tmp_path / SMALL]
    done = run_command(command, environment, merged=True, timeout=600)  # not in a fork: it starts processes of its own
    assert done.returncode == 0, done.stdout
    assert '100.0000%' in done.stdout
