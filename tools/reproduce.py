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
training. ``--folds`` replaces the splits of the data set by a cross-validation. ``--units`` scores each test image,
clip or sentence, for intervals over seeds and units. ``--contrasts`` compares any two rows. ``--over`` draws the rows
over parameters or multiply-accumulates. See docs/reproduce.md.

The work dir gets a complete config of each row (``tools/train.py CONFIG --cfg-options randomness.seed=0`` repeats a
run), and a folder for each row and seed. After an interruption, the same command resumes: finished runs are not
repeated, and further seeds are added. Other settings require another work dir. The results are table.md (the paper's
figure; ours, mean ± deviation; the difference from the table's baseline, paired by seed, with its 95 % confidence
interval; parameters, multiply-accumulates, time, memory), plot.png and results.json, with several validations also
curves.png.
"""

import argparse
import ast
import re
from pathlib import Path
from typing import Any

from mmattn.utils.command import run
from mmattn.utils.faults import shorten
from reproduction.backbone import backbones
from reproduction.machine import add_machine, read_machine
from reproduction.plan import select
from reproduction.plots import COSTS
from reproduction.protocol import Protocol, data_sets, fitting_data
from reproduction.rehearsal import rehearse
from reproduction.report import markdown
from reproduction.reproduce import Scope, reproduce
from reproduction.runs import cores
from reproduction.tables import Row, add_variant, read_tables
from reproduction.task import NoTruthError, ProtocolError
from reproduction.untrained import UNTRAINED


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Reproduce a table of a paper')
    parser.add_argument('table', nargs='?', help='number of the table in the paper, such as 3.2')
    parser.add_argument(
        '--list', action='store_true', help='print the tables by paper; with TABLE, its rows and data sets'
    )
    parser.add_argument(
        '--rehearse',
        action='store_true',
        help='run each row on tiny data and a tiny network, to see that it would run; of the other options, --rows, '
        '--jobs and --work-dir',
    )
    parser.add_argument(
        '--all',
        action='store_true',
        help='with --rehearse, all tables: one row of each network and data set is trained, the others are checked; '
        "--rows '*' trains all",
    )
    parser.add_argument(
        '--rows',
        nargs='+',
        metavar='NAME',
        help='only these rows; * matches any text; without --contrasts, their baselines, too',
    )
    parser.add_argument(
        '--variant',
        nargs='+',
        action='append',
        default=[],
        metavar='WORD',
        help='NAME ROW KEY=VALUE …: a further row, with these settings in place of the ones of ROW, its baseline',
    )
    parser.add_argument(
        '--untrained', nargs='+', default=[], choices=[*UNTRAINED], help='rows without training, for video'
    )
    parser.add_argument(
        '--cfg-options', nargs='+', default=[], metavar='KEY=VALUE', help='settings of all rows, such as a loss'
    )
    parser.add_argument(
        '--dataset', help="a data set that --list prints, or a config in the same form; default: the paper's"
    )
    parser.add_argument('--data-root', type=Path, help='folder of the data set; default: the folder in its config')
    parser.add_argument(
        '--seeds', type=int, nargs='+', default=[0, 1, 2], help='one seed gives no intervals; default: 0 1 2'
    )
    parser.add_argument(
        '--folds',
        nargs='+',
        default=[],
        metavar='NAME,NAME',
        help='test clips or images of each fold, which trains on the names of the others',
    )
    parser.add_argument(
        '--units',
        nargs='?',
        const='.*',
        metavar='REGEX',
        help='score each test sample, for intervals over them; samples with the same match are drawn together',
    )
    parser.add_argument(
        '--sealed',
        action='store_true',
        help='with --units: neither print nor store a metric of the test before all runs are there',
    )
    parser.add_argument(
        '--contrasts', nargs='+', default=[], metavar="'OURS - BASELINE'", help='rows to compare, also of --variant'
    )
    parser.add_argument(
        '--family', type=int, help='number of contrasts to correct the intervals for; default: those of --contrasts'
    )
    parser.add_argument(
        '--over', choices=[*COSTS], help='draw plot.png over this cost of the network; default: one line per row'
    )
    parser.add_argument('--iters', type=int, help="iterations of each run; default: the config's")
    parser.add_argument('--scale', type=float, default=1.0, help='factor on image and crop sizes, up to 1; default: 1')
    parser.add_argument(
        '--network',
        choices=['paper', 'small'],
        help='small: a narrow network for CPUs, trained from scratch; default: small if --scale is below 1',
    )
    parser.add_argument(
        '--backbone', help="a backbone that --list prints, or a config in the same form; default: the network's own"
    )
    parser.add_argument('--pretrained', type=Path, metavar='FILE', help='initial weights of the backbone')
    parser.add_argument('--frozen', action='store_true', help='freeze the backbone')
    parser.add_argument(
        '--cached-crops',
        type=int,
        metavar='N',
        help='freeze the backbone, and train the heads on its stored features of N fixed crops',
    )
    parser.add_argument(
        '--validations',
        type=int,
        metavar='N',
        help='validate N times, for learning curves; default: as the config, or once if the validation is the test',
    )
    parser.add_argument('--amp', action='store_true', help='mixed precision; on a CPU, see train.py')
    parser.add_argument('--work-dir', type=Path, help='default: work_dirs/table_TABLE_DATASET')
    add_machine(parser)
    args = parser.parse_args()
    tables = read_tables()
    if args.list and args.table in (*tables, None):
        print_tables(tables) if args.table is None else print_table(tables[args.table])
        parser.exit()
    if args.all and (args.table or not args.rehearse):
        parser.error('--all is for --rehearse, without a table')
    if args.table not in tables and not args.all:
        names = ', '.join(tables)
        parser.error(f"table must be one of {names}; got '{args.table}'" if args.table else 'give a table, or --list')
    if len(set(args.seeds)) < len(args.seeds) or min(args.seeds) < 0:
        parser.error(f'--seeds must be different numbers, 0 or more; got {args.seeds}')
    if not 0 < args.scale <= 1:
        parser.error(f'--scale must be above 0 and up to 1; got {args.scale}')
    for name in ('iters', 'cached_crops', 'validations', 'family'):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f'--{name.replace("_", "-")} must be 1 or more; got {getattr(args, name)}')
    if args.data_root is not None and args.dataset is None:
        parser.error('--data-root requires --dataset')
    if args.all and args.jobs is None:
        args.jobs = cores()
    args.machine = read_machine(parser, args)
    if args.rehearse:
        chosen = tables if args.all else {args.table: tables[args.table]}
        args.tables = {name: select(rows, args.rows, False) for name, rows in chosen.items()}
        args.train_all = not args.all or args.rows is not None
        args.work_dir = args.work_dir or Path('work_dirs/rehearsal')
        return args
    args.network = args.network or ('small' if args.scale < 1 else 'paper')
    args.rows_of_table = tables[args.table]
    try:
        re.compile(args.units or '')
    except re.error as error:
        parser.error(f"--units must be a regular expression; got '{args.units}': {error}")
    try:
        args.cfg_options = read_settings(args.cfg_options)
        for name, row, *settings in args.variant:
            if not settings:
                raise ValueError(f"'{name}' has none")
            args.rows_of_table = add_variant(args.rows_of_table, name, row, read_settings(settings))
            args.rows = args.rows and [*args.rows, name]
    except ValueError as error:
        parser.error(f'--variant must be NAME ROW KEY=VALUE …, --cfg-options KEY=VALUE …; {error}')
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
        ]
        for row in rows
    )
    print(markdown(['setting', 'data', 'paper', 'baseline', 'config'], lines))
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
    folds = [list(filter(None, map(str.strip, fold.split(',')))) for fold in args.folds]
    scope = Scope(
        *(args.rows, args.seeds, folds, args.untrained, args.units, args.contrasts, args.family, args.over, args.sealed)
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
