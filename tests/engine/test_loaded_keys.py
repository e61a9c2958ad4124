"""Whichever way weights are loaded, the log has the share of the model's keys that they fill; none is an error."""

import re

import pytest
import torch
from mmengine.model import BaseModule
from mmengine.runner import load_checkpoint
from torch import nn

from mmattn.engine import guard_checkpoints

from ..forked_tools import tool
from .test_tools import CONFIG, SMALL

PRETRAINED = 'model.backbone.init_cfg.type=Pretrained', 'model.backbone.init_cfg.checkpoint=PATH'
UNCHECKED = 'default_hooks.checkpoint_keys.enabled=False'  # the hook of our configs that wants every key
SHARE = re.compile(r'fills (\d+) of (\d+) keys of (\w+)')


@pytest.fixture(scope='module')
def weights(trained, tmp_path_factory):
    """Trained weights under other names, those of the backbone, of one layer of it, and of the head."""
    folder = tmp_path_factory.mktemp('weights')
    checkpoint = torch.load(trained[0] / 'iter_2.pth', weights_only=False)
    state = checkpoint.pop('state_dict')
    backbone = {name.removeprefix('backbone.'): x for name, x in state.items() if name.startswith('backbone.')}
    contents = dict(
        other={f'net.{name}': x for name, x in state.items()},
        backbone=dict(backbone, fc=torch.ones(1)),  # a classifier, as those of ImageNet have
        layer={name: x for name, x in backbone.items() if name.startswith('layer1')},
        head={name: x for name, x in state.items() if name.startswith('decode_head')},
    )
    for name, content in contents.items():
        torch.save(dict(checkpoint, state_dict=content), folder / f'{name}.pth')
    return folder


WAYS = {
    'init_cfg': ('train.py', PRETRAINED),
    'init_cfg with a prefix': ('train.py', (*PRETRAINED, 'model.backbone.init_cfg.prefix=net.decode_head')),
    'load_from': ('train.py', ('load_from=PATH', UNCHECKED)),
    'resume': ('train.py --resume PATH', (UNCHECKED,)),
    'test': ('test.py PATH', (UNCHECKED,)),
}


def words(way, path, work_dir):
    command, options = WAYS[way]
    program, *arguments = (word.replace('PATH', str(path)) for word in command.split())
    options = [option.replace('PATH', str(path)) for option in options]
    return tool(program, CONFIG, *arguments, '--work-dir', work_dir, '--cfg-options', *SMALL, *options)


# By default, as the config of a model names them and as a test does.
@pytest.mark.parametrize(
    'way', [way if way in ('init_cfg', 'test') else pytest.param(way, marks=pytest.mark.e2e) for way in WAYS]
)
def test_weights_of_which_no_key_fits_end_a_run(way, attempt, weights, tmp_path):
    """It names both, and has not trained."""
    path = weights / 'other.pth'
    done = attempt(*words(way, path, tmp_path / 'out'))
    assert done.returncode == 1, done.stdout[-2000:]
    assert f'{path} fills ' in done.stderr
    filled, total, model = SHARE.search(done.stderr).groups()
    assert (filled, model) == ('0', 'ResNet' if 'init_cfg' in way else 'EncoderDecoder')
    assert int(total) > 50
    assert not list(tmp_path.rglob('*.pth'))


@pytest.mark.parametrize(
    ('way', 'name', 'missing'),
    [
        ('init_cfg', 'backbone', ''),
        pytest.param('init_cfg', 'layer', ' conv1.', marks=pytest.mark.e2e),
        ('load_from', 'head', ' backbone.'),
        pytest.param('test', 'head', ' backbone.', marks=pytest.mark.e2e),
    ],
)
def test_the_share_is_logged_and_a_part_is_a_warning(way, name, missing, run, weights, tmp_path):
    log = run(*words(way, weights / f'{name}.pth', tmp_path / 'out'))
    (line,) = [line for line in log.splitlines() if f'{name}.pth fills' in line]
    filled, total = map(int, SHARE.search(line).groups()[:2])
    assert (filled < total, 'WARNING' in line, missing in line) == (bool(missing), bool(missing), True)
    assert filled > 0


class Renamed(BaseModule):
    """Converts old weights, of another name and shape, and has what no checkpoint of it holds."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.scale = nn.Parameter(torch.zeros(1))
        self.register_buffer('offsets', torch.arange(3), persistent=False)

    def _load_from_state_dict(self, state_dict, prefix, *args):
        if f'{prefix}gain' in state_dict:
            state_dict[f'{prefix}scale'] = state_dict.pop(f'{prefix}gain').reshape(1)
        super()._load_from_state_dict(state_dict, prefix, *args)


@pytest.fixture
def logged(monkeypatch):
    said = []
    monkeypatch.setattr('mmattn.engine.loaded_keys.print_log', lambda text, *_: said.append(text))
    guard_checkpoints()
    return said


def test_what_a_module_converts_is_filled(logged, tmp_path):
    """So are batch norms without a counter; a weight of another shape is not."""
    model = Renamed()
    state = dict(model.norm.state_dict(prefix='norm.'), gain=torch.tensor(0.7))
    del state['norm.num_batches_tracked']
    for _ in range(2):  # the same weights again
        torch.save(state, tmp_path / 'old.pth')
        load_checkpoint(model, str(tmp_path / 'old.pth'))
    state['norm.weight'] = torch.ones(3)
    torch.save(state, tmp_path / 'other.pth')
    load_checkpoint(model, str(tmp_path / 'other.pth'))
    assert [SHARE.search(text).groups() for text in logged] == [('5', '5', 'Renamed')] * 2 + [('4', '5', 'Renamed')]
    assert 'norm.weight' in logged[2]
    assert 'norm.bias' not in logged[2]


@pytest.mark.slow
def test_modules_of_mmseg_that_load_by_themselves(run_python, tmp_path):
    """They import the function that loads; the tools read the config before they import them."""
    torch.save(dict(state_dict=dict(x=torch.ones(1))), tmp_path / 'x.pth')
    code = f"""
from mmattn.engine import load_config
load_config({str(CONFIG)!r})
from mmseg.models.backbones import VisionTransformer
init_cfg = dict(type='Pretrained', checkpoint={str(tmp_path / 'x.pth')!r})
try:
    VisionTransformer(img_size=32, embed_dims=8, num_layers=1, num_heads=1, init_cfg=init_cfg).init_weights()
except ValueError as error:
    print(error)
"""
    assert f'{tmp_path / "x.pth"} fills 0 of' in run_python(code)
