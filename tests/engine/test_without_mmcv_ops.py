"""mmcv without its compiled operators, as the quick start installs it."""

import json
import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

from mmattn.utils import config_path

pytestmark = pytest.mark.e2e
stock_does_without = pytest.mark.skipif(
    'mmsegmentation' in packages_distributions().get('mmseg', ()),
    reason="mmsegmentation 1.2.2 imports mmcv's operators itself",
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope='module')
def without_operators(tmp_path_factory):
    """Run Python with mmcv but for its compiled operators; return its exit code, stdout and stderr."""
    folder = tmp_path_factory.mktemp('mmcv_without_operators')
    (folder / 'mmcv').mkdir()
    for entry in Path(find_spec('mmcv').origin).parent.iterdir():
        if not entry.name.startswith(('_ext', '__pycache__')):
            (folder / 'mmcv' / entry.name).symlink_to(entry)
    env = {**os.environ, 'PYTHONPATH': f'{folder}{os.pathsep}{ROOT}', 'PYTHONDONTWRITEBYTECODE': '1'}

    def run(*arguments):
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    run.folder = folder
    return run


@pytest.mark.parametrize(
    'config',
    [
        'bi_cc/cc_r18-d8-half_1xb8-50_buildings-256x256.py',
        'attended_residual/fcn_r50-d8-attn0010-dcn_8xb1-60k_cityscapes-769x769.py',
        'attended_residual/faster-rcnn_r50-w16_fpn_1xb4-100_trees-400x400.py',
    ],
)
def test_a_component_that_needs_operators_is_an_error_that_names_the_command(config, without_operators, tmp_path):
    code, _, said = without_operators(ROOT / 'tools/train.py', config_path(config), '--work-dir', tmp_path)
    assert code == 1
    assert 'train.py: error: The config requires the operators of mmcv' in said
    assert 'bash tools/environment/setup.sh --with-mmcv-ops' in said


STEP = """
import sys
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


@stock_does_without
def test_segmentation_and_video_need_none(without_operators):
    code, out, said = without_operators('-W', 'ignore', '-c', STEP)
    assert (code, out[-10:]) == (0, 'True\nFalse'), said


AGREEMENT = """
import sys
sys.path.insert(0, sys.argv[1])
import alternatives, measuring, workloads
print(alternatives.criss_cross_attention().forward.__code__.co_filename)
for dtype, tolerance in measuring.TOLERANCES.items():
    work = workloads.OPERATORS['P2'](True, dtype, 'cpu')
    for who in (measuring.OURS, *work.peers):
        measuring.verify(work, who, 'auto', tolerance)
    print(*work.peers, sep=', ')
"""


def test_the_benchmark_of_operators_has_the_criss_cross_attention_of_mmcv(without_operators):
    """Its values and gradients are those of ``grid_attention`` without positions."""
    code, out, said = without_operators('-c', AGREEMENT, ROOT / 'tools/benchmarks')
    assert code == 0, said
    file, *peers = out.splitlines()
    assert Path(file) == without_operators.folder / 'mmcv/ops/cc_attention.py'
    assert peers == ['mmcv CrissCrossAttention, content only'] * 3


@pytest.mark.parametrize(
    ('file', 'options'),
    [
        ('layers.py', ['--only', 'Bi-CC']),
        pytest.param(
            'end_to_end.py',
            [f'bi_cc/{name}_r18-d8-half_1xb8-50_buildings-256x256.py' for name in ('cc', 'bi-cc')],
            marks=stock_does_without,
        ),
    ],
)
def test_benchmarks_compare_bi_cc_with_mmcv(file, options, without_operators):
    """A layer and a network: the stock ones, too, do without compiled operators."""
    path = without_operators.folder / f'{file}.json'
    command = [ROOT / 'tools/benchmarks' / file, *options, '--device', 'cpu', '--small', '--repeats', '1']
    code, out, said = without_operators(*command, '--json', path)
    assert code == 0, out + said
    measured = json.loads(path.read_text())
    assert len(measured) == 2  # passes, or training and test
    assert all(x['time_ratio'] == x['ours_s'] / x['peer_s'] for x in measured)
