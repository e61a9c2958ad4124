"""Reproduce a table of a paper: train its rows over several seeds, and write table, plot and figures.

    python tools/reproduce.py --list
    python tools/reproduce.py 3.2 --list
    python tools/reproduce.py 3.2 --seeds 0 1 2 --gpus 0,1,2,3
    python tools/reproduce.py 3.2 --rehearse
    python tools/reproduce.py 3.2 --dataset camvid --data-root data/camvid --seeds 0 1 2 --iters 160 --scale 0.5

By default, the paper's protocol is used, on the paper's data set, with one process and one GPU per run. ``--dataset``
selects another data set for the same task. ``--iters`` shortens training and its schedule. ``--scale`` reduces images
and crops, and uses a narrow network for CPUs, trained from scratch. ``--network paper`` keeps the paper's network;
``--network small`` uses the narrow network at full size. The head of the table lists all replacements.

``--rows`` selects rows. ``--variant`` adds one: another row with other settings. See docs/reproduce.md.

The work dir gets a complete config of each row (``tools/train.py CONFIG --cfg-options randomness.seed=0`` repeats a
run), and a folder for each row and seed. After an interruption, the same command resumes: finished runs are not
repeated, and further seeds are added. Other settings require another work dir. The results are table.md (the paper's
figure; ours, mean ± deviation; the difference from the table's baseline, paired by seed, with its 95 % confidence
interval; parameters, multiply-accumulates, time, memory), plot.png and results.json.

Args:
    table: number of the table in the paper, such as 3.2
    list: print the tables by paper; with TABLE, its rows and data sets
    rehearse: run each row on tiny data and a tiny network, to see that it would run; of the other options, --rows,
        --jobs and --work-dir. Requires a checkout, whose tests/support makes the data
    all: with --rehearse, all tables: one row of each network and data set is trained, the others are checked;
        --rows '*' trains all
    rows (NAME): only these rows, and their baselines; * matches any text
    variant (WORD): NAME ROW KEY=VALUE …: a further row, with these settings in place of the ones of ROW, its baseline
    cfg_options (KEY=VALUE): settings of all rows, such as a loss
    dataset: a data set that --list prints, or a config in the same form; default: the paper's
    data_root: folder of the data set; default: the folder in its config
    seeds: one seed gives no intervals; default: 0 1 2
    iters: iterations of each run; default: the config's
    scale: factor on image and crop sizes, up to 1; default: 1
    network: small: a narrow network for CPUs, trained from scratch; default: small if --scale is below 1
    amp: mixed precision; on a CPU, see train.py
    work_dir: default: work_dirs/table_TABLE_DATASET
"""

import ast
import os
import subprocess
import sys
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from mmattn.utils.arguments import UsageError, command
from mmattn.utils.command import run
from mmattn.utils.faults import shorten
from reproduction.machine import MachineArguments
from reproduction.plan import select
from reproduction.protocol import Protocol, data_sets, fitting_data
from reproduction.report import markdown
from reproduction.reproduce import reproduce
from reproduction.rows import Row
from reproduction.tables import add_variant, read_tables
from reproduction.task import NoTruthError, ProtocolError

Words = Annotated[list[str], dict(default=[])]


@dataclass
class Arguments(MachineArguments):
    """What the command is given."""

    table: str | None = None
    _: KW_ONLY
    rehearse: bool = False
    all: bool = False
    rows: list[str] | None = None
    variant: Annotated[Words, dict(action='append')] = ()
    cfg_options: Words = ()
    dataset: str | None = None
    data_root: Path | None = None
    seeds: Annotated[list[int], dict(default=[0, 1, 2])] = ()
    iters: int | None = None
    scale: float = 1.0
    network: Literal['paper', 'small'] | None = None
    amp: bool = False
    work_dir: Path | None = None
    list: bool = False  # the last: it hides the type


