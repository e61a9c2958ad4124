"""What the command lines share: one message an error, the exit code, output in any encoding, quiet imports."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASCII = dict(LC_ALL='C', PYTHONUTF8='0', PYTHONCOERCECLOCALE='0', PYTHONIOENCODING='ascii')
TOOLS = sorted(path for path in ROOT.glob('tools/**/*.py') if "if __name__ == '__main__':" in path.read_text('utf-8'))


def run(*command, **env):
    """Run a Python command with this package; return its exit code, stdout and stderr."""
    environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1', **env}
    words = [sys.executable, *map(str, command)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, encoding='utf-8', timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def fail(tmp_path):
    """Run a tool whose ``main`` has this body; return its exit code, stdout and stderr."""

    def fail(*body, **env):
        tool = tmp_path / 'tool.py'
        lines = ['from mmattn.utils.command import run', 'def main():', *(f'    {line}' for line in body), 'run(main)']
        tool.write_text('\n'.join(lines), encoding='utf-8')
        return run(tool, **env)

    return fail


HINT = '(MMATTN_DEBUG=1 shows the traceback)\n'


@pytest.mark.parametrize(
    ('body', 'code', 'said'),
    [
        ('return 3', 3, ''),
        ('pass', 0, ''),
        ('raise SystemExit(75)', 75, ''),
        ('raise SystemExit("no")', 1, 'tool.py: error: no\n'),
        ('raise ValueError("too small")', 1, f'tool.py: error: too small\n{HINT}'),
        ('open("/nowhere/file")', 1, f'tool.py: error: /nowhere/file: No such file or directory\n{HINT}'),
        ('raise KeyboardInterrupt', 130, 'tool.py: Interrupted.\n'),
        ('raise KeyboardInterrupt("Try again.")', 130, 'tool.py: Interrupted. Try again.\n'),
        ('import argparse; argparse.ArgumentParser("x").error("y")', 2, 'usage: x [-h]\nx: error: y\n'),
    ],
)
def test_an_error_is_one_message_and_a_code(fail, body, code, said):
    assert fail(body) == (code, '', said)


def test_the_variable_shows_the_traceback(fail):
    code, _, said = fail('raise ValueError("too small")', MMATTN_DEBUG='1')
    assert code == 1
    assert 'Traceback' in said
    assert said.endswith('ValueError: too small\n')
    assert 'Traceback' not in fail('raise ValueError("too small")', MMATTN_DEBUG='0')[2]


def test_an_error_that_no_user_causes_keeps_its_traceback(fail):
    code, _, said = fail('return [][3]')
    assert code == 1
    assert 'Traceback (most recent call last)' in said
    assert re.match(r'tool.py: error: IndexError: .*tool.py:3\)$', said.splitlines()[-1])


def test_the_log_file_has_the_traceback_of_any_error(fail, tmp_path):
    log = tmp_path / 'x.log'
    logger = f'from mmengine.logging import MMLogger; MMLogger.get_instance("x", log_file={str(log)!r})'
    for body, message in (('raise ValueError("small")', 'small'), ('return [][3]', 'IndexError: list index')):
        code, _, said = fail(logger, body)
        assert code == 1
        assert said.startswith(f'tool.py: error: {message}')
        assert str(log) in said
        assert 'Traceback' not in said
        assert f'tool.py", line 4, in main\n    {body}' in log.read_text('utf-8')


@pytest.mark.parametrize(
    ('lines', 'names'),
    [
        # In a worker of a data loader: the message alone.
        (
            [
                'from torch.utils.data import DataLoader',
                'class Data:',
                '    def __len__(self): return 1',
                '    def __getitem__(self, i): raise ValueError("no mask:\\n  a.png")',
                'next(iter(DataLoader(Data(), num_workers=1)))',
            ],
            ['no mask:\n  a.png\n'],
        ),
        # A component of a config.
        (
            ['import mmengine.hooks; mmengine.registry.HOOKS.build(dict(type="LoggerHook", intervall=2))'],
            ['LoggerHook', "'intervall'"],
        ),
        # Weights that cannot be downloaded: nothing listens at this address.
        (
            ['from torch.hub import load_state_dict_from_url as load', 'load("http://127.0.0.1:9/r50.pth", "{tmp}")'],
            ['a file cannot be downloaded', '~/.cache/torch/hub/checkpoints'],
        ),
        # A file on a full disk.
        (
            [
                'import resource, signal',
                'signal.signal(signal.SIGXFSZ, signal.SIG_IGN)',
                'resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))',
                'from mmattn.utils.files import write_text',
                'write_text("{tmp}/scores.json", "x" * 1000)',
            ],
            ['/scores.json: File too large'],
        ),
        # A log file on a full disk: the error of what the user waits for says so.
        (
            [
                'import logging',
                'logging.getLogger("x").addHandler(logging.FileHandler("/dev/full"))',
                'logging.getLogger("x").error("a line")',
                'raise OSError(28, "No space left on device", "epoch_1.pth")',
            ],
            ['epoch_1.pth: No space left on device'],
        ),
    ],
    ids=['worker', 'component', 'download', 'full disk', 'log'],
)
def test_errors_of_other_packages_are_one_message(fail, tmp_path, lines, names):
    code, _, said = fail(*(line.replace('{tmp}', str(tmp_path)) for line in lines))
    assert code == 1
    assert said.startswith('tool.py: error: ')
    assert said.endswith(HINT)
    assert 'Traceback' not in said
    assert all(name in said for name in names)


@pytest.mark.parametrize('env', [ASCII, {**ASCII, 'PYTHONIOENCODING': 'latin-1'}], ids=['ascii', 'latin-1'])
def test_output_and_files_in_another_encoding(fail, tmp_path, env):
    path = tmp_path / 'x.txt'
    code, out, _ = fail(f'open({str(path)!r}, "w").write("1×2 ≥ ü"); print("≥")', **env)
    assert (code, out) == (0, '\\u2265\n')
    assert path.read_text('utf-8') == '1×2 ≥ ü'


@pytest.mark.parametrize(
    'tool',
    [pytest.param(tool, marks=[] if tool.name == 'train.py' else pytest.mark.slow, id=tool.name) for tool in TOOLS],
)
def test_help_of_every_tool_in_ascii(tool):
    code, out, said = run(tool, '--help', **ASCII)
    assert code == 0, said
    assert out.startswith('usage: ')
    assert said == ''


def test_every_file_is_utf_8():
    """In the sources: calls that read or write text say so."""
    without = []
    for path in [*ROOT.glob('mmattn/**/*.py'), *ROOT.glob('tools/**/*.py'), ROOT / 'setup.py']:
        for node in ast.walk(ast.parse(path.read_text('utf-8'))):
            if isinstance(node, ast.Call) and _opens_text(node) and 'encoding' not in {k.arg for k in node.keywords}:
                without.append(f'{path.relative_to(ROOT)}:{node.lineno}')
    assert not without


def _opens_text(call):
    method = call.func.attr if isinstance(call.func, ast.Attribute) else None
    owner = getattr(getattr(call.func, 'value', None), 'id', None)
    name = method or getattr(call.func, 'id', None)
    if name in ('open', 'NamedTemporaryFile') and owner not in ('Image', 'tarfile', 'archive', 'os'):
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        modes = [value.value for value in values if isinstance(value, ast.Constant)]
        return not any(isinstance(mode, str) and set(mode) <= set('rwaxb+t') and 'b' in mode for mode in modes)
    return method in ('read_text', 'write_text')


NO_SCOPE = 'Failed to search registry with scope "mmseg"'
FROM_OPERATORS = '``MultiScaleDeformableAttention`` from ``mmcv.ops.multi_scale_deform_attn``'
QUIET = """
import warnings
from mmattn.utils.command import silence
silence()
from mmengine.logging import MMLogger, print_log
{}
"""


@pytest.mark.parametrize(
    ('silent', 'said'),
    [
        ("print_log('Could not import OneDL')", "print_log('Could not import OneDL datasets of yours')"),
        (
            f"""print_log('{NO_SCOPE} in the "function" registry tree. ', 'current')""",
            f"""print_log('{NO_SCOPE} in the "model" registry tree. ', 'current')""",
        ),
        (
            "print_log('The prefix is not set in metric class IoUMetric.', 'current')",
            "print_log('The prefix is not set in metric class IoUMetric, and it should', 'current')",
        ),
        (
            f"warnings.warn('Fail to import {FROM_OPERATORS}')",
            f"warnings.warn('Failed to import {FROM_OPERATORS}')",
        ),
    ],
)
def test_a_message_is_silent_and_one_of_its_kind_is_not(silent, said):
    assert run('-c', QUIET.format(silent)) == (0, '', '')
    code, *output = run('-c', QUIET.format(said))
    assert code == 0
    assert said.split("('")[1][:30] in ''.join(output)


def test_importing_the_open_mmlab_packages_says_nothing():
    imports = 'import mmseg.datasets, mmseg.apis, mmattn.segmentation, mmattn.video, mmattn.engine'
    assert run('-c', f'from mmattn.utils.command import silence\nsilence()\n{imports}') == (0, '', '')
    assert run('-c', imports)[1] != ''  # or else this test shows nothing
