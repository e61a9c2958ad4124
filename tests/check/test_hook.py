"""What a run is told: by the tools, in the log and in the report, and after each remedy that is printed."""

import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config

from mmattn.check import CheckHook, driver
from mmattn.check.rules import ERRORS

from ..forked_tools import ROOT, tool
from ..frozen.refusals import MASK, PROJECTS, Project, write
from .conftest import data_set

LABELS = Project(files={'ann/val/val_2.png': MASK + 5})
EARLIER = Project("""
default_hooks['data_check'] = dict(type='mmattn.SegDataCheckHook', allow_absent=['a'])
test_dataloader, test_evaluator, test_cfg = val_dataloader, val_evaluator, dict(type='TestLoop')
""")


@pytest.fixture
def train(attempt, tmp_path):
    """``train(project, *arguments, name='train.py')``: the exit status, and what was said."""

    def run(project, *arguments, command=None):
        config = write(project, tmp_path)
        command = command or tool('train.py', config)
        done = attempt(*command, '--work-dir', tmp_path / 'work', *arguments, merged=True)
        return done.returncode, done.stdout

    return run


def remedies(said):
    """What is to be written into the config, and added to the command, as it is printed."""
    return re.search(r'^check = .+$', said, re.M)[0], re.search(r"^--cfg-options '(.+)'$", said, re.M)[1]


@pytest.mark.parametrize('rule', [rule.__name__ for rule in ERRORS])
def test_each_error_has_a_switch(root, tmp_path, monkeypatch, rule):
    def fault(run):
        yield 'a place', 'what is wrong'

    fault.__name__ = rule
    monkeypatch.setattr(driver, 'ERRORS', (fault,))
    runner = SimpleNamespace(cfg=Config(dict(train_dataloader=dict(dataset=data_set(root)))), work_dir=str(tmp_path))
    with pytest.raises(ValueError, match=f'{rule}: a place: what is wrong') as caught:
        driver.check_data(runner, ['train_dataloader'])
    line, option = remedies(str(caught.value))
    settings = {}
    exec(line, settings)
    runner.cfg.check = settings['check']
    driver.check_data(runner, ['train_dataloader'])
    runner.cfg.pop('check')
    key, _, value = option.partition('=')
    runner.cfg.merge_from_dict({key: value.strip('[]').split(',')})
    driver.check_data(runner, ['train_dataloader'])


def test_a_rule_that_fails_is_a_warning(root, tmp_path, monkeypatch):
    def fails(run):
        yield 'a place', 'what is wrong'
        raise KeyError('val_begin')

    monkeypatch.setattr(driver, 'ERRORS', (fails, *ERRORS))
    cfg = Config(dict(train_dataloader=dict(dataset=data_set(root))))
    [fault] = driver.find_faults(SimpleNamespace(cfg=cfg), ['train_dataloader'])
    assert not fault.is_error
    assert 'KeyError' in fault.text
    assert __file__ in fault.text


def test_the_report_has_all_and_the_error_the_first(root, tmp_path):
    """Warnings of a kind are one line, with their number."""
    runner = SimpleNamespace(cfg=Config(), work_dir=str(tmp_path))
    faults = [driver.Fault('labels', True, f'{i}.png', 'labels 9') for i in range(30)]
    with pytest.raises(ValueError, match='30 errors') as caught:
        driver.tell(runner, [*faults, driver.Fault('ignored', False, 'caf\udce9.png', 'ignored')], 'check.txt')
    assert '19.png' in str(caught.value)
    assert '20.png' not in str(caught.value)
    report = (tmp_path / 'check.txt').read_text(encoding='utf-8')
    assert all(f'{i}.png' in report for i in range(30))
    assert 'caf' in report
    driver.tell(runner, [], 'check.txt')
    assert not (tmp_path / 'check.txt').exists()


