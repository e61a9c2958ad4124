"""Draws small faults at random, and lists which of them the default tests of their folder catch:

    python tests/mutations/sample.py work_dirs/sample [--seed 1] [--count 300]
    python tests/mutations/sample.py work_dirs/sample --again     the survivors, with the tests of the working tree
                                                                  and of all rooms that have been recorded
    python tests/mutations/sample.py work_dirs/sample --table

A fault is one changed constant, comparison, sign, boolean operator, bound, pair of arguments, or statement. Each folder
has its share, by lines. A fault is applied to a copy of the checkout, and the tests of its room (tests/ops for
mmattn/ops) that call the changed function, or start a process beside it, run in a fork up to the first failure. Which
tests call which functions is recorded once, without faults. Each verdict is written at once, and the same command
continues.
"""

import argparse
import ast
import builtins
import contextlib
import copy
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
from run import CAUGHT, DEFAULT_SUITE, ROOT, SURVIVED

TESTED_IN = {'annotations': 'dataset_converters'}  # where a room of the package has no folder of tests
LONGEST = 60  # seconds of the tests of other rooms, as recorded
NOT_ON_CPU = 'mmattn/ops/triton/', 'mmattn/ops/gpu/'
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
    return (
        not isinstance(first, ast.Starred)
        and not isinstance(second, ast.Starred)
        and ast.dump(first) != ast.dump(second)
    )


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

    def visit(node, function):
        if isinstance(node, ast.FunctionDef):
            function = min(part.lineno for part in (node, *node.decorator_list))
        for kind, old, new in changes(node):
            begin, end = starts[old.lineno - 1] + old.col_offset, starts[old.end_lineno - 1] + old.end_col_offset
            source = ast.unparse(ast.fix_missing_locations(new))
            source = source if kind in ('statement', 'constant') else f'({source})'
            fault = dict(file=file, line=old.lineno, kind=kind, function=function, begin=begin, end=end, new=source)
            name = hashlib.sha256(f'{file} {lines[old.lineno - 1]} {begin} {source}'.encode()).hexdigest()[:10]
            faults.append(dict(fault, name=name, old=text.encode()[begin:end].decode()))
        if not isinstance(node, ast.Raise | ast.JoinedStr):
            for part in parts(node):
                visit(part, function)

    visit(ast.parse(text), None)
    return faults


def room(file):
    return file.split('/')[1].removesuffix('.py') + ('/' + file.split('/')[2] if '/language/' in file else '')


def draw(checkout, seed, count):
    """Draw lines, and one fault of each; a folder has its share of lines, and the order is random."""
    random.seed(seed)
    rooms, lines = defaultdict(lambda: defaultdict(list)), Counter()
    for path in sorted((checkout / 'mmattn').rglob('*.py')):
        file, text = path.relative_to(checkout).as_posix(), path.read_text(encoding='utf-8')
        if not file.startswith(NOT_ON_CPU) and file.count('/') > 1:
            lines[room(file)] += text.count('\n')
            for fault in faults_of(file, text):
                rooms[room(file)][file, fault['line']].append(fault)
    drawn = []
    for name, places in rooms.items():
        share = min(round(count * lines[name] / sum(lines.values())), len(places))
        drawn += [random.choice(places[place]) for place in random.sample(sorted(places), share)]
    random.shuffle(drawn)
    return drawn


def note_calls(package):
    """Compile the modules of a folder so that each function notes when it is called. Returns the set of the calls."""
    builtins.called_functions, get_code = set(), SourceFileLoader.get_code

    def noting(loader, name):
        if not loader.path.startswith(f'{package}/mmattn/'):
            return get_code(loader, name)
        tree = ast.parse(loader.get_data(loader.path))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                line = min(part.lineno for part in (node, *node.decorator_list))
                call = f'{loader.path[len(package) + 1 :]}:{line}'
                note = ast.parse(f'called_functions.add({call!r})').body[0]
                for part in ast.walk(note):
                    ast.copy_location(part, node.body[0])
                node.body.insert(ast.get_docstring(node, clean=False) is not None, note)
        return compile(tree, loader.path, 'exec', dont_inherit=True)

    SourceFileLoader.get_code = noting
    return builtins.called_functions


