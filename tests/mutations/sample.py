"""Draws small faults at random, and lists which of them the default tests catch:

    python tests/mutations/sample.py work_dirs/sample [--seed 1] [--count 300]
    python tests/mutations/sample.py work_dirs/sample --again     the survivors, with the tests of the working tree
    python tests/mutations/sample.py work_dirs/sample --table

A fault is one changed constant, comparison, sign, boolean operator, bound, pair of arguments, or statement. Each folder
has its share, by lines. It is recorded once which tests run which lines, in any process. Each fault is then applied to
a copy of the checkout, and the tests that run its line are run up to the first failure, the fastest first: those of its
room (tests/ops for mmattn/ops), then fifty of others. If importing the package runs the line, all tests of the
room are run. What is found is written at once; the same command continues.
"""

import argparse
import ast
import contextlib
import copy
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

ROOT = Path(__file__).parents[2]
DEFAULT_SUITE, CAUGHT, SURVIVED = 'not (slow or e2e or kernels)', 'caught', 'survived'
OTHERS = 50  # tests of other rooms, the fastest, for a fault that passes its own
PAIRS = (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)
PAIRS += (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or)
TYPED = 'isinstance', 'issubclass', 'getattr', 'setattr', 'hasattr', 'open'  # say at once that arguments are exchanged
OTHER = {kind: other for a, b in PAIRS for kind, other in ((a, b), (b, a))} | {ast.FloorDiv: ast.Mult}


def changes(node):
    """The ways to change a node: the node that is replaced, and its replacement."""
    new = copy.deepcopy(node)
    match node:
        case ast.Constant(value=bool(value)):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield node, ast.Constant(value * 2 if isinstance(value, float) and value else value + 1)
        case ast.Compare(ops=[operator, *_]):
            new.ops[0] = OTHER[type(operator)]()
            yield node, new
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator) in OTHER:
            new.op = OTHER[type(operator)]()
            yield node, new
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            yield node, new.operand
        case ast.Slice():
            for bound in filter(None, (node.lower, node.upper)):
                if not isinstance(bound, ast.Constant):
                    yield bound, ast.BinOp(bound, ast.Add(), ast.Constant(1))
        case ast.Call(args=[first, second, *_]) if ast.unparse(node.func) not in TYPED:
            new.args[:2] = second, first
            if ast.dump(first) != ast.dump(second) and ast.Starred not in (type(first), type(second)):
                yield node, new
        case ast.Expr(value=ast.Call()) | ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield node, ast.Pass()
        case ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break():
            yield node, ast.Pass()


def faults_of(file, text):
    """All faults of a file. Texts of errors and of f-strings, annotations and decorators are left as they are."""
    lines, faults = text.encode().splitlines(keepends=True), []
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]

    def visit(node, place):
        """``place``: the line of the statement, in a function, whose execution is noted."""
        inner = place = node.lineno if place and isinstance(node, ast.stmt) else place
        if isinstance(node, ast.FunctionDef):  # a default: where the body begins
            documented = ast.get_docstring(node) is not None and len(node.body) > 1
            inner = node.body[documented].lineno
        for old, new in changes(node):
            begin, end = starts[old.lineno - 1] + old.col_offset, starts[old.end_lineno - 1] + old.end_col_offset
            source = ast.unparse(ast.fix_missing_locations(new))
            source = source if isinstance(new, ast.Pass | ast.Constant) else f'({source})'
            fault = dict(file=file, line=old.lineno, place=place, begin=begin, end=end, new=source)
            faults.append(fault | dict(old=text.encode()[begin:end].decode()))
        if not isinstance(node, ast.Raise | ast.JoinedStr):
            for name, field in ast.iter_fields(node):
                for part in field if isinstance(field, list) else [field]:
                    if isinstance(part, ast.AST) and name not in ('annotation', 'returns', 'decorator_list'):
                        visit(part, inner)

    visit(ast.parse(text), None)
    return faults


def room(file):
    name, inner = file.split('/')[1:3]
    return f'{name}/{inner}' if name == 'language' else name


def draw(checkout, seed, count):
    """Draw lines, and one fault of each; a folder has its share of lines, and the order is random."""
    random.seed(seed)
    rooms, lines, drawn = defaultdict(lambda: defaultdict(list)), Counter(), []
    for path in sorted((checkout / 'mmattn').glob('*/**/*.py')):
        file, text = path.relative_to(checkout).as_posix(), path.read_text(encoding='utf-8')
        if not file.startswith('mmattn/ops/triton/'):  # which needs another machine
            lines[room(file)] += text.count('\n')
            for fault in faults_of(file, text):
                rooms[room(file)][file, fault['line']].append(fault)
    for name, places in rooms.items():
        share = min(round(count * lines[name] / lines.total()), len(places))
        drawn += [random.choice(places[place]) for place in random.sample(sorted(places), share)]
    random.shuffle(drawn)
    return drawn


