"""How a command line ends, in this process: the code, the message, and when the traceback is shown."""

import io
import logging
import re
import sys
from types import SimpleNamespace

import pytest
from mmengine.config import Config
from mmengine.registry import HOOKS
from torch import distributed
from torch.hub import load_state_dict_from_url
from torch.utils.data import DataLoader

from mmattn.utils import command
from mmattn.utils.command import describe, needs_mmcv_operators, run
from mmattn.utils.files import write_text

from ..full_disk import full_disk


@pytest.fixture
def ends(monkeypatch, capsys):
    """``ends(main)``: how a tool of this name ends, and what it says."""
    monkeypatch.setattr(command, 'use_utf8', lambda: None)
    monkeypatch.setattr(command, '_log', lambda error: None)
    monkeypatch.setattr(command.logging, 'raiseExceptions', command.logging.raiseExceptions)
    monkeypatch.setattr(sys, 'argv', ['tools/tool.py'])
    monkeypatch.delenv('MMATTN_DEBUG', raising=False)
    for name in command.LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)

    def ends(main):
        with pytest.raises(SystemExit) as caught:
            run(main)
        code = caught.value.code  # with a text, Python prints it, and exits with 1
        return (1, code) if isinstance(code, str) else (code, capsys.readouterr().err.strip())

    return ends


def raising(error, cause=None):
    def main():
        raise error from cause

    return main


@pytest.mark.parametrize(
    ('error', 'code', 'said'),
    [
        (SystemExit(75), 75, ''),
        (SystemExit('no'), 1, 'tool.py: error: no'),
        (KeyboardInterrupt('Try again.'), 130, 'tool.py: Interrupted. Try again.'),
        (KeyboardInterrupt(), 130, 'tool.py: Interrupted.'),
        (ValueError('too small'), 1, 'tool.py: error: too small\n(MMATTN_DEBUG=1 shows the traceback)'),
    ],
)
def test_the_code_and_the_message(ends, error, code, said):
    assert ends(raising(error)) == (code, said)


@pytest.mark.parametrize('debug', ['', '0', '1'])
def test_tracebacks_are_for_errors_that_no_user_causes_or_if_they_are_asked_for(ends, monkeypatch, debug):
    monkeypatch.setenv('MMATTN_DEBUG', debug)
    cause = KeyError('cause')
    if debug == '1':
        for error, expected in ((ValueError('x'), ValueError), (SystemExit('no'), KeyError)):
            with pytest.raises(expected):
                run(raising(error, cause))
        assert ends(raising(SystemExit('no'))) == (1, 'tool.py: error: no')
    else:
        assert ends(raising(SystemExit('no'), cause)) == (1, 'tool.py: error: no')
        code, said = ends(raising(IndexError('x')))
        assert code == 1
        assert said.startswith('Traceback (most recent call last):\n')
        last = said.splitlines()[-1]
        assert last.startswith('tool.py: error: IndexError: x (')
        assert last.endswith(f'{__file__}:{raising.__code__.co_firstlineno + 2})')
    assert command.logging.raiseExceptions == (debug == '1')


def test_a_command_that_succeeds_returns(ends):
    assert run(lambda: None) is None
    assert run(lambda: 0) is None
    assert ends(lambda: 3) == (3, '')


@pytest.mark.parametrize('ranks', [dict(LOCAL_RANK='1'), dict(SLURM_LOCALID='2'), dict(LOCAL_RANK='0'), {}])
def test_the_first_process_has_a_head_start(ends, monkeypatch, ranks):
    slept = []
    monkeypatch.setattr(command.time, 'sleep', slept.append)
    for name, value in ranks.items():
        monkeypatch.setenv(name, value)
    assert ends(raising(ValueError('x')))[0] == 1
    assert slept == ([10.0] if ranks and '0' not in ranks.values() else [])