class Recorder:
    """Notes the functions of the package that each test calls, how long it takes, and whether it starts a process."""

    def __init__(self, package):
        self.package, self.tests, self.failed = package, {}, []
        self.started = False
        sys.addaudithook(self.audit)

    def audit(self, event, arguments):
        if event in ('subprocess.Popen', 'os.fork', 'os.forkpty', 'os.posix_spawn', 'socket.connect'):
            self.started = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self):
        self.calls = note_calls(self.package)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item):
        self.calls.clear()
        self.started, start = False, time.monotonic()
        yield
        seconds = time.monotonic() - start
        self.tests[item.nodeid] = dict(seconds=seconds, calls=sorted(self.calls), started=self.started)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.append(report.nodeid)


class Chosen:
    """Runs some tests first to last as they are given, and those that have not been recorded."""

    def __init__(self, order, recorded):
        self.order, self.recorded, self.by = {name: i for i, name in enumerate(order)}, recorded, ''

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        place = lambda item: self.order.get(item.nodeid, -1)  # noqa: E731
        items[:] = sorted((x for x in items if x.nodeid in self.order or x.nodeid not in self.recorded), key=place)

    def pytest_runtest_logreport(self, report):
        if report.failed and not self.by:
            self.by = report.nodeid


class Sample:
    """The copy of the checkout, what its tests call, and the verdicts."""

    def __init__(self, folder):
        self.folder, self.checkout, self.results = folder, folder / 'checkout', folder / 'results.jsonl'
        self.recorded = {}
        if not self.checkout.is_dir():
            self.copy(self.checkout.with_suffix('.part'))
            self.checkout.with_suffix('.part').rename(self.checkout)
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

    def forked(self, paths, plugin, limit, *options):
        """Run tests in a fork. Returns the exit code, or None after too long a time, and what the plugin learned."""
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
            sys.path[:0] = [str(self.checkout)]
            sys.argv = ['pytest']
            code = pytest.main(
                [
                    *('-n', '0', '-p', 'no:cacheprovider', '--tb=short', '-W', 'ignore', '-m', DEFAULT_SUITE),
                    *('--basetemp', str(temporary / 'pytest'), *options, *paths),
                ],
                [plugin],
            )
            learned = {name: value for name, value in vars(plugin).items() if name in ('tests', 'failed', 'by')}
            answer.write_text(json.dumps(learned))
            os._exit(code)
        deadline = time.monotonic() + limit
        while not (done := os.waitpid(process, os.WNOHANG))[0] and time.monotonic() < deadline:
            time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        if not done[0]:
            os.waitpid(process, 0)
            return None, {}
        return os.waitstatus_to_exitcode(done[1]), json.loads(answer.read_text()) if answer.is_file() else {}

    def tests_of(self, file):
        """What the tests of a file's folder call, without faults."""
        name = file.split('/')[1]
        folder = f'tests/{TESTED_IN.get(name, name)}'
        if folder not in self.recorded:
            path = self.folder / f'{folder.replace("/", "_")}.json'
            if not path.is_file():
                start = time.monotonic()
                code, learned = self.forked([folder], Recorder(str(self.checkout)), 7200)
                if not learned.get('tests'):
                    raise SystemExit(f'no tests in {folder} ({code}): {self.folder}/output.log')
                path.write_text(json.dumps(learned))
                seconds = time.monotonic() - start
                print(f'{folder}: {len(learned["tests"])} tests, {seconds:.0f} s; {learned["failed"]}', flush=True)
            self.recorded[folder] = json.loads(path.read_text())
        return self.recorded[folder]

    def verdict(self, fault, everywhere=False):
        """Apply a fault, and run the tests that could notice it, those that call its function and the fastest first."""
        recorded, reached = self.tests_of(fault['file']), {}
        if everywhere:
            learned = [recorded, *(json.loads(path.read_text()) for path in sorted(self.folder.glob('tests_*.json')))]
            tests = {name: test for each in learned for name, test in each['tests'].items()}
            recorded = dict(tests=tests, failed=[name for each in learned for name in each['failed']])
        beside = Path('tests', *Path(fault['file']).parts[1:-1])
        calls = f'{fault["file"]}:{fault["function"] or ""}'  # at module level, any function of the file
        for name, test in recorded['tests'].items():
            called = any(call == calls if fault['function'] else call.startswith(calls) for call in test['calls'])
            starts = test['started'] and Path(name).is_relative_to(beside)
            if (called or starts) and name not in recorded['failed']:
                reached[name] = (not called, test['seconds'])
        if everywhere:
            seconds = itertools.accumulate(test[1] for test in sorted(reached.values()))
            within = sum(total < LONGEST for total in seconds)
            reached = {name: reached[name] for name in sorted(reached, key=reached.get)[: max(within, 1)]}
        path = self.checkout / fault['file']
        text = path.read_bytes()
        start = time.monotonic()
        limit = 120 + 4 * sum(seconds for *_, seconds in reached.values())
        chosen = Chosen(sorted(reached, key=reached.get), recorded['tests'])
        path.write_bytes(text[: fault['begin']] + fault['new'].encode() + text[fault['end'] :])
        try:
            files = sorted({name.partition('::')[0] for name in reached})
            code, learned = self.forked(files, chosen, limit, '-x') if files else (0, {})
        finally:
            path.write_bytes(text)
        by = 'too slow' if code is None else learned.get('by') or ('not collected' if code else '')
        return dict(
            verdict=CAUGHT if code not in (0, 5) else SURVIVED,
            by=by,
            tests=len(reached),
            seconds=round(time.monotonic() - start, 1),
        )

    def read(self):
        """The last verdict of each fault."""
        lines = self.results.read_text(encoding='utf-8').splitlines() if self.results.is_file() else []
        return {result['name']: result for result in map(json.loads, lines)}

    def run(self, faults, everywhere=False):
        import_large_packages()
        for number, fault in enumerate(faults, 1):
            result = {**fault, 'room': room(fault['file']), **self.verdict(fault, everywhere)}
            with self.results.open('a', encoding='utf-8') as file:
                file.write(json.dumps(result) + '\n')
            print(f'[{number}/{len(faults)}] {line(result)}', flush=True)


