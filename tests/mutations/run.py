"""Applies the faults of faults.toml one at a time to a copy of the checkout, and lists which of them the tests catch:

    python tests/mutations/run.py --results work_dirs/mutations.json [--only WORDS …]
    python tests/mutations/run.py --table before.json after.json

Each fault runs the tests that it names, up to the first failure, with the marks of the default suite. The faults that
survive are then applied together to run the whole default suite once; a test that fails, but not without faults, is run
with each of them alone.
Results are written after every fault, and a fault that has a result is not run again.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[2]
DEFAULT_SUITE = 'not (slow or e2e or kernels)'
SECONDS, SECONDS_OF_ALL = 900, 7200
SURVIVED, CAUGHT = 'survived', 'caught'


def read_faults(words=()):
    faults = tomllib.loads((Path(__file__).parent / 'faults.toml').read_text(encoding='utf-8'))['fault']
    return [fault for fault in faults if not words or any(word in fault['name'] for word in words)]


def key(fault):
    return (
        fault['name'] + ' ' + hashlib.sha256(repr((fault['file'], fault['old'], fault['new'])).encode()).hexdigest()[:8]
    )


def copy_checkout(target):
    """Copy the tracked files, as they are in the working tree, and what was built from them."""
    names = subprocess.run(['git', 'ls-files', '-z'], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in names.rstrip('\0').split('\0'):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    subprocess.run(['git', 'init', '--quiet'], cwd=target, check=True)
    subprocess.run(['git', 'add', '--all'], cwd=target, check=True)  # some tests list the tracked files
    build(target)


def build(copy):
    command = [sys.executable, 'setup.py', '-q', 'build_ext', '--inplace']
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f'the native operators did not compile:\n{done.stdout[-3000:]}{done.stderr[-3000:]}')


class Applied:
    """Within the block, the files of the copy have the faults."""

    def __init__(self, copy, faults):
        self.copy, self.faults = copy, faults
        self.native = any('/csrc/' in fault['file'] for fault in faults)

    def __enter__(self):
        self.before = {path: path.read_text(encoding='utf-8') for path in {self.copy / f['file'] for f in self.faults}}
        for fault in self.faults:
            path = self.copy / fault['file']
            text = path.read_text(encoding='utf-8')
            if text.count(fault['old']) != 1:
                raise SystemExit(
                    f'{fault["name"]}: its text occurs {text.count(fault["old"])} times in {fault["file"]}'
                )
            path.write_text(text.replace(fault['old'], fault['new']), encoding='utf-8')
        if self.native:
            build(self.copy)

    def __exit__(self, *error):
        for path, text in self.before.items():
            path.write_text(text, encoding='utf-8')
        if self.native:
            build(self.copy)


def run_tests(copy, tests, *options):
    """Run tests of the default suite: all, if none are named. Returns the exit code and the tests that failed."""
    command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-n', 'auto', '--maxprocesses', '2']
    command += ['--dist', 'worksteal', '-m', DEFAULT_SUITE, '-rfE', '--tb=no', '-W', 'ignore', *options, *tests]
    environment = {**os.environ, 'PYTHONPATH': str(copy), 'OMP_NUM_THREADS': '1', 'PYTHONDONTWRITEBYTECODE': '1'}
    limit = SECONDS if tests else SECONDS_OF_ALL
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        if not tests:  # it says nothing about a fault
            raise SystemExit(f'the whole default suite took more than {limit} seconds') from None
        return 1, [f'{limit} seconds exceeded']
    failed = re.findall(r'^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$', done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1, 2, 5):  # 2: interrupted by -x, 5: none in the default suite
        raise SystemExit(f'pytest ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}')
    return done.returncode, failed


def write(path, results):
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix('.part')
    part.write_text(json.dumps(results, indent=1) + '\n', encoding='utf-8')
    part.replace(path)


def run(faults, path):
    results = json.loads(path.read_text(encoding='utf-8')) if path.is_file() else {}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, 'checkout')
        copy.mkdir()
        copy_checkout(copy)
        for number, fault in enumerate(faults, 1):
            if key(fault) in results:
                continue
            start = time.monotonic()
            with Applied(copy, [fault]):
                code, failed = run_tests(copy, fault['tests'], '-x')
            outcome = dict(area=fault['area'], outcome=CAUGHT if code else SURVIVED, by=failed[:1])
            results[key(fault)] = outcome
            write(path, results)
            seconds = time.monotonic() - start
            print(
                f'[{number}/{len(faults)}] {outcome["outcome"]} {seconds:.0f} s  {fault["name"]}  {failed[:1]}',
                flush=True,
            )
        survivors = [
            fault for fault in faults if results[key(fault)] == dict(area=fault['area'], outcome=SURVIVED, by=[])
        ]
        if not survivors:
            return
        print(f'the whole default suite, with the {len(survivors)} that survived', flush=True)
        with Applied(copy, survivors):
            _, failed = run_tests(copy, [], '--ignore=tests/mutations')  # which looks for the text of each fault
        failed = [name for name in failed if '::' in name]
        if failed:  # not what fails in the copy without any fault
            failed = sorted({*failed} - {*run_tests(copy, failed)[1]})
        for fault in survivors:
            code, alone = 0, []
            if failed:
                with Applied(copy, [fault]):
                    code, alone = run_tests(copy, failed, '-x')
            outcome = dict(area=fault['area'], outcome=CAUGHT if code else SURVIVED, by=alone[:1], whole_suite=True)
            results[key(fault)] = outcome
            write(path, results)
            print(f'{outcome["outcome"]}  {fault["name"]}  {alone[:1]}', flush=True)


def print_table(paths):
    """A row per area: how many faults, how many of them are caught, and the names of those that are not."""
    columns = [json.loads(path.read_text(encoding='utf-8')) for path in paths]
    rows = defaultdict(list)
    for fault in read_faults():
        rows[fault['area']].append(fault)
    print('| area | faults |' + ''.join(f' caught, {path.stem} |' for path in paths) + ' not caught |')
    print('|---|---|' + '---|' * (len(paths) + 1))
    for area, faults in rows.items():
        caught = [
            {fault['name'] for fault in faults if column.get(key(fault), {}).get('outcome') == CAUGHT}
            for column in columns
        ]
        missed = [fault['name'] for fault in faults if any(fault['name'] not in names for names in caught)]
        counts = ''.join(f' {len(names)} |' for names in caught)
        print(f'| {area} | {len(faults)} |{counts} {"; ".join(missed)} |')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--results', type=Path, default=Path('work_dirs/mutations.json'), help='file to write and continue'
    )
    parser.add_argument('--only', nargs='+', default=(), metavar='WORDS', help='faults whose name has one of these')
    parser.add_argument(
        '--table', nargs='+', type=Path, metavar='FILE', help='print a table of results, and run nothing'
    )
    options = parser.parse_args()
    if options.table:
        print_table(options.table)
    else:
        run(read_faults(options.only), options.results)


if __name__ == '__main__':
    main()
