"""What every converter promises, with the releases of ``converters.py``.

All paths have spaces and letters beyond ASCII.
"""

import builtins
import io
import os
import re
import signal
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from common import caption_attributes as attributes
from common.conversion import MARK
from mmattn.language import RegionWriter

from ..dataset_converters.conftest import FOLDER
from ..requirements import requires
from .converters import ALONE, CONVERTERS, archived

BINARY = {'.bmp', '.gz', '.jpg', '.JPG', '.npy', '.npz', '.png', '.ppm', '.pth', '.zip'}


def contents(folder):
    """The files of a folder. The record of a store has a digest of the times of its images."""
    return {
        str(path.relative_to(folder)): re.sub(rb'\d+ images [0-9a-f]{8}', b'', path.read_bytes())
        for path in folder.rglob('*')
        if path.is_file()
    }


class Run:
    """A release in a folder, and runs of its converter."""

    def __init__(self, case, folder, capfd=None):
        self.case, self.capfd = case, capfd
        self.source, self.root = folder / 'ein Ordner 雪/release', folder / 'die Daten'
        self.out = self.root / 'Ausgabe ü'
        self.root.mkdir(parents=True)
        self.args = [*case.write(self.source, self.out)]
        if '--out-dir' in self.args:  # of a rehearsal
            del self.args[self.args.index('--out-dir') + 1], self.args[self.args.index('--out-dir')]
        self.before = self.content()

    def content(self):
        """The output and what is beside it, but for the images of a store that are kept."""
        kept = re.compile(rf'{self.out.name}\.\w+\.part/')
        return {name: data for name, data in contents(self.root).items() if not kept.match(name)}

    def __call__(self, *options, args=None):
        """Return the exit code, and what was printed on stdout and stderr."""
        place = [] if self.case.kind == 'files' else ['--out-dir', self.out]
        try:
            code = self.case.main([*map(str, [*(args or self.args), *options, *place])]) or 0
        except (OSError, RuntimeError, ValueError) as error:  # as mmattn.utils.command.run
            print(error, file=sys.stderr)
            code = 1
        except KeyboardInterrupt:
            code = 130
        return code, *(self.capfd.readouterr() if self.capfd else ('', ''))

    def fails(self, *options, args=None, code=1):
        """A run that must fail changes nothing. Return what was printed on stderr."""
        before = self.content(), [*self.root.glob('*')]
        found, _, said = self(*options, args=args)
        assert found == code, said
        assert self.content() == before[0]
        if self.case.kind == 'folder':
            assert [*self.root.glob('*')] == before[1]
        return said


@contextmanager
def counted(folder, monkeypatch, stop=None, at=None):
    """List the files that are opened to write below a folder, and renamed folders. Call ``stop`` before one."""
    paths = []

    def watch(module, name, writes):
        original = getattr(module, name)

        def watched(path, *args, **options):
            if writes(path, *args, **options) and isinstance(path, str | os.PathLike) and folder in Path(path).parents:
                paths.append(path)
                if len(paths) - 1 == at:
                    stop()
            return original(path, *args, **options)

        patch.setattr(module, name, watched)

    with monkeypatch.context() as patch:
        for module in (builtins, io):
            watch(module, 'open', lambda _, mode='r', *__, **___: bool({*mode} & {*'wxa+'}))
        for name in ('rename', 'replace'):
            watch(os, name, lambda path, *_, **__: isinstance(path, str | os.PathLike) and os.path.isdir(path))
        yield paths


@pytest.fixture(scope='module')
def made():
    return {}


@pytest.fixture
def case(request, monkeypatch):
    monkeypatch.setattr(attributes, 'EPOCHS', 1)  # for time
    return CONVERTERS[request.param]


@pytest.fixture
def run(case, tmp_path, capfd):
    return Run(case, tmp_path, capfd)


@pytest.fixture
def expected(case, made, tmp_path_factory, monkeypatch):
    """The output of an undisturbed run, and how many files it opens."""
    if case.script not in made:
        alone = Run(case, tmp_path_factory.mktemp('alone'))
        with counted(alone.root, monkeypatch) as paths:
            assert alone()[0] == 0
        made[case.script] = alone.content(), len(paths)
        assert alone.content().keys() > alone.before.keys()
    return made[case.script]


def each(condition=lambda case: True):
    """The test of each converter for which a condition holds."""
    marks = dict(region_features=requires('mmcv operators'))
    names = [name for name, case in CONVERTERS.items() if condition(case)]
    return pytest.mark.parametrize('case', [pytest.param(n, marks=marks.get(n, ())) for n in names], indirect=True)


def test_all_converters_are_here():
    assert {path.stem for path in FOLDER.glob('*.py')} == {case.script for case in CONVERTERS.values()} | ALONE


@pytest.mark.parametrize('suffix', ['.zip', '.tgz'])
@each(lambda case: case.archives)
def test_an_archive_is_as_good_as_a_folder(case, run, expected, suffix, tmp_path):
    """A damaged one is named."""
    args = archived(case, run.args, tmp_path, suffix)
    assert run(args=args)[0] == 0
    assert run.content() == expected[0]
    path = args[case.archives[-1]]
    whole = path.read_bytes()
    for share in (0, 0.6, 0.97):
        path.write_bytes(whole[: int(share * len(whole))])
        assert f'error: {path}: ' in run.fails('--overwrite', args=args)
    if suffix == '.zip':  # the flags of its entries say that they are encrypted
        path.write_bytes(re.sub(b'(PK\x03\x04..|PK\x01\x02....)\0', b'\\1\x01', whole, flags=re.DOTALL))
        assert f'error: {path}: ' in run.fails('--overwrite', args=args)


