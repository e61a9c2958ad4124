"""Draws small faults at random, and lists which of them the default tests of their folder catch:

    python tests/mutations/sample.py work_dirs/sample [--seed 1] [--count 300] [--native 60]
    python tests/mutations/sample.py work_dirs/sample --again     the survivors, with the tests of the working tree
    python tests/mutations/sample.py work_dirs/sample --table

A fault is one changed constant, comparison, sign, boolean operator, bound, pair of arguments, or statement. Each folder
has its share, by lines. A fault is applied to a copy of the checkout. The tests that run its line, in any process, run
in a fork up to the first failure, the fastest first: those of its room (tests/ops for mmattn/ops), then, if all pass,
those of other rooms, for about a minute; where no test runs the line, that is the verdict. If importing the package
runs it, all tests of the room are run. Which tests run which lines is recorded once for each file of tests, without
faults. Each verdict is written at once; the same command continues.
--native: faults of the kernels for the CPU, compiled for AVX2 alone, which then computes. The tests of kernels run,
which the default suite does not have, then the default tests of operators.
"""

import argparse
import ast
import contextlib
import copy
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from lines import first_lines, note_lines
from run import CAUGHT, DEFAULT_SUITE, ROOT, SURVIVED

LONGEST, IMPORTS = 60, 3  # seconds of the tests of other rooms, as recorded, and of importing a file of tests
READ_SOURCES = 'tests/test_architecture.py'  # and run nothing of the package
NOT_HERE = r'mmattn/ops/((csrc/cuda|triton)/|csrc/.*(amx|avx512|\.md))'  # needs another machine
NATIVE, BUILT = 'mmattn/ops/csrc/', ('unit_cpu', 'unit_library', 'cpu/capability', 'cpu/isa_avx2')
KERNEL_TESTS = 'tests/ops/test_native.py', 'tests/ops/test_native_global.py'
COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
SIGNS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}
REMOVED = ast.AugAssign, ast.Raise, ast.Continue, ast.Break


def swappable(function, first, second):
    """Whether two arguments differ, and no check of types says at once that they are exchanged."""
    if ast.unparse(function) in ('isinstance', 'issubclass', 'getattr', 'setattr', 'hasattr', 'open'):
        return False
    starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
    return not starred and ast.dump(first) != ast.dump(second)


def changes(node):
    """The ways to change a node: what kind of change, the node that is replaced, and its replacement."""
    new = copy.deepcopy(node)
    match node:
        case ast.Constant(value=bool(value)):
            yield 'constant', node, ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield 'constant', node, ast.Constant(value * 2 if isinstance(value, float) and value else value + 1)
        case ast.Compare(ops=[operator, *_]) if type(operator) in COMPARISONS:
            new.ops[0] = COMPARISONS[type(operator)]()
            yield 'comparison', node, new
        case ast.BinOp(op=operator) if type(operator) in SIGNS:
            new.op = SIGNS[type(operator)]()
            yield 'sign', node, new
        case ast.UnaryOp(op=ast.USub()):
            yield 'sign', node, new.operand
        case ast.UnaryOp(op=ast.Not()):
            yield 'not', node, new.operand
        case ast.BoolOp():
            new.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
            yield 'boolean operator', node, new
        case ast.Slice():
            for bound in filter(None, (node.lower, node.upper)):
                if not isinstance(bound, ast.Constant):
                    yield 'bound', bound, ast.BinOp(bound, ast.Add(), ast.Constant(1))
        case ast.Call(args=[first, second, *_]) if swappable(node.func, first, second):
            new.args[:2] = new.args[1::-1]
            yield 'arguments', node, new
    call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    stored = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    if call or stored or isinstance(node, REMOVED):
        yield 'statement', node, ast.Pass()


