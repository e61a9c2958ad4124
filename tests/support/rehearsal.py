"""Rehearse tables: each row on tiny data in its published layout, through converter, training, test and report.

    python tools/reproduce.py 3.2 --rehearse     # runs python -m tests.support.rehearsal 3.2

A row keeps its config, options and command lines; only sizes shrink. So a minute shows whether a row would run. The
rows that are not trained are checked: their full-size networks are built without memory, their data sets are read, and
their evaluators are built.
"""

import json
import math
import os
import re
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from hashlib import sha256
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, METRICS, MODELS, init_default_scope

from mmattn.utils.arguments import command
from mmattn.utils.command import describe, run
from mmattn.utils.files import check_writable, exclusive, write_text
from reproduction.machine import Machine
from reproduction.plan import check_data, plan, select, source_words, write_configs
from reproduction.protocol import Protocol, adapt, shipped, small_network
from reproduction.reproduce import make_run, reproduce, train_stages
from reproduction.rows import Row
from reproduction.runs import FORK, call, cores
from reproduction.store import Store
from reproduction.tables import read_tables
from reproduction.task import METRICS as METRIC_NAMES

from . import rehearsal_data
from .tiny_config import shrink

TINY = Protocol(shrink=shrink)
TRAINED, CHECKED = 'trained', 'checked'
# Messages about programs and packages that some rows need, and that not every machine has.
NOT_INSTALLED = re.compile(r"operators of mmcv|\bjava: |pip install|No module named '(?!mmattn)")


class Outcome(NamedTuple):
    """What a rehearsal found about a row: an empty text if it runs; ``truth`` is False if nobody can score it."""

    kind: str
    fault: str
    seconds: float
    truth: bool = True

    def suffices(self, kind: str) -> bool:
        """Whether the row need not be rehearsed again: it ran, and was trained if it has to be."""
        return not self.fault and kind in (self.kind, CHECKED)

    @property
    def words(self) -> str:
        if not self.fault:
            return 'ok' if self.truth else 'ok, without a score: the truth of the test is not public'
        return f'{"not installed" if NOT_INSTALLED.search(self.fault) else "failed"}: {self.fault}'


def rehearse(tables: dict[str, list[Row]], work_dir: Path, jobs: int, all_rows: bool) -> bool:
    """Rehearse the rows of some tables, and print a line for each row and a summary.

    After an interruption, the same call resumes: a row that ran before with the same config is not repeated.

    Args:
        tables (dict[str, list[Row]]): rows by table.
        work_dir (Path): gets the data sets, and a folder for each row. The folders of failed rows stay.
        jobs (int): tables at a time.
        all_rows (bool): train all rows. Otherwise one row of each pair of base config and data set is trained, and the
            others are checked.

    Returns:
        bool: whether no row failed. Missing programs and packages do not count.
    """
    start = time.monotonic()
    check_writable(work_dir)
    work_dir = work_dir.resolve()
    os.environ.update({name: str(rehearsal_data.place(name, work_dir / 'data')) for name in rehearsal_data.variables()})
    with exclusive(work_dir):
        with logged(work_dir / 'log.txt'):
            every = {name: [True] * len(rows) for name, rows in tables.items()}
            to_train = every if all_rows else choose_rows(tables)
            texts = {shipped(name).text for rows in tables.values() for row in rows for name in row.configs}
        used = sorted({name for text in texts for name in re.findall(r'\{\{\$(\w+):', text)})
        with suppress(RuntimeError):  # the rows on a data set that could not be made say so
            in_processes(lambda name: make_data(name, work_dir / 'data'), used, jobs)

        def rehearse_one(table: str) -> None:
            rehearse_table(tables[table], to_train[table], work_dir / table)

        if len(tables) == 1:
            rehearse_one(*tables)
        else:
            with suppress(RuntimeError):  # the summary names the rows without an outcome
                in_processes(rehearse_one, tables, jobs)
        return summarize(tables, work_dir, time.monotonic() - start)


def choose_rows(tables: dict[str, list[Row]]) -> dict[str, list[bool]]:
    """Return which rows are trained: the first one of each pair of base config and data set, also of ensembles."""
    seen = set()
    to_train: dict[str, list[bool]] = {}
    for table, rows in tables.items():
        to_train[table] = []
        for row in rows:
            cfg = shipped(row.configs[-1])
            pair = small_network(cfg).model, cfg.data_root, bool(row.members)
            to_train[table].append(pair not in seen)
            seen.add(pair)
    return to_train