class Recorder:
    """Writes, for each file of tests, which lines of the package each test runs, and how long it takes."""

    def __init__(self, sample):
        self.sample, self.tests, self.shared = sample, {}, defaultdict(set)

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self):
        self.bytes = note_lines(self.sample.noted)

    def pytest_collection_finish(self):
        self.imported = sorted(self.take())

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        self.take()
        failed, start = item.session.testsfailed, time.monotonic()
        yield
        fixtures = [fixture for each in item._fixtureinfo.name2fixturedefs.values() for fixture in each]
        lines = self.take().union(*(self.shared[fixture] for fixture in fixtures))
        if item.session.testsfailed == failed:
            self.tests[item.nodeid] = [round(time.monotonic() - start, 3), sorted(lines)]
        if nextitem is None or nextitem.path != item.path:
            self.sample.write(item.path, self.tests, self.imported)
            self.tests = {}

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


class Sample:
    """The copy of the checkout, what its tests call, and the verdicts."""

    def __init__(self, folder):
        self.folder, self.checkout, self.results = folder, folder / 'checkout', folder / 'results.jsonl'
        self.recorded, self.noted = folder / 'tests.jsonl', folder / 'lines'
        if not self.checkout.is_dir():
            self.copy(folder / 'checkout.part')
            (folder / 'checkout.part').rename(self.checkout)
        restore = ['git', 'checkout', '--quiet', '--', 'mmattn']  # a run that was killed leaves its fault
        subprocess.run(restore, cwd=self.checkout, check=True)

    def copy(self, target, *paths):
        """Copy the tracked files, as they are in the working tree, and what was built from them."""
        names = subprocess.check_output(['git', 'ls-files', '-z', *paths], cwd=ROOT, text=True).rstrip('\0').split('\0')
        names += [] if paths else [path.relative_to(ROOT) for path in ROOT.glob('mmattn/*.so')]
        for name in [name for name in names if (ROOT / name).is_file()]:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
        for command in ('init', '--quiet'), ('add', '--all'):
            subprocess.run(['git', *command], cwd=target, check=True)

    def forked(self, tests, limit, *options, plugins=(), **environment):
        """Run tests in a fork. Returns the exit code, negative after too long a time, and the test that failed."""
        log, temporary = self.folder / 'output.log', self.folder / 'tmp'
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        process = os.fork()
        if not process:
            os.setsid()
            signal.alarm(limit)
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            os.dup2(1, 2)
            os.chdir(self.checkout)
            sys.path[:0], sys.argv = [str(self.checkout)], ['pytest']
            os.environ.update(PYTHONPATH=sys.path[0], PYTHONDONTWRITEBYTECODE='1', TMPDIR=str(temporary), **environment)
            quiet = '-n', '0', '-p', 'no:cacheprovider', '--tb=short', '-W', 'ignore', '-rfE', '-m', DEFAULT_SUITE
            os._exit(pytest.main([*quiet, '--basetemp', f'{temporary}/pytest', *options, *tests], [*plugins]))
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)  # what it started
        by = re.search(r'^(?:FAILED|ERROR) (.*?)(?: - |$)', log.read_text(errors='replace'), re.MULTILINE)
        return code, by[1] if by else f'exit code {code}' * bool(code)

    def write(self, path, tests, imported=()):
        append(self.recorded, dict(file=path.relative_to(self.checkout).as_posix(), tests=tests, imported=imported))

    def missing(self, folders):
        """The files of tests in some folders that are not recorded."""
        done = {self.checkout / row['file'] for row in read(self.recorded)}
        return sorted({path for each in folders for path in (self.checkout / each).rglob('test_*.py')} - done)

    def record(self, folders):
        """Record which lines the tests of some folders run, without faults."""
        if missing := self.missing(folders):
            (site := self.checkout / 'sitecustomize.py').write_text(Path(__file__).with_name('lines.py').read_text())
            code, _ = self.forked(missing, 14400, plugins=[Recorder(self)], MMATTN_LINES=str(self.noted))
            site.unlink()
            if code not in (0, 1, 5):  # 5: all are left out of the default suite
                raise SystemExit(f'the tests ended with {code}: {self.folder}/output.log')
            for path in self.missing(folders):
                self.write(path, {})
        self.seconds, self.of_line, self.imported = {}, defaultdict(dict), set()
        for row in read(self.recorded):
            self.imported.update(row['imported'])
            for test, (seconds, lines) in row['tests'].items():
                self.seconds[test] = seconds
                for number in lines:
                    self.of_line[number][test] = seconds

    def reaching(self, fault):
        """The tests that run the line of a fault, the fastest first: those of its room, and a few others."""
        number = first_lines(self.checkout)[0][str(self.checkout / fault['file'])] + (fault['place'] or 0)
        noted = fault['place'] and number not in self.imported
        tests = self.of_line[number] if noted else self.seconds
        room, ordered = f'tests/{fault["file"].split("/")[1]}/', sorted(tests, key=tests.get)
        others = [test for test in ordered if not test.startswith(room)]
        return [test for test in ordered if test.startswith(room)], others[:OTHERS]

    def verdict(self, fault):
        path, start, code, by = self.checkout / fault['file'], time.monotonic(), 0, 'no test runs it'
        text = path.read_bytes()
        path.write_bytes(text[: fault['begin']] + fault['new'].encode() + text[fault['end'] :])
        for tests in filter(None, self.reaching(fault)):
            limit = 120 + 4 * round(sum(self.seconds[test] for test in tests))
            code, by = self.forked(tests, limit, '-x', '--all-cases')  # these are the default ones
            if code:
                break
        path.write_bytes(text)
        return dict(verdict=CAUGHT if code else SURVIVED, by=by, seconds=round(time.monotonic() - start, 1))

    def run(self, faults, folders):
        from mmseg import apis  # noqa: F401  (large, and without the package: each fork has it)

        self.record(folders)
        for number, fault in enumerate(faults, 1):
            result = fault | self.verdict(fault)
            append(self.results, result)
            print(f'[{number}/{len(faults)}] {line(result)}', flush=True)


