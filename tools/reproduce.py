"""Repeat a table of a paper: train its rows over several seeds, and write table, plot and figures.

    python tools/reproduce.py --list
    python tools/reproduce.py 3.2 --seeds 0 1 2 --gpus 0,1,2,3
    python tools/reproduce.py 3.2 --dataset camvid --data-root data/camvid --seeds 0 1 2 --iters 160 --scale 0.5

Without further arguments it is the paper's protocol on the paper's data set, one process and one GPU a run.
``--dataset`` names another one for the same task, ``--iters`` shortens the training and its schedule, ``--scale`` makes
images and crops smaller and takes a narrow network for CPUs, trained from scratch (``--network paper``: not that;
``--network small``: that alone). The head of the table says what was replaced.

The work dir gets, for each row, a complete config (``tools/train.py CONFIG --cfg-options randomness.seed=0`` repeats a
run by hand) and, for each row and seed, a folder. Interrupted or killed, the same command resumes; finished
runs are not repeated, further seeds are added. Other settings need another work dir. At the end there are table.md (the
paper's figure; ours, mean ± deviation; the difference to the table's baseline, paired by seed, with its 95 % confidence
interval; parameters, multiply-accumulates, time, memory), plot.png and results.json.
"""

import argparse
from pathlib import Path

from mmattn.utils.command import run

import torch

from mmattn.reproduction.protocol import Protocol, data_sets
from mmattn.reproduction.report import markdown
from mmattn.reproduction.reproduce import reproduce
from mmattn.reproduction.tables import Row, read_tables


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description='Repeat a table of a paper')
    parser.add_argument('table', nargs='?', help='its number in the paper, such as 3.2')
    parser.add_argument('--list', action='store_true', help='print tables, rows and data sets')
    parser.add_argument(
        '--rows', nargs='+', metavar='NAME', help='these rows alone, and their baselines; * for any text'
    )
    parser.add_argument('--dataset', help="one of those that --list prints; default: the paper's")
    parser.add_argument('--data-root', type=Path, help="the data set's folder; default: where its config has it")
    parser.add_argument(
        '--seeds', type=int, nargs='+', default=[0, 1, 2], help='one gives no intervals; default: 0 1 2'
    )
    parser.add_argument('--iters', type=int, help="iterations of each run; default: the config's")
    parser.add_argument('--scale', type=float, default=1.0, help='of image and crop sizes, up to 1; default: 1')
    parser.add_argument(
        '--network',
        choices=['paper', 'small'],
        help='small: narrow, for CPUs, trained from scratch; default: small if --scale is below 1',
    )
    parser.add_argument('--amp', action='store_true', help='mixed precision')
    parser.add_argument('--work-dir', type=Path, help='default: work_dirs/table_TABLE_DATASET')
    parser.add_argument('--gpus', help='GPUs to use, one run at a time on each: 0,1,…; default: the first')
    parser.add_argument(
        '--jobs', type=int, default=1, help='runs at a time, on each GPU if any; they share the cores; default: 1'
    )
    parser.add_argument('--workers', type=int, help="data loading processes of a run; default: the config's")
    args = parser.parse_args()
    tables = read_tables()
    if args.list:
        print_tables(tables)
        parser.exit()
    if args.table not in tables:
        parser.error(f"table '{args.table}' is none of {', '.join(tables)}" if args.table else 'a table, or --list')
    if len(set(args.seeds)) < len(args.seeds) or min(args.seeds) < 0:
        parser.error(f'--seeds takes seeds from 0 on, each once; got {args.seeds}')
    if not 0 < args.scale <= 1:
        parser.error(f'--scale is above 0 and up to 1; got {args.scale}')
    for name, least in (('iters', 1), ('jobs', 1), ('workers', 0)):
        if getattr(args, name) is not None and getattr(args, name) < least:
            parser.error(f'--{name} is {least} or more; got {getattr(args, name)}')
    if args.data_root is not None and args.dataset is None:
        parser.error('--data-root needs --dataset, which says what is in it')
    args.gpus = args.gpus.split(',') if args.gpus else []
    unknown = [gpu for gpu in args.gpus if not gpu.isdecimal() or int(gpu) >= torch.cuda.device_count()]
    if unknown or len(set(args.gpus)) < len(args.gpus):
        parser.error(f'--gpus takes numbers below {torch.cuda.device_count()}, each once; got {",".join(args.gpus)}')
    args.network = args.network or ('small' if args.scale < 1 else 'paper')
    args.rows_of_table = tables[args.table]
    args.work_dir = args.work_dir or Path(f'work_dirs/table_{args.table}{f"_{args.dataset}" if args.dataset else ""}')
    return args


def print_tables(tables: dict[str, list[Row]]) -> None:
    """Print what can be repeated, and on what."""
    for name, rows in tables.items():
        print(f'\nTable {name}\n')
        print(
            markdown(
                ['setting', 'data', 'paper', 'baseline', 'config'],
                (
                    [
                        row.name,
                        row.setting,
                        row.data,
                        ', '.join(f'{key} {value:g}' for key, value in row.metrics.items()),
                        row.baseline or '',
                        row.configs[-1],
                    ]
                    for row in rows
                ),
            )
        )
    print('Data sets, and the environment variables that say where they are:\n')
    print(markdown(['variable'], ([name, variable] for name, variable in data_sets().items())))


def main() -> None:
    """Train what is missing, write the report and print its table."""
    args = parse_args()
    print(
        reproduce(
            args.rows_of_table,
            Protocol(args.dataset, args.iters, args.scale, args.network == 'small', args.amp),
            args.work_dir,
            data_root=args.data_root,
            names=args.rows,
            seeds=args.seeds,
            gpus=args.gpus,
            jobs=args.jobs,
            workers=args.workers,
        )
    )


if __name__ == '__main__':
    run(main)