def in_processes(function: Callable[[str], None], items: Iterable[str], jobs: int) -> None:
    """Call a function with each item in a fork of its own, ``jobs`` at a time."""
    failed: list[str] = []
    running: dict[Any, tuple[str, ForkProcess]] = {}

    def collect(limit: int) -> None:
        while len(running) >= limit:
            for sentinel in wait([*running]):
                item, process = running.pop(sentinel)
                process.join()
                if process.exitcode:
                    failed.append(item)

    for item in items:
        collect(jobs)
        process = FORK.Process(target=function, args=(item,))
        process.start()
        running[process.sentinel] = item, process
    while running:
        collect(len(running))
    if failed:
        raise RuntimeError(f'failed: {", ".join(failed)}')


def make_data(variable: str, folder: Path) -> None:
    """Make a data set of the rehearsal, unless it is there; ``VARIABLE.log`` gets what the converters print."""
    log = folder / f'{variable}.log'
    with logged(log):
        try:
            rehearsal_data.make(variable, folder)
        except Exception as error:
            traceback.print_exc()
            raise SystemExit(f'{variable}: {error}; see {log}') from None


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Write what the block prints to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, 'w', encoding='utf-8') as file, redirect_stdout(file), redirect_stderr(file):
        yield


def rehearse_table(rows: Sequence[Row], to_train: Sequence[bool], folder: Path) -> None:
    """Rehearse the rows of a table that did not run before, and store the outcomes.

    Prints a line for each row, and the differences of the table's configs from the source.
    """
    torch.set_num_threads(1)
    outcomes = read_outcomes(folder)
    for number, (row, train) in enumerate(zip(rows, to_train), 1):
        kind = TRAINED if train else CHECKED
        key = row_key(row)
        start = time.monotonic()
        place = folder / f'{number:02}_{re.sub(r"[^a-zA-Z0-9.-]+", "-", row.name).strip("-") or "row"}'
        rmtree(place, ignore_errors=True)
        digest = ''
        with logged(place / 'log.txt'):
            try:
                configs = [cfg.to_dict() for cfg in adapt(row, TINY, None)]
                digest = sha256(str([row._replace(source=[], deviations={}), configs]).encode()).hexdigest()
                before = outcomes.get(key)
                if before is not None and before[0] == digest and before[1].suffices(kind):
                    outcome = before[1]
                else:
                    truth = (run_row if train else check_row)(row, place)
                    outcome = Outcome(kind, '', time.monotonic() - start, truth)
            except Exception as error:
                traceback.print_exc()
                outcome = Outcome(kind, _words(error), time.monotonic() - start)
        if not outcome.fault:
            rmtree(place)
        outcomes[key] = digest, outcome
        content = {name: [digest, *outcome] for name, (digest, outcome) in outcomes.items()}
        write_text(folder / 'rehearsal.json', json.dumps(content, ensure_ascii=False, indent=0))
        print_line(row, outcome)

    for head, texts in zip(('differs', 'not stated'), source_words([*rows])):
        if texts:
            print(f'{rows[0].table} | source | {head} | {"; ".join(texts)}', flush=True)


def run_row(row: Row, folder: Path) -> bool:
    """Train and test a tiny version of a row, and report it; return whether the test can be scored."""
    in_forks = not torch.cuda.is_available()
    if not has_truth(adapt(row, TINY, None)[-1]):
        (method,) = plan([row], TINY, None)
        write_configs([method], folder / 'configs', ['A rehearsal'])
        made = make_run(method.name, method.paths[-1], 0, folder)._replace(in_fork=in_forks)
        _, checkpoint = train_stages(made, method, 0, 1)
        call(made, 1, 'test.py', made.config, checkpoint, '--work-dir', made.folder / 'test', *row.test)
        return False
    check_metric(row)
    reproduce([row], TINY, folder, Machine(workers=0, in_forks=in_forks), [0])
    (reported,) = Store(folder / 'results.json').rows
    metric = next(iter(row.metrics), None)
    mean = reported['mean'][metric] if metric else next(iter(reported['mean'].values()))
    if not math.isfinite(mean):
        raise RuntimeError(f'the report has {metric} = {mean}')
    return True