def parts(node):
    """The children of a node that run and say more than a message."""
    for name, field in ast.iter_fields(node):
        if name not in ('annotation', 'returns', 'decorator_list'):
            yield from (x for x in (field if isinstance(field, list) else [field]) if isinstance(x, ast.AST))


def faults_of(file, text):
    """All faults of a file. Texts of errors and of f-strings are left as they are."""
    lines = text.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    faults = []

    def visit(node, place):
        """``place``: the line of the statement, in a function, whose execution is noted."""
        if place is not None and isinstance(node, ast.stmt):
            place = node.lineno
        inner = place
        if isinstance(node, ast.FunctionDef):
            documented = ast.get_docstring(node) is not None and len(node.body) > 1
            inner = node.body[documented].lineno
        for kind, old, new in changes(node):
            begin, end = starts[old.lineno - 1] + old.col_offset, starts[old.end_lineno - 1] + old.end_col_offset
            source = ast.unparse(ast.fix_missing_locations(new))
            source = source if kind in ('statement', 'constant') else f'({source})'
            fault = dict(file=file, line=old.lineno, kind=kind, place=place, begin=begin, end=end, new=source)
            name = hashlib.sha256(f'{file} {lines[old.lineno - 1]} {begin} {source}'.encode()).hexdigest()[:10]
            faults.append(dict(fault, name=name, old=text.encode()[begin:end].decode()))
        if not isinstance(node, ast.Raise | ast.JoinedStr):
            for part in parts(node):
                visit(part, inner)

    visit(ast.parse(text), None)
    return faults


NO_TOKENS = re.compile(r'\s*(?:#|template|using|namespace|static_assert|/?\*)|.*"')  # a message, a type, a comment
TOKENS = re.compile(
    r'(?<=[ (\[{<,-])\d+(?:\.\d*f?)?(?![\w.])|(?<= )(?:[<>]=?|[=!]=|[-+*/]=?|&&|\|\|)(?= )|\b(?:true|false)\b'
)
TOKEN = {'<': '<=', '>': '>=', '==': '!=', '+': '-', '*': '/', '+=': '-=', '*=': '/=', '&&': '||', 'true': 'false'}
TOKEN |= {new: old for old, new in TOKEN.items()}


def native_faults_of(file, text):
    """As faults_of, of C++, by its tokens: constants, comparisons, signs."""
    begin = 0
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        for token in () if NO_TOKENS.match(line) else TOKENS.finditer(line.partition('//')[0]):
            old = token[0]
            new = TOKEN.get(old) or (f'({old} * 2 + !{old})' if '.' in old else str(int(old) + 1))
            name = hashlib.sha256(f'{file} {line} {token.start()}'.encode()).hexdigest()[:10]
            place = dict(file=file, line=number, begin=begin + token.start(), end=begin + token.end())
            yield dict(place, kind='native', old=old, new=new, name=name)
        begin += len(line.encode())


def room(file):
    return (
        'ops/csrc'
        if file.startswith(NATIVE)
        else file.split('/')[1].removesuffix('.py') + ('/' + file.split('/')[2] if '/language/' in file else '')
    )


def draw(checkout, seed, count, native=False):
    """Draw lines, and one fault of each; a folder has its share of lines, and the order is random."""
    random.seed(seed)
    rooms, lines = defaultdict(lambda: defaultdict(list)), Counter()
    for path in sorted((checkout / (NATIVE if native else 'mmattn')).rglob('*.*' if native else '*.py')):
        file, text = path.relative_to(checkout).as_posix(), path.read_text(encoding='utf-8')
        if not re.match(NOT_HERE, file) and file.count('/') > 1:
            lines[room(file)] += text.count('\n')
            for fault in (native_faults_of if native else faults_of)(file, text):
                rooms[room(file)][file, fault['line']].append(fault)
    drawn = []
    for name, places in rooms.items():
        share = min(round(count * lines[name] / sum(lines.values())), len(places))
        drawn += [random.choice(places[place]) for place in random.sample(sorted(places), share)]
    random.shuffle(drawn)
    return drawn


