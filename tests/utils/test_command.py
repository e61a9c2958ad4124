"""What the command lines share: one message an error, the exit code, output in any encoding, quiet imports."""

import os
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


def test_an_error_is_one_message_and_a_code(fail):
    said = f'tool.py: error: /nowhere/file: No such file or directory\n{HINT}'
    assert fail('open("/nowhere/file")') == (1, '', said)
    assert fail('import argparse; argparse.ArgumentParser("x").error("y")') == (2, '', 'usage: x [-h]\nx: error: y\n')


@pytest.mark.slow
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
