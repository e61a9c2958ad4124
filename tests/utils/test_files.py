"""Atomic files and folders that one process uses at a time."""

import errno
import os
import subprocess
import sys
from argparse import Namespace
from contextlib import nullcontext

import pytest

from mmattn.utils import files
from mmattn.utils.files import (
    atomic_write,
    check_writable,
    exclusive,
    input_files,
    remove_temporary_files,
    replace_folder,
    write_text,
)


def write(path, content):
    with atomic_write(path) as temporary:
        content(temporary)


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path):
    path = tmp_path / 'scores.csv'
    write_text(path, 'ä')
    assert path.read_bytes() == 'ä'.encode()

    def fails(temporary):
        temporary.write_text('half')
        raise ValueError('in the block')

    with pytest.raises(ValueError, match='in the block'):
        write(path, fails)
    assert path.read_text(encoding='utf-8') == 'ä'
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize('name', ['a' * 251 + '.png', 'ä' * 125 + '.txt', '.' + 'a' * 254])
def test_a_file_may_have_the_longest_name(tmp_path, name):
    with atomic_write(tmp_path / name) as temporary:
        temporary.touch()
        remove_temporary_files(tmp_path)
        assert not temporary.exists()  # it is recognised as temporary
        temporary.write_text('x')
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.skipif(not os.path.exists('/dev/full'), reason='/dev/full is of Linux')
def test_a_full_disk_names_the_file(tmp_path):
    """The link to /dev/full makes every write to the temporary file fail as on a full disk."""
    path = tmp_path / 'picture.png'

    def fill(temporary):
        temporary.symlink_to('/dev/full')
        temporary.write_text('x')

    with pytest.raises(OSError, match=f"No space left on device: '{path}'") as caught:
        write(path, fill)
    assert caught.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('there', [False, True])
@pytest.mark.parametrize('fault', [None, ValueError, FileNotFoundError])
def test_a_folder_is_replaced_as_a_whole_or_not_at_all(tmp_path, there, fault):
    """Not if the block fails, nor if it makes nothing."""
    path = tmp_path / 'out' / 'pictures'
    if there:
        path.mkdir(parents=True)
        write_text(path / 'old.txt', 'old')
    with nullcontext() if fault is None else pytest.raises(fault), replace_folder(path) as scratch:
        if fault is not FileNotFoundError:
            write_text(scratch / 'new' / 'new.txt', 'new')
        if fault is ValueError:
            raise ValueError
    expected = ['new.txt'] if fault is None else ['old.txt'] if there else []
    assert [file.relative_to(path).name for file in path.parent.rglob('*.*')] == expected


def test_temporary_files_of_killed_processes_are_removed(tmp_path):
    """Each writer has a file of its own, with the suffix of the whole one."""
    code = 'import os, sys; from mmattn.utils.files import atomic_write\n'
    code += 'with atomic_write(sys.argv[1]) as temporary: temporary.write_text("x"); os._exit(9)'
    for _ in range(2):
        subprocess.run([sys.executable, '-c', code, tmp_path / 'a.png'])
    write_text(tmp_path / 'kept.png', '')
    write_text(tmp_path / '.film.partial', '')  # of another program
    assert sorted(path.suffix for path in tmp_path.iterdir()) == ['.partial', '.png', '.png', '.png']
    remove_temporary_files(tmp_path)
    assert sorted(tmp_path.iterdir()) == [tmp_path / '.film.partial', tmp_path / 'kept.png']


def test_a_folder_is_held_by_one_process_until_it_ends(tmp_path):
    code = 'import sys; from mmattn.utils.files import exclusive\n'
    code += 'with exclusive(sys.argv[1]): print("held", flush=True); input()'
    other = subprocess.Popen(
        [sys.executable, '-c', code, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout.readline() == 'held\n'
        with pytest.raises(BlockingIOError, match=rf"in use by another process \(PID {other.pid}\): '{tmp_path}'"):
            exclusive(tmp_path).__enter__()
        other.kill()
    with exclusive(tmp_path):
        pass


def test_a_folder_that_cannot_be_written_to_is_an_error_and_nothing_is_created(tmp_path):
    (tmp_path / 'file').write_text('')
    (tmp_path / 'dangling').symlink_to(tmp_path / 'nowhere')
    before = sorted(tmp_path.rglob('*'))
    check_writable(tmp_path)
    check_writable(tmp_path / 'new/deep')
    for folder in (tmp_path / 'file', tmp_path / 'file/out', tmp_path / 'dangling', tmp_path / 'dangling/out'):
        with pytest.raises(OSError, match=rf"this folder cannot be written to \(.*\): '{folder}'$"):
            check_writable(folder)
    assert sorted(tmp_path.rglob('*')) == before


def test_a_folder_is_held_by_one_process_and_not_by_its_children(tmp_path):
    code = 'import os, sys\nfrom mmattn.utils.files import hold\nfile = hold(sys.argv[1])\n'
    code += 'child = os.fork()\nprint("held" if child else "", flush=True)\nsys.stdin.read()'
    with subprocess.Popen(
        [sys.executable, '-c', code, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert {holder.stdout.readline(), holder.stdout.readline()} == {'held\n', '\n'}
        with pytest.raises(BlockingIOError, match=f'in use by another run.*{tmp_path}'):
            files.hold(tmp_path)
        holder.kill()
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
        files.hold(tmp_path).close()  # its child is still there


def test_base_files_of_a_config_are_inputs(tmp_path):
    configs = {
        'one/mine.py': "_base_ = ['../two/base.py', 'mmseg::x.py', './missing.py']",
        'two/base.py': "_base_ = '../one/mine.py'",
    }
    for name, text in configs.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text, encoding='utf-8')
    args = Namespace(config=tmp_path / 'one/mine.py', out=tmp_path / 'two/base.py', beam=4)
    assert {path.resolve() for path in input_files(args)} == {tmp_path / name for name in configs}
    with pytest.raises(ValueError, match=r'--out .*base\.py would replace an input'):
        files.check_not_input('--out', args.out, input_files(args))