def contents(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()[:10]


class Recorder:
    """Writes the lines of the package that each test runs, and how long it takes; then, that a file is complete."""

    def __init__(self, path, lines):
        self.path, self.lines, self.failed, self.shared = path, lines, False, defaultdict(set)
        self.imported = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self):
        self.bytes = note_lines(self.lines)

    def pytest_collection_finish(self):
        self.imported = sorted(self.take())

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        self.take()
        self.failed, start = False, time.monotonic()
        yield
        seconds = round(time.monotonic() - start, 3)
        fixtures = [fixture for each in item._fixtureinfo.name2fixturedefs.values() for fixture in each]
        lines = sorted(self.take().union(*(self.shared[fixture] for fixture in fixtures)))
        self.write(item.path, test=item.nodeid, seconds=seconds, failed=self.failed, lines=lines)
        if nextitem is None or nextitem.path != item.path:
            self.write(item.path, imported=self.imported)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        before = self.take()
        yield
        lines = self.take()
        if fixturedef.scope != 'function':  # set up in the first test that has it
            self.shared[fixturedef] |= lines
        for line in before | lines:
            self.bytes[line] = 1

    def take(self):
        lines = {match.start() for match in re.finditer(b'\1', self.bytes[:])}
        self.bytes[:] = bytes(len(self.bytes))
        return lines

    def write(self, path, **columns):
        with self.path.open('a', encoding='utf-8') as file:
            file.write(json.dumps(dict(columns, file=path.as_posix(), contents=contents(path))) + '\n')

    def pytest_runtest_logreport(self, report):
        self.failed |= report.failed


class FirstFailure:
    """Keeps the name of the first test that fails, and runs those first that name an operator."""

    def __init__(self, stem=''):
        self.by, self.stem = '', stem

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        items.sort(key=lambda item: self.stem not in item.nodeid)

    def pytest_runtest_logreport(self, report):
        if report.failed and not self.by:
            self.by = report.nodeid


