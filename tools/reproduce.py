"""Reproduce a table of a paper: train its rows over several seeds, and write table, plot and figures.

    python tools/reproduce.py --list
    python tools/reproduce.py 3.2 --list
    python tools/reproduce.py 3.2 --seeds 0 1 2 --gpus 0,1,2,3
    python tools/reproduce.py 3.2 --rehearse
    python tools/reproduce.py 3.2 --dataset camvid --data-root data/camvid --seeds 0 1 2 --iters 160 --scale 0.5

By default, the paper's protocol is used, on the paper's data set, with one process and one GPU per run. ``--dataset``
selects another data set for the same task. ``--iters`` shortens training and its schedule. ``--scale`` reduces images
and crops, and uses a narrow network for CPUs, trained from scratch. ``--network paper`` keeps the paper's network;
``--network small`` uses the narrow network at full size. ``--backbone`` and ``--pretrained`` replace the backbone and
its initial weights. ``--frozen`` freezes it; ``--cached-crops N`` also trains the heads on its stored features of N
fixed crops. The head of the table lists all replacements.

``--rows`` selects rows. ``--variant`` adds one: another row with other settings. ``--untrained`` adds rows that need no
training. ``--units`` scores each test image, clip or sentence, for intervals over seeds and units. ``--contrasts``
compares any two rows. ``--over`` draws the rows over parameters or multiply-accumulates. See docs/reproduce.md.

The work dir gets a complete config of each row (``tools/train.py CONFIG --cfg-options randomness.seed=0`` repeats a
run), and a folder for each row and seed. After an interruption, the same command resumes: finished runs are not
repeated, and further seeds are added. Other settings require another work dir. The results are table.md (the paper's
figure; ours, mean ± deviation; the difference from the table's baseline, paired by seed, with its 95 % confidence
interval; parameters, multiply-accumulates, time, memory), plot.png and results.json, with several validations also
curves.png.

Args:
    table: number of the table in the paper, such as 3.2
    list: print the tables by paper; with TABLE, its rows and data sets
    rehearse: run each row on tiny data and a tiny network, to see that it would run; of the other options, --rows,
        --jobs and --work-dir
    all: with --rehearse, all tables: one row of each network and data set is trained, the others are checked;
        --rows '*' trains all
    rows (NAME): only these rows; * matches any text; without --contrasts, their baselines, too
    variant (WORD): NAME ROW KEY=VALUE …: a further row, with these settings in place of the ones of ROW, its baseline
    untrained: rows without training, for video
    cfg_options (KEY=VALUE): settings of all rows, such as a loss
    dataset: a data set that --list prints, or a config in the same form; default: the paper's
    data_root: folder of the data set; default: the folder in its config
    seeds: one seed gives no intervals; default: 0 1 2
    units (REGEX): score each test sample, for intervals over them; samples with the same match are drawn together
    sealed: with --units: neither print nor store a metric of the test before all runs are there
    contrasts ('OURS - BASELINE'): rows to compare, also of --variant
    family: number of contrasts to correct the intervals for; default: those of --contrasts
    over: draw plot.png over this cost of the network; default: one line per row
    iters: iterations of each run; default: the config's
    scale: factor on image and crop sizes, up to 1; default: 1
    network: small: a narrow network for CPUs, trained from scratch; default: small if --scale is below 1
    backbone: a backbone that --list prints, or a config in the same form; default: the network's own
    pretrained (FILE): initial weights of the backbone
    frozen: freeze the backbone
    cached_crops (N): freeze the backbone, and train the heads on its stored features of N fixed crops
    validations (N): validate N times, for learning curves; default: as the config, or once if the validation is the
        test
    amp: mixed precision; on a CPU, see train.py
    work_dir: default: work_dirs/table_TABLE_DATASET
"""

import ast
import re
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from mmattn.utils.arguments import UsageError, command
from mmattn.utils.command import run
from mmattn.utils.faults import shorten
from reproduction.backbone import backbones
from reproduction.machine import MachineArguments
from reproduction.plan import select
from reproduction.plots import COSTS
from reproduction.protocol import Protocol, data_sets, fitting_data
from reproduction.rehearsal import rehearse
from reproduction.report import markdown
from reproduction.reproduce import Scope, reproduce
from reproduction.rows import Row
from reproduction.runs import cores
from reproduction.tables import add_variant, read_tables
from reproduction.task import NoTruthError, ProtocolError
from reproduction.untrained import UNTRAINED

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
    untrained: Annotated[Words, dict(choices=[*UNTRAINED])] = ()
    cfg_options: Words = ()
    dataset: str | None = None
    data_root: Path | None = None
    seeds: Annotated[list[int], dict(default=[0, 1, 2])] = ()
    units: Annotated[str | None, dict(nargs='?', const='.*')] = None
    sealed: bool = False
    contrasts: Words = ()
    family: int | None = None
    over: Annotated[str | None, dict(choices=[*COSTS])] = None
    iters: int | None = None
    scale: float = 1.0
    network: Literal['paper', 'small'] | None = None
    backbone: str | None = None
    pretrained: Path | None = None
    frozen: bool = False
    cached_crops: int | None = None
    validations: int | None = None
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
    for name in ('iters', 'cached_crops', 'validations', 'family'):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise UsageError(f'--{name.replace("_", "-")} must be 1 or more; got {getattr(args, name)}')
    if args.data_root is not None and args.dataset is None:
        raise UsageError('--data-root requires --dataset')
    if args.all and args.jobs is None:
        args.jobs = cores()
    args.machine = args.read()
    if args.rehearse:
        chosen = tables if args.all else {args.table: tables[args.table]}
        args.tables = {name: select(rows, args.rows, with_baselines=False) for name, rows in chosen.items()}
        args.train_all = not args.all or args.rows is not None
        args.work_dir = args.work_dir or Path('work_dirs/rehearsal')
        return args
    args.network = args.network or ('small' if args.scale < 1 else 'paper')
    args.rows_of_table = tables[args.table]
    try:
        re.compile(args.units or '')
    except re.error as error:
        raise UsageError(f"--units must be a regular expression; got '{args.units}': {error}") from None
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
    """Print one line per table, by paper, then the data sets and the backbones."""
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
    print(f'\nBackbones: {", ".join(backbones())}')


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


def main() -> int:
    args = parse_args()
    if args.rehearse:
        return int(not rehearse(args.tables, args.work_dir, args.machine.jobs, args.train_all))
    protocol = Protocol(
        args.dataset,
        args.iters,
        args.scale,
        args.network == 'small',
        args.amp,
        args.backbone,
        args.pretrained,
        args.cached_crops,
        args.validations,
        args.frozen,
        args.cfg_options,
    )
    scope = Scope(
        *(args.rows, args.seeds, args.untrained, args.units, args.contrasts, args.family, args.over, args.sealed)
    )
    try:
        print(reproduce(args.rows_of_table, protocol, args.work_dir, scope, args.machine, args.data_root))
    except NoTruthError as error:
        others = [name for name in fitting_data(args.rows_of_table) if name != args.dataset]
        choice = f'choose one of {", ".join(others)} by --dataset to compare here' if others else 'nothing else fits'
        raise ProtocolError(f'{error}; {choice}') from None
    return 0


if __name__ == '__main__':
    run(main)
