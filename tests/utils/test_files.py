"""Atomic files and folders that one process uses at a time."""

import errno
import fcntl
import os
import subprocess
import sys
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from zlib import crc32

import pytest

from mmattn.utils import files
from mmattn.utils.files import (
    atomic_write,
    check_not_input,
    check_path,
    check_writable,
    exclusive,
    find_copies,
    input_files,
    read_end,
    remove_temporary_files,
    write_text,
)


def write(path, content):
    with atomic_write(path) as temporary:
        content(temporary)


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path):
    path = tmp_path / 'new' / 'deep' / 'scores.csv'
    write_text(path, 'ä')
    assert path.read_bytes() == 'ä'.encode()

    def fails(temporary):
        temporary.write_text('half')
        raise ValueError('in the block')

    with pytest.raises(ValueError, match='in the block'):
        write(path, fails)
    assert path.read_text(encoding='utf-8') == 'ä'
    assert list(path.parent.iterdir()) == [path]


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
    with exclusive(tmp_path) as number, open(tmp_path / '.lock') as file:
        assert os.path.sameopenfile(number, file.fileno())
        assert file.read() == f'PID {os.getpid()}'
    with exclusive(tmp_path / 'new' / 'deep'):
        pass
    (tmp_path / '.lock').write_text('')
    with open(tmp_path / '.lock') as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as another process that has not written its number yet
        with pytest.raises(BlockingIOError, match=r'\(unknown\)'):
            exclusive(tmp_path).__enter__()


@pytest.mark.parametrize(
    ('number', 'error'),
    [*((number, None) for number in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)), (errno.EIO, OSError)],
)
def test_a_file_system_without_locks_is_no_error_and_a_broken_one_is(tmp_path, monkeypatch, number, error):
    def fails(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, 'flock', fails)
    with nullcontext() if error is None else pytest.raises(error) as caught, exclusive(tmp_path):
        pass
    assert error is None or caught.value.errno == number


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


@pytest.mark.parametrize('value', [None, 3, b'a.png', ['a.png']])
def test_what_is_no_path_is_refused(value):
    assert check_path('image', 'a.png') == check_path('image', Path('a.png')) == Path('a.png')
    with pytest.raises(TypeError, match=f'^image .*{type(value).__name__}$'):
        check_path('image', value)


def test_copies_have_the_same_bytes(tmp_path):
    """Files of one size may differ before their last 4 KiB. A file that cannot be read is left out."""
    long = bytes(5000)
    contents = dict(one=long, two=b'1' + long[1:], three=long, fours=b'', five=b'', six=b'6', seven=long + b'7')
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / 'b').mkdir()
    for name in ('b/one', 'six6'):
        (tmp_path / name).write_bytes(contents[name[-3:]] if name != 'six6' else b'5')
    paths = [str(tmp_path / name) for name in ('b/one', 'three', *contents, 'six6', 'gone')]
    expected = [['one', 'b/one', 'three'], ['five', 'fours']]
    assert find_copies(paths) == [[str(tmp_path / name) for name in group] for group in expected]


@pytest.mark.parametrize('size', [0, 7, 4096, 9000])
def test_the_end_of_a_file_is_its_size_and_its_last_4_kib(tmp_path, size):
    content = bytes(i * i % 251 for i in range(size))
    (tmp_path / 'a').write_bytes(content)
    assert read_end(tmp_path / 'a') == (size, crc32(content[-4096:]))


def test_an_output_may_not_replace_an_input(tmp_path):
    for name in ('data/a.txt', 'other/b.txt'):
        write_text(tmp_path / name, 'x')
    (tmp_path / 'link').symlink_to('data')
    inputs = [tmp_path / 'other/b.txt', tmp_path / 'data', tmp_path / 'gone']
    for out in ('other/b.txt', 'data', 'data/new.txt', 'data/new/new.txt', 'link/a.txt', 'link/new.txt'):
        with pytest.raises(ValueError, match=f'^--out .*{out}.* input, .*{"b.txt" if out[0] == "o" else "data"}'):
            check_not_input('--out', tmp_path / out, inputs)
    for out in ('other', 'other/c.txt', 'database', 'new/a.txt', 'gone'):
        check_not_input('--out', tmp_path / out, inputs)
    check_not_input('--out', tmp_path / 'other/b.txt/new', inputs)  # a file has no files in it


def test_base_files_of_a_config_are_inputs(tmp_path):
    configs = {
        'one/mine.py': "_base_ = ['../two/base.py', 'mmseg::x.py', './missing.py']",
        'two/base.py': "_base_ = '../one/mine.py'",
    }
    for name, text in configs.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text, encoding='utf-8')
    for name, text in (('a.json', '_base_ = 3'), ('broken.py', '_base_ = ('), ('call.py', "_base_ = f('mine.py')")):
        (tmp_path / 'one' / name).write_text(text, encoding='utf-8')
    others = [str(tmp_path / 'one' / name) for name in ('a.json', 'broken.py', 'call.py', 'gone.txt')]
    assert input_files(Namespace(first=others[0], rest=others[1:], out=tmp_path / 'two/base.py')) == [
        Path(path) for path in others[:3]
    ]
    args = Namespace(config=tmp_path / 'one/mine.py', out=tmp_path / 'two/base.py', beam=4)
    assert {path.resolve() for path in input_files(args)} == {tmp_path / name for name in configs}
    with pytest.raises(ValueError, match=r'--out .*base\.py would replace an input'):
        files.check_not_input('--out', args.out, input_files(args))