class Chosen(FirstFailure):
    """Runs some tests, first to last as they are given."""

    def __init__(self, order):
        super().__init__()
        self.order = {name: i for i, name in enumerate(order)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        items[:] = sorted((x for x in items if x.nodeid in self.order), key=lambda item: self.order[item.nodeid])


def few_files(tests):
    """The fastest of these tests, for about a minute, importing their files included."""
    chosen, files, total = {}, set(), 0.0
    for test, seconds in sorted(tests.items(), key=lambda row: row[1]):
        file = test.partition('::')[0]
        cost = seconds + IMPORTS * (file not in files)
        if total + cost <= LONGEST or not chosen:
            chosen[test], total = seconds, total + cost
            files.add(file)
    return chosen


class Sample:
    """The copy of the checkout, what its tests call, and the verdicts."""

    def __init__(self, folder):
        self.folder, self.checkout, self.results = folder, folder / 'checkout', folder / 'results.jsonl'
        self.recorded, self.of_line, self.imported = set(), {}, set()
        self.tests, self.noted = folder / 'tests.jsonl', folder / 'lines'
        if not self.checkout.is_dir():
            self.copy(self.checkout.with_suffix('.part'))
            self.checkout.with_suffix('.part').rename(self.checkout)
        self.numbers = {
            str(Path(path).relative_to(self.checkout)): n for path, n in first_lines(self.checkout)[0].items()
        }
        restore = ['git', 'checkout', '--quiet', '--', 'mmattn']  # a run that was killed leaves its fault
        subprocess.run(restore, cwd=self.checkout, check=True)

    def copy(self, target, *paths):
        """Copy the tracked files, as they are in the working tree, and what was built from them."""
        names = subprocess.check_output(['git', 'ls-files', '-z', *paths], cwd=ROOT, text=True).rstrip('\0').split('\0')
        built = [] if paths else [path.relative_to(ROOT) for path in ROOT.glob('mmattn/*.so')]
        for name in [name for name in [*names, *built] if (ROOT / name).is_file()]:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
        subprocess.run(['git', 'init', '--quiet'], cwd=target, check=True)
        subprocess.run(['git', 'add', '--all'], cwd=target, check=True)

    def forked(self, paths, plugin, limit, *options, **environment):
        """Run tests in a fork. Returns the exit code, or None after too long a time, and the test that failed."""
        answer, temporary = self.folder / 'answer.json', self.folder / 'tmp'
        answer.unlink(missing_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        process = os.fork()
        if not process:
            os.setsid()
            os.dup2(os.open(self.folder / 'output.log', os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            os.dup2(1, 2)
            os.chdir(self.checkout)
            os.environ.update(PYTHONPATH=str(self.checkout), PYTHONDONTWRITEBYTECODE='1', TMPDIR=str(temporary))
            os.environ.update(environment)
            sys.path[:0] = [str(self.checkout)]
            sys.argv = ['pytest']
            code = pytest.main(
                [
                    *('-n', '0', '-p', 'no:cacheprovider', '--tb=short', '-W', 'ignore', '-m', DEFAULT_SUITE),
                    *('--basetemp', str(temporary / 'pytest'), *options, *paths),
                ],
                [plugin],
            )
            answer.write_text(getattr(plugin, 'by', ''), encoding='utf-8')
            os._exit(code)
        deadline = time.monotonic() + limit
        while not (done := os.waitpid(process, os.WNOHANG))[0] and time.monotonic() < deadline:
            time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        if not done[0]:
            os.waitpid(process, 0)
            return None, 'too slow'
        by = answer.read_text(encoding='utf-8') if answer.is_file() else ''
        code = os.waitstatus_to_exitcode(done[1])
        return code, by or f'no test: exit code {code}' if code else ''

    def read_tests(self):
        """The tests that pass, as their files are now; the files that are not recorded; the lines that imports run."""
        now = {path.as_posix(): contents(path) for path in (self.checkout / 'tests').rglob('test_*.py')}
        tests, complete, imported = {}, set(), set()
        for line in self.tests.read_text(encoding='utf-8').splitlines() if self.tests.is_file() else ():
            row = json.loads(line)
            if row['contents'] == now.get(row['file']) and 'test' in row:
                tests[row['test']] = row
            elif row['contents'] == now.get(row['file']):
                complete.add(row['file'])
                imported.update(row.get('imported', ()))
        return {name: row for name, row in tests.items() if not row['failed']}, {*now} - complete, imported

    def record(self, folder):
        """Record which lines the tests of a folder run, without faults, where their files have changed."""
        missing = sorted(path for path in self.read_tests()[1] if Path(path).is_relative_to(self.checkout / folder))
        if missing:
            start = time.monotonic()
            shutil.copy(Path(__file__).with_name('lines.py'), self.checkout / 'sitecustomize.py')
            recorder = Recorder(self.tests, str(self.noted))
            code, _ = self.forked(missing, recorder, 7200, MMATTN_LINES=str(self.noted))
            (self.checkout / 'sitecustomize.py').unlink()
            if code not in (0, 1, 5):  # 5: all are left out of the default suite
                raise SystemExit(f'the tests of {folder} ended with {code}: {self.folder}/output.log')
            for path in missing:
                recorder.write(Path(path))
            print(f'{folder}: {len(missing)} files, {time.monotonic() - start:.0f} s', flush=True)

    @contextlib.contextmanager
    def applied(self, fault):
        """Within the block, the copy has the fault. Yields whether it compiles."""
        path, library = self.checkout / fault['file'], self.checkout / 'mmattn/_C.so'
        native, text = fault['file'].startswith(NATIVE), path.read_bytes()
        built = library.read_bytes() if native else b''
        path.write_bytes(text[: fault['begin']] + fault['new'].encode() + text[fault['end'] :])
        try:
            yield not native or self.build()
        finally:
            path.write_bytes(text)
            if native:
                library.unlink(missing_ok=True)
                library.write_bytes(built)

    def build(self):
        """Compile what runs on a CPU with AVX2 and has changed. The other units are those of the last whole build."""
        folder = next(self.checkout.glob('build/temp.*'), None)
        if folder is None:
            raise SystemExit(f'--native requires a whole build in {self.checkout}: python setup.py build_ext --inplace')
        objects = [folder / NATIVE / f'{unit}.o' for unit in BUILT]
        if subprocess.run(['ninja', *map(str, objects)], cwd=folder, stdout=subprocess.DEVNULL).returncode:
            return False
        library = self.checkout / 'mmattn/_C.so'
        library.unlink(missing_ok=True)
        command = ['c++', '-shared', '-o', library, *(folder / NATIVE).rglob('*.o')]
        libraries = Path(sys.modules['torch'].__file__).parent / 'lib'
        command += [f'-L{libraries}', '-lc10', '-ltorch', '-ltorch_cpu', '-ltorch_python']
        return not subprocess.run(command).returncode

    def reaching(self, fault):
        """The tests that run the line of a fault, with their seconds; all tests if importing the file runs it."""
        number = self.numbers.get(fault['file'], 0) + (fault.get('place') or 0)
        if fault.get('place') and number not in self.imported:
            return self.of_line.get(number, {})
        return self.seconds

    def record_all(self, folder):
        """Record the tests of a folder, if that is not done, and read what is recorded."""
        if folder not in self.recorded:
            self.record(folder)
            self.recorded.add(folder)
            self.of_line = {}
            tests, _, self.imported = self.read_tests()
            self.seconds = {test: row['seconds'] for test, row in tests.items()}
            for test, row in tests.items():
                for number in row['lines']:
                    self.of_line.setdefault(number, {})[test] = row['seconds']

    def verdict(self, fault):
        """Apply a fault, and run the tests that run its line: those of its room, then others."""
        name = fault['file'].split('/')[1]
        room, start = f'tests/{name}/', time.monotonic()
        verdict, count = SURVIVED, 0
        for folder in (room, 'tests'):
            self.record_all(folder)
            reached = {test: s for test, s in self.reaching(fault).items() if test.startswith(room) == (folder == room)}
            count += len(reached)
            if folder != room:
                reached = few_files(reached)
                reached |= {test: s for test, s in self.seconds.items() if test.startswith(READ_SOURCES)}
            if reached:
                verdict, by = self.run_tests(fault, reached)
            if verdict != SURVIVED:
                break
        by = by if count or verdict != SURVIVED else 'no test runs it'
        return dict(
            verdict=verdict, by=by, tests=count, elsewhere=folder != room, seconds=round(time.monotonic() - start, 1)
        )

    def run_tests(self, fault, tests):
        files = sorted({test.partition('::')[0] for test in tests})
        with self.applied(fault):
            chosen = Chosen(sorted(tests, key=tests.get))
            code, by = self.forked(files, chosen, 120 + 4 * sum(tests.values()), '-x')
        return CAUGHT if code not in (0, 5) else SURVIVED, by

    def native_verdict(self, fault):
        start, plugin = time.monotonic(), FirstFailure(Path(fault['file']).stem)
        suites = {False: (*KERNEL_TESTS, '-m', 'kernels', '-k', 'not (avx512 or amx or default)'), True: ('tests/ops',)}
        with self.applied(fault) as compiles:
            if not compiles:
                return dict(verdict='invalid', by='does not compile', seconds=0)
            found = dict(verdict=SURVIVED, by='')
            for elsewhere, tests in suites.items():
                code, by = self.forked(tests, plugin, 1200, '-x', MMATTN_CPU_CAPABILITY='avx2')
                if code not in (0, 5):
                    found = dict(verdict=CAUGHT, by=by, elsewhere=elsewhere)
                    break
        return dict(found, seconds=round(time.monotonic() - start, 1))

    def read(self):
        """The last verdict of each fault."""
        lines = self.results.read_text(encoding='utf-8').splitlines() if self.results.is_file() else []
        return {result['name']: result for result in map(json.loads, lines)}

    def run(self, faults):
        import_large_packages()
        for number, fault in enumerate(faults, 1):
            verdict = self.native_verdict(fault) if fault['kind'] == 'native' else self.verdict(fault)
            result = {**fault, 'room': room(fault['file']), **verdict}
            with self.results.open('a', encoding='utf-8') as file:
                file.write(json.dumps(result) + '\n')
            print(f'[{number}/{len(faults)}] {line(result)}', flush=True)


def line(result):
    change = f'{result["old"]} -> {result["new"]}'.replace('\n', ' ')
    return f'{result["verdict"]} {result["seconds"]} s  {result["file"]}:{result["line"]}  {change}  {result["by"]}'


def import_large_packages():
    """What takes seconds, and does not know the package."""
    names = (
        'torch mmseg.models mmseg.datasets mmseg.engine mmdet.models scipy.stats xdist.plugin _hypothesis_pytestplugin'
    )
    for name in names.split():
        with contextlib.suppress(ImportError):
            __import__(name)
    import torch

    torch.set_num_threads(1)


def print_table(results):
    """Verdicts by folder, and the 95 % interval (Wilson) of the rate; then the survivors."""
    print('| folder | faults | caught by its tests | by others | survived | seconds |\n|---|---|---|---|---|---|')
    rooms = defaultdict(list)
    for result in results.values():
        if result['verdict'] == 'invalid':  # it does not compile
            continue
        rooms[result['room']].append(result)
        rooms['~all'].append(result)
    for name, rows in sorted(rooms.items()):
        caught = sum(row['verdict'] == CAUGHT for row in rows)
        others = sum(row['verdict'] == CAUGHT and row.get('elsewhere', False) for row in rows)
        seconds = sum(row['seconds'] for row in rows)
        print(f'| {name} | {len(rows)} | {caught - others} | {others} | {len(rows) - caught} | {seconds:.0f} |')
    n, p = len(rows), caught / len(rows)
    middle, half = (p + 1.92 / n) / (1 + 3.84 / n), 1.96 * (p * (1 - p) / n + 0.96 / n**2) ** 0.5 / (1 + 3.84 / n)
    print(f'\n{p:.1%} caught, {middle - half:.1%} to {middle + half:.1%}\n')
    for result in sorted(results.values(), key=lambda result: (result['file'], result['line'])):
        if result['verdict'] == SURVIVED:
            print(line(result))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path, help='folder of the copy and the verdicts')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--count', type=int, default=300)
    parser.add_argument('--native', type=int, help='so many faults of the kernels for the CPU, and none of Python')
    parser.add_argument('--only', nargs='+', default=[''], metavar='FOLDER', help='such as mmattn/ops')
    parser.add_argument('--again', action='store_true', help='the survivors once more, with the tests as they are now')
    parser.add_argument('--table', action='store_true', help='print what was found, and run nothing')
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    sample = Sample(options.folder.resolve())
    results = sample.read()
    if options.table:
        print_table(results)
    elif options.again:
        shutil.rmtree(sample.checkout / 'tests')
        sample.copy(sample.checkout, 'tests')
        sample.run([result for result in results.values() if result['verdict'] == SURVIVED])
    else:
        drawn = draw(sample.checkout, options.seed, options.native or options.count, options.native)
        drawn = [fault for fault in drawn if fault['file'].startswith(tuple(options.only))]
        sample.run([fault for fault in drawn if fault['name'] not in results])


if __name__ == '__main__':
    main()