@command
def parse_args(args: Arguments) -> Arguments:
    tables = read_tables()
    if args.list and args.table in (*tables, None):
        print_tables(tables) if args.table is None else print_table(tables[args.table])
        raise SystemExit
    if args.all and (args.table or not args.rehearse):
        raise UsageError('--all is for --rehearse, without a table')
    if args.table not in tables and not args.all:
        names = ', '.join(tables)
        raise UsageError(
            f"table must be one of {names}; got '{args.table}'" if args.table else 'give a table, or --list'
        )
    if len(set(args.seeds)) < len(args.seeds) or min(args.seeds) < 0:
        raise UsageError(f'--seeds must be different numbers, 0 or more; got {args.seeds}')
    if not 0 < args.scale <= 1:
        raise UsageError(f'--scale must be above 0 and up to 1; got {args.scale}')
    if args.iters is not None and args.iters < 1:
        raise UsageError(f'--iters must be 1 or more; got {args.iters}')
    if args.data_root is not None and args.dataset is None:
        raise UsageError('--data-root requires --dataset')
    args.machine = args.read()
    if args.rehearse:
        for rows in tables.values() if args.all else [tables[args.table]]:
            select(rows, args.rows, with_baselines=False)
        args.work_dir = args.work_dir or Path('work_dirs/rehearsal')
        return args
    args.network = args.network or ('small' if args.scale < 1 else 'paper')
    args.rows_of_table = tables[args.table]
    try:
        args.cfg_options = read_settings(args.cfg_options)
        for name, row, *settings in args.variant:
            if not settings:
                raise ValueError(f"'{name}' has none")
            args.rows_of_table = add_variant(args.rows_of_table, name, row, read_settings(settings))
            args.rows = args.rows and [*args.rows, name]
    except ValueError as error:
        raise UsageError(f'--variant must be NAME ROW KEY=VALUE …, --cfg-options KEY=VALUE …; {error}') from None
    args.work_dir = args.work_dir or Path(f'work_dirs/table_{args.table}{f"_{args.dataset}" if args.dataset else ""}')
    return args


def read_settings(words: list[str]) -> dict[str, Any]:
    """Return settings given as ``KEY=VALUE``; a value is a Python literal, or else text."""
    settings = {}
    for word in words:
        key, sign, value = word.partition('=')
        if not sign:
            raise ValueError(f"got '{word}'")
        try:
            settings[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[key] = value
    return settings


def print_tables(tables: dict[str, list[Row]]) -> None:
    """Print one line per table, by paper, then the data sets."""
    for paper in sorted({rows[0].paper for rows in tables.values()}, key=lambda paper: (not paper, paper)):
        print(f'{paper or "Our own comparisons, on small data sets"}\n')
        names_by_table = {
            name: list(dict.fromkeys(row.name for row in rows))
            for name, rows in tables.items()
            if rows[0].paper == paper
        }
        lines = (
            [
                table,
                '; '.join(shorten(names, 4)),
                ', '.join(dict.fromkeys(row.data for row in tables[table])),
                ', '.join(dict.fromkeys(metric for row in tables[table] for metric in list(row.metrics)[:1])),
            ]
            for table, names in names_by_table.items()
        )
        print(markdown(['rows', 'data', 'metric'], lines))
    print('Data sets for --dataset, and the environment variables of their folders:\n')
    print(markdown(['variable'], ([name, variable] for name, variable in data_sets().items())))


def print_table(rows: list[Row]) -> None:
    """Print the rows of one table, and the data sets on which they can run."""
    print(f'Table {rows[0].table}{rows[0].paper and f" of {rows[0].paper}"}\n')
    lines = (
        [
            row.name,
            row.setting,
            row.data,
            ', '.join(f'{key} {value:g}' for key, value in row.metrics.items()),
            row.baseline or '',
            row.configs[-1],
            row.needs,
        ]
        for row in rows
    )
    print(markdown(['setting', 'data', 'paper', 'baseline', 'config', 'parameters, MACs, time'], lines))
    print(f'For --dataset: {", ".join(fitting_data(rows))}')


def rehearse(args: Arguments) -> int:
    """Run the rehearsal of the checkout, which makes its data as the tests do. Returns its exit code."""
    checkout = Path(__file__).resolve().parents[1]
    if not (checkout / 'tests/support/rehearsal.py').is_file():
        raise ProtocolError(f'--rehearse requires a checkout of mmattn: there is no tests/support in {checkout}')
    words = [sys.executable, '-m', 'tests.support.rehearsal', *([args.table] if args.table else [])]
    for name in ('rows', 'jobs', 'work_dir'):
        value = getattr(args, name)
        values = value if isinstance(value, list) else [value.resolve() if isinstance(value, Path) else value]
        words += [f'--{name.replace("_", "-")}', *map(str, values)] if value is not None else []
    libraries = [str(checkout / 'tools'), str(checkout / 'tools/dataset_converters')]
    paths = os.pathsep.join(filter(None, [*libraries, os.environ.get('PYTHONPATH')]))
    return subprocess.run(words, cwd=checkout, env={**os.environ, 'PYTHONPATH': paths}).returncode


def main() -> int:
    args = parse_args()
    if args.rehearse:
        return rehearse(args)
    protocol = Protocol(args.dataset, args.iters, args.scale, args.network == 'small', args.amp, args.cfg_options)
    chosen = args.seeds, args.rows, args.data_root
    try:
        print(reproduce(args.rows_of_table, protocol, args.work_dir, args.machine, *chosen))
    except NoTruthError as error:
        others = [name for name in fitting_data(args.rows_of_table) if name != args.dataset]
        choice = f'choose one of {", ".join(others)} by --dataset to compare here' if others else 'nothing else fits'
        raise ProtocolError(f'{error}; {choice}') from None
    return 0


if __name__ == '__main__':
    run(main)