def line(result):
    change = f'{result["old"]} -> {result["new"]}'.replace('\n', ' ')
    return f'{result["verdict"]} {result["seconds"]} s  {result["file"]}:{result["line"]}  {change}  {result["by"]}'


def import_large_packages():
    """What takes seconds, and does not know the package."""
    for name in ('torch', 'mmseg.models', 'mmseg.datasets', 'mmseg.engine', 'hypothesis', 'scipy.stats'):
        __import__(name)
    import torch

    torch.set_num_threads(1)


def print_table(results):
    """Verdicts by folder, and the 95 % interval (Wilson) of the rate; then the survivors."""
    print('| folder | faults | caught | survived | seconds |\n|---|---|---|---|---|')
    rooms = defaultdict(list)
    for result in results.values():
        rooms[result['room']].append(result)
        rooms['~all'].append(result)
    for name, rows in sorted(rooms.items()):
        caught = sum(row['verdict'] == CAUGHT for row in rows)
        print(f'| {name} | {len(rows)} | {caught} | {len(rows) - caught} | {sum(row["seconds"] for row in rows):.0f} |')
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
        sample.run([result for result in results.values() if result['verdict'] == SURVIVED], everywhere=True)
    else:
        drawn = draw(sample.checkout, options.seed, options.count)
        drawn = [fault for fault in drawn if fault['file'].startswith(tuple(options.only))]
        sample.run([fault for fault in drawn if fault['name'] not in results])


if __name__ == '__main__':
    main()
