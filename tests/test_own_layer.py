"""What docs/components.md says on a layer of your own: its tests, its config, and the comparison run as printed."""

import re
import sys
from pathlib import Path

import pytest
import torch
from mmengine.registry import MODELS

from mmattn.engine import load_config

from .forked_tools import tool
from .requirements import requires

PAGE = Path(__file__).parents[1] / 'docs/components.md'
SECTION = PAGE.read_text(encoding='utf-8').partition('### A layer of your own')[2].partition('\n## ')[0]
LAYER, TESTS, MINE, PLAIN = re.findall(r'```python\n(.*?)```', SECTION, re.S)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The reader's folder, with the files of the page."""
    for name, code in {'my_layers.py': LAYER, 'mine.py': MINE, 'plain.py': PLAIN}.items():
        (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop('my_layers', None)
    MODELS.module_dict.pop('PooledAttention', None)


def run_tests():
    """Run the tests of the page; return the names of those that fail."""
    variables, failed = {}, []
    exec(TESTS, variables)
    for name in (name for name in variables if name.startswith('test_')):
        cases = [mark.args[1] for mark in getattr(variables[name], 'pytestmark', ())]
        try:
            for case in cases[0] if cases else [()]:
                variables[name](*[case] if cases else ())
        except (AssertionError, RuntimeError):  # gradcheck's is a RuntimeError
            failed.append(name)
    return failed


@pytest.mark.slow
@pytest.mark.every_case
@requires('onnx', 'onnxruntime', 'onnxscript')
@pytest.mark.parametrize(
    ('right', 'wrong', 'failed'),
    [
        ('', '', []),
        ('.softmax(-1)', '.softmax(-1).detach()', ['test_gradients']),
        ('self.pool(x)', 'self.pool(x).mean(0, keepdim=True)', ['test_any_size_and_no_image_depends_on_another']),
        ('AvgPool2d(cells, ceil_mode=True)', 'AdaptiveAvgPool2d(cells)', ['test_export']),
        ('.unflatten(2, x.shape[2:])', '.unflatten(2, x.shape[2:]).detach()', ['test_gradients']),
        ('return (value', 'return 0 * (value', ['test_it_starts_as_the_identity_and_learns']),
    ],
)
def test_the_tests_of_the_page_find_what_is_wrong(folder, right, wrong, failed):
    assert right in LAYER
    (folder / 'my_layers.py').write_text(LAYER.replace(right, wrong) if right else LAYER)
    assert run_tests() == failed


def test_the_layer_runs_in_its_config(folder):
    model = MODELS.build(load_config('mine.py').model).eval()
    assert sum(type(module).__name__ == 'PooledAttention' for module in model.modules()) == 6 + 3
    plain = MODELS.build(load_config('plain.py').model).eval()
    plain.load_state_dict({name: x for name, x in model.state_dict().items() if name in plain.state_dict()})
    x = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))


@pytest.mark.e2e
def test_the_layer_is_compared(folder, run):
    (command,) = re.findall(r'^python tools/compare\.py (.+) --seeds 3$', SECTION, re.M)
    small = ['train_cfg.max_iters=2', 'train_dataloader.batch_size=2', 'train_dataloader.num_workers=0']
    small += ['train_dataloader.persistent_workers=False', 'model.data_preprocessor.size=(32,32)']
    small += ['train_dataloader.dataset.pipeline.3.crop_size=(32,32)']
    run(
        *tool('compare.py', *command.split(), '--seeds', '1', '--cfg-options', *small),
        PYTHONPATH=f'{folder}:{PAGE.parents[1]}',
    )
    table = (folder / 'work_dirs/compare_plain_mine/comparison.md').read_text()
    assert re.findall(r'^\| (plain|mine) \|', table, re.M) == ['plain', 'mine']
    assert re.findall(r'^\* ([\w.]+):', table, re.M) == ['model.backbone.plugins']