def kinds(folder):
    """A file of each kind: names that differ in numbers are of one kind."""
    paths = sorted(path for path in folder.rglob('*') if path.is_file())
    return {re.sub(r'\d+', '', str(path.relative_to(folder))): path for path in paths}.values()


@each()
def test_a_missing_or_damaged_file_is_named_before_anything_is_written(case, run):
    """And an earlier output is kept."""
    options = ['--overwrite'] * (case.kind == 'folder' and run()[0] == 0)
    for path in kinds(run.source):
        name, whole = str(path.relative_to(run.source)), path.read_bytes()
        if not re.search(case.unseen, name):
            path.unlink()
            assert path.stem.split('.')[0].removeprefix('v2_') in run.fails(*options), name
        if not re.search(case.unread, name):
            middle = len(whole) // 2
            path.write_bytes(whole[:middle] if path.suffix in BINARY else whole[:middle] + b'\xff' + whole[middle:])
            assert str(path.relative_to(run.source)) in run.fails(*options), name
        path.write_bytes(whole)


@each(lambda case: case.counts)
def test_another_number_of_files_than_published_is_named(case, run):
    said = run.fails(args=[word for word in run.args if word != '--allow-other-counts'])
    assert [name for name in case.counts if name not in said] == []
    assert f'{len(case.counts)} faults' in said


@each()
def test_an_existing_output_is_replaced_as_a_whole_and_only_if_asked_for(case, run, expected):
    assert run()[0] == 0
    assert run.content() == expected[0]
    written = sorted({*expected[0]} - {*run.before})
    said = run.fails()
    assert any(str(place) in said for place in (run.out, run.root / written[0]))
    if case.kind == 'store' or not case.overwrites:
        return
    assert '--overwrite' in said
    old = run.root / max(written, key=lambda name: name.count('/'))
    old.write_bytes(b'old')
    if case.kind == 'folder' and old.parent != run.out:
        (old.parent / 'old').write_bytes(b'old')
    assert run('--overwrite')[0] == 0
    assert run.content() == expected[0]
    if case.kind == 'folder':
        (run.out / 'mine.txt').write_text('mine')
        assert 'mine.txt' in run.fails('--overwrite')
        (run.out / 'mine.txt').unlink()
        (run.out / MARK).unlink()
        assert MARK in run.fails('--overwrite')
        run.out = run.source.parent
        assert 'contains the input' in run.fails('--overwrite')


@each(lambda case: case.kind == 'folder')
def test_an_output_that_appears_during_the_conversion_is_kept(case, run, expected, monkeypatch):
    """The result is kept beside it."""

    def appear():
        run.out.mkdir()
        (run.out / 'mine.txt').write_text('mine')

    with counted(run.root, monkeypatch, appear, at=0):
        code, _, said = run()
    assert code == 1
    assert contents(run.out) == {'mine.txt': b'mine'}
    kept = Path(re.search(r'^  (.*): the result of this conversion', said, re.MULTILINE)[1])
    assert contents(kept.parent) == expected[0]


def interrupt():
    raise KeyboardInterrupt


def terminate():
    signal.raise_signal(signal.SIGTERM)


@each(lambda case: case.kind != 'store')
def test_an_interrupted_run_leaves_nothing_half_done(case, run, expected, monkeypatch):
    """Wherever Ctrl-C or a batch system stops it; an earlier output stays until there is a new one."""
    options, last = [], expected[1] - 1
    if case.overwrites and case.kind == 'folder':
        assert run()[0] == 0
        (run.root / min({*expected[0]} - {*run.before})).write_bytes(b'old')
        options = ['--overwrite']
    stops = {0: interrupt, last // 2: terminate if case.kind == 'folder' else interrupt, last: interrupt}
    for at, stop in stops.items():
        with counted(run.root, monkeypatch, stop, at):
            run.fails(*options, code=130)
    assert run(*options)[0] == 0
    assert run.content() == expected[0]


@each(lambda case: case.kind == 'store')
def test_an_interrupted_store_continues(case, run, expected, monkeypatch):
    """No image is written twice."""
    written = []

    def stopped(self, image_id, regions):
        if len(written) == limit:
            raise KeyboardInterrupt
        RegionWriter.write(self, image_id, regions)
        written.append(image_id)

    def enter(self):
        self.write = partial(stopped, self)  # not before: it reads the images of its last file again
        return self

    monkeypatch.setattr(RegionWriter, '__enter__', enter)
    for limit in (1, 2):
        assert f'{limit} images are kept in {run.out}.' in run.fails(code=130)
    limit = None
    code, said, _ = run()
    assert (code, 'converted before: 2' in said) == (0, True)
    assert contents(run.root) == expected[0]
    assert len(written) == len({*written}) > 2


@each()
def test_a_killed_run_is_repeated(case, run, expected, monkeypatch):
    """As the out-of-memory killer ends it: no output has its name, the same command succeeds, and nothing is left."""
    pid = os.fork()
    if not pid:
        with counted(run.root, monkeypatch, lambda: os.kill(os.getpid(), signal.SIGKILL), expected[1] // 2):
            run()
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    there = {name for name in run.content() if name.startswith(f'{run.out.name}/') and '.part.' not in name}
    assert there == {*run.before}
    assert run()[0] == 0
    assert expected[0].items() <= run.content().items()
    assert not [name for name in run.content() if '.part-' in name]
