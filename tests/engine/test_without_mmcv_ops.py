"""mmcv without its compiled operators, as the quick start installs it."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from mmattn.utils import config_path

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope='module')
def without_operators(tmp_path_factory):
    """A folder with mmcv but for its compiled operators, and the environment in which Python finds it first."""
    folder = tmp_path_factory.mktemp('mmcv_without_operators')
    (folder / 'mmcv').mkdir()
    for entry in Path(find_spec('mmcv').origin).parent.iterdir():
        if not entry.name.startswith(('_ext', '__pycache__')):
            (folder / 'mmcv' / entry.name).symlink_to(entry)
    return {**os.environ, 'PYTHONPATH': os.pathsep.join([str(folder), str(ROOT)]), 'PYTHONDONTWRITEBYTECODE': '1'}


@pytest.mark.parametrize(
    'config',
    [
        'bi_cc/cc_r18-d8-half_1xb8-50_buildings-256x256.py',
        'attended_residual/fcn_r50-d8-attn0010-dcn_8xb1-60k_cityscapes-769x769.py',
        'attended_residual/faster-rcnn_r50-w16_fpn_1xb4-100_trees-400x400.py',
    ],
)
def test_a_component_that_needs_operators_is_an_error_that_names_the_command(config, without_operators, tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / 'tools/train.py', config_path(config), '--work-dir', tmp_path],
        env=without_operators,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert 'train.py: error: The config requires the operators of mmcv, which is installed without them.' in done.stderr
    assert 'bash tools/environment/setup.sh --with-mmcv-ops' in done.stderr


STEP = """
import sys
from mmattn.utils.command import silence
silence()
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmattn.utils import config_path
import mmattn.layers, mmattn.segmentation, mmattn.video
cfg = Config.fromfile(config_path('bi_cc/bi-cc_r18-d8-half_1xb8-50_buildings-256x256.py'))
init_default_scope(cfg.default_scope)
model = MODELS.build(cfg.model)
model.eval()
with torch.no_grad():
    print(float(model(torch.linspace(-2, 2, 3 * 64 * 64).view(1, 3, 64, 64), mode='tensor').std()) > 0)
print('mmcv._ext' in sys.modules, end='')
"""


def test_segmentation_and_video_need_none(without_operators, tmp_path):
    """Nothing is printed either: a warning about what is not used would be noise."""
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', STEP],
        env=without_operators,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, 'True\nFalse', '')


AGREEMENT = """
import sys
sys.path.insert(0, sys.argv[1])
import alternatives, ops
print(alternatives.criss_cross_attention().forward.__code__.co_filename)
for dtype, tolerance in ops.TOLERANCES.items():
    work = ops.WORKLOADS['P2'](False, dtype, 'cpu')
    ops.verify('P2', work, tolerance)
    print(*work.peers, sep=', ')
"""


def test_the_benchmark_of_operators_has_the_criss_cross_attention_of_mmcv(without_operators):
    """Its values and gradients are those of ``grid_attention`` without positions."""
    done = subprocess.run(
        [sys.executable, '-c', AGREEMENT, ROOT / 'tools/benchmarks'],
        env=without_operators,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    file, *peers = done.stdout.splitlines()
    mmcv = Path(without_operators['PYTHONPATH'].split(os.pathsep)[0], 'mmcv')
    assert Path(file) == mmcv / 'ops/cc_attention.py'
    assert peers == ['mmcv CrissCrossAttention, content only'] * 3


def test_the_benchmark_of_layers_compares_bi_cc_with_mmcv(without_operators):
    command = [sys.executable, ROOT / 'tools/benchmarks/layers.py', '--device', 'cpu', '--small', '--repeats', '1']
    done = subprocess.run(
        [*command, '--only', 'Bi-CC', '--dtypes', 'float32'], env=without_operators, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rows = [line.strip('| ').split(' | ') for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == ['Bi-CC'] * 2 + ['CrissCrossAttention'] * 2
    assert [row[4] for row in rows[2:]] == ['1.00'] * 2
    for ours, stock in zip(rows, rows[2:]):
        assert float(ours[4]) == pytest.approx(float(ours[3]) / float(stock[3]), abs=0.005, rel=0.02)