def test_a_test_of_other_classes_is_a_warning(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(driver, 'print_log', lambda text, *_: said.append(text))
    loader = SimpleNamespace(dataset=SimpleNamespace(metainfo=dict(classes=('a', 'b'))))
    runner = SimpleNamespace(cfg=Config(), work_dir=str(tmp_path), _test_loop=SimpleNamespace(dataloader=loader))
    runner._load_from, runner._resume = 'a.pth', False
    for classes, count in ((('a', 'b'), 0), (('b', 'a'), 1)):
        CheckHook().after_load_checkpoint(runner, dict(meta=dict(dataset_meta=dict(classes=classes))))
        assert len(said) == count


@pytest.mark.e2e
def test_train_stops_before_training_and_names_all(train, tmp_path):
    """With the printed line, it trains. Without the check, its weights are the same, to the bit."""
    code, said = train(LABELS)
    assert code == 1
    assert f'{tmp_path}/data/ann/val/val_2.png: ' in said
    assert 'val_2.png' in (tmp_path / 'work/check.txt').read_text(encoding='utf-8')
    line, option = remedies(said)
    weights = []
    for project, arguments in (
        (Project(f'{line}\nrandomness = dict(seed=0)\n', LABELS.files), ()),
        (Project('randomness = dict(seed=0)\n', LABELS.files), ('--cfg-options', option)),
        (Project('check = None\nrandomness = dict(seed=0)\n', LABELS.files), ()),
    ):
        code, said = train(project, *arguments)
        assert code == 0, said[-3000:]
        weights.append(torch.load(tmp_path / 'work/iter_4.pth', weights_only=False)['state_dict'])
        shutil.rmtree(tmp_path / 'work')
    for other in weights[1:]:
        assert all(torch.equal(weights[0][name], other[name]) for name in weights[0])


@pytest.mark.e2e
def test_all_processes_stop(train, tmp_path):
    config = write(LABELS, tmp_path)
    code, said = train(LABELS, command=tool('dist_train.sh', config, '2'))
    assert code == 1
    assert 'ann/val/val_2.png' in said


@pytest.mark.e2e
def test_a_config_of_an_earlier_release(train, tmp_path):
    """The hook that is gone says what to add, with which a run trains, goes on, and is tested."""
    code, said = train(EARLIER)
    option = re.search(r'--cfg-options (\S+)', said)[1].rstrip('"\'')
    assert code == 1
    tested = tool('test.py', tmp_path / 'config.py', tmp_path / 'work/iter_4.pth')
    for command, arguments in ((None, ()), (None, ('--resume',)), (tested, ())):
        code, said = train(EARLIER, '--cfg-options', option, *arguments, command=command)
        assert code == 0, said[-3000:]


@pytest.mark.e2e
def test_a_hook_in_the_config_is_the_only_one(train):
    code, said = train(Project("custom_hooks = [dict(type='mmattn.CheckHook')]\n"))
    assert code == 0, said[-3000:]
    assert said.count('Sanity validation of one batch') == 1


@pytest.mark.e2e
def test_without_the_folder_the_tools_run(run_python, tmp_path):
    for name in ('mmattn', 'tools'):
        ignore = shutil.ignore_patterns('__pycache__', 'check', '.mim')
        shutil.copytree(ROOT / name, tmp_path / 'copy' / name, ignore=ignore)
    config = write(PROJECTS['sound'], tmp_path)
    work, copy = tmp_path / 'work', tmp_path / 'copy'
    code = """
import runpy, sys
sys.argv = {!r}
sys.meta_path[:] = [finder for finder in sys.meta_path if 'editable' not in repr(finder)]
runpy.run_path(sys.argv[0], run_name='__main__')
"""
    arguments = [str(copy / 'tools/train.py'), str(config), '--work-dir', str(work)]
    run_python(code.format(arguments), PYTHONPATH=str(copy))
    test = ['test_dataloader=val_dataloader', 'test_evaluator=val_evaluator', "test_cfg = dict(type='TestLoop')"]
    config.write_text('\n'.join([config.read_text(), *test]))
    arguments = [str(copy / 'tools/test.py'), str(config), str(work / 'iter_4.pth'), '--work-dir', str(work)]
    assert 'mIoU' in run_python(code.format(arguments), PYTHONPATH=str(copy))
