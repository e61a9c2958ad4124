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
import mmattn.utils.command
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