def read(path):
    """The rows of a file of JSON lines, if it exists."""
    return [json.loads(row) for row in path.read_text(encoding='utf-8').splitlines()] if path.is_file() else []


def append(path, row):
    with path.open('a', encoding='utf-8') as file:
        file.write(json.dumps(row) + '\n')


def key(fault):
    return fault['file'], fault['begin'], fault['new']


def line(result):
    change = f'{result["old"]} -> {result["new"]}'.replace('\n', ' ')
    return f'{result["verdict"]} {result["seconds"]} s  {result["file"]}:{result["line"]}  {change}  {result["by"]}'


def print_table(results):
    """Verdicts by folder, and the 95 % interval (Wilson) of the rate; then the survivors."""
    print('| folder | faults | caught | survived | seconds |\n|---|---|---|---|---|')
    rooms = defaultdict(list)
    for result in results:
        rooms[room(result['file'])].append(result)
        rooms['~all'].append(result)
    for name, rows in sorted(rooms.items()):
        caught, seconds = sum(row['verdict'] == CAUGHT for row in rows), sum(row['seconds'] for row in rows)
        print(f'| {name} | {len(rows)} | {caught} | {len(rows) - caught} | {seconds:.0f} |')
    n, p = len(rows), caught / len(rows)
    middle, half = (p + 1.92 / n) / (1 + 3.84 / n), 1.96 * (p * (1 - p) / n + 0.96 / n**2) ** 0.5 / (1 + 3.84 / n)
    print(f'\n{p:.1%} caught, {middle - half:.1%} to {middle + half:.1%}\n')
    for result in sorted(results, key=key):
        if result['verdict'] == SURVIVED:
            print(line(result))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path, help='folder of the copy and the verdicts')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--count', type=int, default=300)
    parser.add_argument('--only', nargs='+', default=[''], metavar='FOLDER', help='faults of these, such as mmattn/ops')
    parser.add_argument('--tests', nargs='+', default=['tests'], metavar='FOLDER', help='run these tests and no others')
    parser.add_argument('--again', action='store_true', help='the survivors once more, with the tests as they are now')
    parser.add_argument('--table', action='store_true', help='print what was found, and run nothing')
    options = parser.parse_args()
    sample = Sample(options.folder.resolve())
    results = {key(result): result for result in read(sample.results)}  # the last verdict of each
    if options.table:
        return print_table(results.values())
    if options.again:
        shutil.rmtree(sample.checkout / 'tests')
        sample.recorded.unlink()
        sample.copy(sample.checkout, 'tests')
        faults = [result for result in results.values() if result['verdict'] == SURVIVED]
    else:
        drawn = draw(sample.checkout, options.seed, options.count)
        faults = [x for x in drawn if x['file'].startswith(tuple(options.only)) and key(x) not in results]
    sample.run(faults, options.tests)


if __name__ == '__main__':
    main()
