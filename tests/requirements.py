"""What a test requires that not every environment has: an optional package or program, or a real data set.

A test, a module or a case says so by one mark: ``@requires('mmcv operators')``, ``pytestmark = requires('triton')``,
and for the model of a shipped config ``pytest.param(name, marks=required_by(name))``. Where a part is missing, the test
is skipped, and the reason says how to get the part. The part is imported in tests, so that all can be collected.
"""

import os
import shutil
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from mmengine.config import Config

from mmattn.ops import library
from mmattn.utils import config_path
from mmattn.utils.command import has_mmcv_operators, needs_mmcv_operators

ROOT = Path(__file__).parents[1]
# Data sets, and their folders in `shared/data` beside the checkout. Configs read $NAME_ROOT, or data/NAME.
DATA = {
    **{
        name: name
        for name in ('buildings', 'camvid', 'coco_vqa_mini', 'daquar', 'fasseg', 'flickr8k_entities', 'multi30k')
    },
    **{f'{name}_source': name for name in ('coco_vqa_mini', 'daquar', 'easy_vqa')},
    'davis_240p': 'davis',
    'flickr8k': 'flickr8k_entities',
}


def real_data(name):
    """The folder of a data set, which is there if the test has the mark ``requires(name)``."""
    places = ROOT / 'data' / name, ROOT.parent / 'shared/data' / DATA[name]
    given = os.environ.get(f'{name.upper()}_ROOT')
    return Path(given) if given else next(filter(Path.is_dir, places), places[0])


PARTS = {  # whether it is here, and what to do otherwise
    'mmcv operators': (has_mmcv_operators(), 'bash tools/environment/setup.sh --with-mmcv-ops'),
    'native operators': (library.UNAVAILABLE_REASON is None, library.UNAVAILABLE_REASON),
    **{
        name: (find_spec(name) is not None, f'pip install {name}')
        for name in (
            'av',
            'deepspeed',
            'mmdet',
            'onnx',
            'onnxruntime',
            'onnxscript',
            'sacrebleu',
            'sphinx',
            'tifffile',
            'torchvision',
            'triton',
        )
    },
    **{name: (shutil.which(name) is not None, 'it is not on the PATH') for name in ('g++', 'java', 'nvcc')},
    **{name: (real_data(name).is_dir(), f'{name.upper()}_ROOT names its folder') for name in DATA},
}


ADDED = {
    'mmcv operators',
    'av',
    'sphinx',
    'triton',
}  # by run_tests.sh --all and --rest; without options, it has the others


def requires(*parts):
    """The mark of a test that requires some of PARTS."""
    return pytest.mark.requires(*parts)


def required_by(name):
    """The mark of a test that builds the model of a shipped config, which is read when the test is to run."""
    return pytest.mark.required_by(name)


def missing_of(parts):
    """Say which of some parts are missing, if any are, and how to get them."""
    gone = [f'{part}: {remedy}' for part in parts for is_here, remedy in [PARTS[part]] if not is_here]
    return f'requires {"; ".join(gone)}' if gone else None


@cache
def parts_for(name):
    """The parts that the model of a shipped config requires."""
    return ['mmcv operators'] if needs_mmcv_operators(Config.fromfile(config_path(name))) else []


def required_parts(test):
    """The parts that a collected test requires."""
    by_configs = [part for mark in test.iter_markers('required_by') for part in parts_for(*mark.args)]
    return [part for mark in test.iter_markers('requires') for part in mark.args] + by_configs