def check_row(row: Row, folder: Path) -> bool:
    """Build the networks of a row without memory, and its data sets and evaluator; return whether it can be scored."""
    for cfg in adapt(row, Protocol(), None):
        init_default_scope(cfg.default_scope)
        with torch.device('meta'):
            MODELS.build(cfg.model)
        METRICS.build(cfg.test_evaluator)
    (method,) = plan([row], TINY, None)
    if has_truth(method.configs[-1]):
        check_metric(row)
        check_data([method])
        return True
    for cfg in method.configs:
        init_default_scope(cfg.default_scope)
        for loader in (cfg.train_dataloader, cfg.test_dataloader):
            if not len(DATASETS.build(loader.dataset)):
                raise RuntimeError(f'nothing in {loader.dataset.data_root}')
    return False


def has_truth(cfg: Config) -> bool:
    if cfg.get('val_evaluator') is None:
        return False
    init_default_scope(cfg.default_scope)
    return getattr(DATASETS.build(cfg.test_dataloader.dataset), 'published', True)


def check_metric(row: Row) -> None:
    """Check that the evaluator of a row gives the compared metric of the table."""
    kind = shipped(row.configs[-1]).test_evaluator.type
    metric = next(iter(row.metrics), None)
    if kind not in METRIC_NAMES:
        raise RuntimeError(f'reproduce.py does not know the metrics of {kind}')
    given = METRIC_NAMES[kind][1].values()
    if metric is not None and metric not in given:
        raise RuntimeError(f'{kind} gives {", ".join(given)}, not {metric}')


def row_key(row: Row) -> str:
    return f'{row.name}, {row.setting}' if row.setting else row.name


def print_line(row: Row, outcome: Outcome) -> None:
    line = f'{row.table} | {row_key(row)} | {outcome.kind} | {outcome.words} | {outcome.seconds:.1f} s'
    print(line, flush=True)


def read_outcomes(folder: Path) -> dict[str, tuple[str, Outcome]]:
    """Return digest and outcome of the rows of a table that were rehearsed before."""
    path = folder / 'rehearsal.json'
    content = json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}
    return {name: (digest, Outcome(*values)) for name, (digest, *values) in content.items()}


def summarize(tables: dict[str, list[Row]], work_dir: Path, seconds: float) -> bool:
    """Print the numbers of outcomes and the rows that do not run. Returns whether no row failed."""
    lost = '', Outcome(CHECKED, 'its process ended before the row did', 0.0)
    outcomes = {
        f'{table}, {row_key(row)}': read_outcomes(work_dir / table).get(row_key(row), lost)[1]
        for table, rows in tables.items()
        for row in rows
    }
    trained = sum(outcome.kind == TRAINED for outcome in outcomes.values())
    faults = {name: outcome for name, outcome in outcomes.items() if outcome.fault}
    missing = sum(bool(NOT_INSTALLED.search(outcome.fault)) for outcome in faults.values())
    for name, outcome in faults.items():
        print(f'{name}: {outcome.words}')
    print(
        f'{len(outcomes)} rows of {len(tables)} tables in {seconds:.0f} s: {trained} trained, '
        f'{len(outcomes) - trained} checked; {len(faults) - missing} failed, {missing} need what is not installed'
    )
    return len(faults) == missing


def _words(error: Exception) -> str:
    """Return the message of an error, and for a failed tool the end of its log."""
    message = describe(error)
    match = re.search(r'see (\S+/output\.log)', message)
    if match is None:
        return message.splitlines()[0]
    lines = Path(match[1]).read_text(encoding='utf-8').strip().splitlines()
    errors = [i for i, line in enumerate(lines) if re.match(r'\w+\.py: error: |\w*(Error|Exception)\b', line)]
    # A message that ends with a colon is a head of a list.
    return ' '.join(lines[errors[-1] :][: 1 + lines[errors[-1]].endswith(':')]) if errors else lines[-1]


@command
def main(
    table: str | None = None,
    *,
    rows: list[str] | None = None,
    jobs: int | None = None,
    work_dir: Path = Path('work_dirs/rehearsal'),
) -> int:
    """Rehearse a table, or all: of these, one row of each network and data set is trained, or the chosen rows."""
    tables = read_tables()
    chosen = {name: select(each, rows, with_baselines=False) for name, each in tables.items() if table in (name, None)}
    all_rows = table is not None or rows is not None
    return int(not rehearse(chosen, work_dir, jobs or (1 if table else cores()), all_rows))


if __name__ == '__main__':
    run(main)