@pytest.fixture
def group():
    """A process group of this process alone."""
    distributed.init_process_group('gloo', store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize('is_lost', [False, True])
@pytest.mark.usefixtures('group')
def test_one_process_of_a_group_says_why_and_all_end_at_once(ends, monkeypatch, is_lost):
    """Without the store, each says it. What a process has printed and logged is not lost."""

    def leave(code):
        left.append([code, *(stream.buffer.getvalue().decode() for stream in streams), *slept, *shut])
        raise SystemExit

    def main():
        print('done so far', end='')
        raise ValueError('too small')

    monkeypatch.setattr(command.os, '_exit', leave)
    if is_lost:
        monkeypatch.setattr(distributed.distributed_c10d, '_get_default_store', lambda: None)
    left = []
    for _ in range(2):
        streams, slept, shut = [io.TextIOWrapper(io.BytesIO()) for _ in range(2)], [], []
        monkeypatch.setattr(sys, 'stdout', streams[0])
        monkeypatch.setattr(sys, 'stderr', streams[1])
        monkeypatch.setattr(command.time, 'sleep', slept.append)
        monkeypatch.setattr(command.logging, 'shutdown', lambda shut=shut: shut.append('logs'))
        ends(main)
    said = [1, 'done so far', 'tool.py: error: too small\n(MMATTN_DEBUG=1 shows the traceback)\n', 1.0, 'logs']
    assert left == [said, said if is_lost else [1, 'done so far', '', 'logs']]


@pytest.mark.parametrize('there', [True, False])
def test_operators_that_are_missing_are_named_with_their_installation(monkeypatch, there):
    monkeypatch.setattr(command, 'has_mmcv_operators', lambda: there)
    error = ModuleNotFoundError("No module named 'mmcv._ext'")
    assert ('onedl-mmcv' in describe(error)) == (not there)
    assert (describe(error) == str(error)) == there
    assert 'onedl-mmcv' not in describe(ModuleNotFoundError("No module named 'mmcv.ext'"))


def test_whether_mmcv_has_operators_is_seen_in_its_folder(monkeypatch, tmp_path):
    found = []
    monkeypatch.setattr(command, 'find_spec', lambda name: found[-1])
    for origin in (None, SimpleNamespace(origin=str(tmp_path / '__init__.py'))):
        found.append(origin)
        assert not command.has_mmcv_operators()
    (tmp_path / '_ext.cpython.so').touch()
    assert command.has_mmcv_operators()


@pytest.mark.parametrize(
    ('cfg', 'needed'),
    [
        (dict(default_scope='mmdet'), True),
        (dict(default_scope='mmseg', model=dict(type='EncoderDecoder')), False),
        (dict(model=dict(decode_head=dict(type='CCHead'))), True),
        (dict(model=dict(backbone=dict(dcn=dict(type='DCNv2')))), True),
        (dict(model=[dict(type='DCN')]), True),
        (dict(model=dict(type='BiCCHead')), False),
    ],
)
def test_configs_that_need_operators_of_mmcv(cfg, needed):
    assert needs_mmcv_operators(Config(cfg)) == needed


@pytest.mark.parametrize(
    ('error', 'said'),
    [
        (KeyError('name'), r'KeyError: name \(.*py:\d+\)'),
        (KeyError("'ConfigDict' object has no attribute 'model'"), "'ConfigDict' object has no attribute 'model'"),
        (FileNotFoundError(2, 'gone', 'a.png'), 'a.png: gone'),
        (FileNotFoundError(2, 'gone', b'a.png'), 'a.png: gone'),
        (OSError(28, 'full'), 'full'),
        (OSError('odd'), 'odd'),
        (ValueError('two', 'parts'), r"\('two', 'parts'\)"),
        (ValueError(), r'ValueError: raise error from cause \(.*'),
    ],
)
def test_an_error_is_described_in_one_line(error, said):
    with pytest.raises(type(error)) as caught:
        raising(error)()
    assert re.fullmatch(said, describe(caught.value))


class Unmasked(list):
    def __getitem__(self, index):
        raise ValueError('no mask: a.png')


def of_weights_that_cannot_be_downloaded(folder, patch):
    """Nothing listens at this address."""
    patch.setenv('TORCH_HOME', str(folder / 'home'))
    load_state_dict_from_url('http://127.0.0.1:9/r50.pth')


def of_a_file_on_a_full_disk(folder, patch):
    with full_disk(100):
        write_text(folder / 'scores.json', 'x' * 1000)


def of_a_log_file_on_a_full_disk(folder, patch):
    """The error of what the user waits for says so."""
    logger = logging.Logger('x')
    logger.addHandler(logging.FileHandler('/dev/full'))
    logger.error('a line')
    raise OSError(28, 'No space left on device', 'epoch_1.pth')


@pytest.mark.parametrize(
    ('fail', 'names'),
    [
        (lambda *_: next(iter(DataLoader(Unmasked([0]), num_workers=1))), 'error: no mask: a.png'),
        (lambda *_: HOOKS.build(dict(type='LoggerHook', intervall=2)), "LoggerHook.*'intervall'"),
        (of_weights_that_cannot_be_downloaded, 'to .*/home/hub/checkpoints'),
        (of_a_file_on_a_full_disk, '/scores.json: File too large'),
        (of_a_log_file_on_a_full_disk, 'epoch_1.pth: No space left on device'),
    ],
    ids=['worker', 'component', 'download', 'full disk', 'log'],
)
def test_errors_of_other_packages_are_one_message(ends, tmp_path, monkeypatch, fail, names):
    code, said = ends(lambda: fail(tmp_path, monkeypatch))
    assert code == 1
    assert re.search(names, said)
    assert said.startswith('tool.py: error: ')
    assert said.endswith('\n(MMATTN_DEBUG=1 shows the traceback)')
    assert 'Traceback' not in said


class Refuses:
    def __init__(self, text):
        raise ValueError(text)


@pytest.mark.parametrize(
    ('text', 'said'), [('too small', 'building Refuses: too small'), ('Refuses no size', 'Refuses no size')]
)
def test_a_component_that_refuses_an_argument_is_named_once(text, said):
    with pytest.raises(ValueError, match=text) as caught:
        HOOKS.build(dict(type=Refuses, text=text))
    if sys.version_info >= (3, 11):  # which has qualified names
        assert describe(caught.value) == said
