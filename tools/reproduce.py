"""Repeat a table of a paper: train its rows over several seeds, and write table, plot and figures.

    python tools/reproduce.py --list
    python tools/reproduce.py 3.2 --seeds 0 1 2 --gpus 0,1,2,3
    python tools/reproduce.py 3.2 --dataset camvid --data-root data/camvid --seeds 0 1 2 --iters 160 --scale 0.5

Without further arguments it is the paper's protocol on the paper's data set, one process and one GPU a run.
``--dataset`` names another one for the same task, ``--iters`` shortens the training and its schedule, ``--scale`` makes
images and crops smaller and takes a narrow network for CPUs, trained from scratch (``--network paper``: not that;
``--network small``: that alone). What was replaced is said at the head of the table.

The work dir gets, for each row, a complete config (``tools/train.py CONFIG --cfg-options randomness.seed=0`` repeats a
run by hand) and, for each row and seed, a folder. Interrupted or killed, the same command goes on where it stopped;
finished runs are not repeated, further seeds are added. Other settings need another work dir. At the end there are
table.md (the paper's figure; ours, mean ± deviation; the difference to the table's baseline, paired by seed, with its
95 % confidence interval; parameters, multiply-accumulates, time, memory), plot.png and results.json.
"""

import argparse
import os
import platform
import statistics
from pathlib import Path
from queue import Queue

from mmattn.utils.command import run

import torch
from benchmarks.short_runs import Run, each, finish, last_scores, lock, markdown, peak_memory, scalars, test
from mmengine.config import Config
from reproduction.plan import Method, check_data, plan, words, write_configs
from reproduction.protocol import Protocol, data_sets, input_size, length, metrics_of, read_data
from reproduction.report import Measured, Result, Setup, write_report
from reproduction.tables import Row, read_tables

from mmattn.utils.files import check_writable


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


def with_workers(cfg: Config, workers: int | None) -> list[str]:
    """Return the options that give each data loader of a config so many processes."""
    loaders = [key for key in ('train_dataloader', 'val_dataloader', 'test_dataloader') if cfg.get(key) is not None]
    return (
        []
        if workers is None
        else [
            f'{loader}.{key}={value}'
            for loader in loaders
            for key, value in (('num_workers', workers), ('persistent_workers', workers > 0))
        ]
    )


def run_stages(run: Run, method: Method, workers: int | None, jobs: int) -> Result:
    """Train a method's stages with one seed, or what is missing of them, and return the last one's result."""
    start: list[str] = []
    for stage, (path, cfg) in enumerate(zip(method.paths, method.configs), 1):
        steps, unit = length(cfg)
        folder = run.folder if stage == len(method.paths) else run.folder / f'stage_{stage}'
        staged = run._replace(config=str(path.resolve()), options=start + with_workers(cfg, workers), folder=folder)
        last = folder / f'{unit}_{steps}.pth'
        finish(staged, jobs, last)
        start = [f'load_from={last}']
    _, keys, factor = metrics_of(cfg)
    arguments = method.rows[0].test
    found = None if arguments else last_scores(run.folder, next(iter(keys)), steps)
    found = found or test(staged, jobs, last, *arguments)
    logs = scalars(run.folder)
    times = [line['time'] for log in logs for line in log[1:] or log if 'loss' in line]
    memory = max((line['memory'] for log in logs for line in log if 'memory' in line), default=peak_memory(run.folder))
    if not times:
        raise SystemExit(f'{last} is there, but no log of its training: remove {run.folder}')
    return Result({name: factor * found[key] for key, name in keys.items()}, statistics.median(times), memory)


def run_all(args: argparse.Namespace, methods: list[Method]) -> dict[tuple[str, int], Result]:
    """Train what is missing, and return the results by method and seed."""
    named = {method.name: method for method in methods}
    places: Queue[dict[str, str]] = Queue()
    visible = list(filter(None, os.environ.get('CUDA_VISIBLE_DEVICES', '').split(',')))  # --gpus counts those
    for gpu in (args.gpus or [None]) * args.jobs:
        places.put({} if gpu is None else {'CUDA_VISIBLE_DEVICES': visible[int(gpu)] if visible else gpu})
    jobs = places.qsize()

    def work(run: Run) -> Result:
        environment = places.get()
        try:
            return run_stages(run._replace(environment=environment), named[run.method], args.workers, jobs)
        finally:
            places.put(environment)

    todo = [
        Run(method.name, seed, '', [], args.work_dir / f'{method.paths[-1].stem}_seed-{seed}')
        for seed in args.seeds
        for method in methods
    ]
    try:
        return {(run.method, run.seed): result for run, result in each(work, todo, jobs)}
    except KeyboardInterrupt:
        raise KeyboardInterrupt('the same command continues') from None


def main() -> None:
    """Plan, run what is missing, report."""
    args = parse_args()
    protocol = Protocol(args.dataset, args.iters, args.scale, args.network == 'small', args.amp)
    data = None if args.dataset is None else read_data(args.dataset, args.data_root)
    check_writable(args.work_dir)
    methods = plan(args.rows_of_table, protocol, data, args.rows)
    check_data(methods)
    deviations = words(methods, protocol, data)
    with lock(args.work_dir):
        write_configs(methods, args.work_dir / 'configs', [f'Table {args.table}', *deviations])
        counts = {method.name: method.counts() for method in methods}
        found = run_all(args, methods)
        cuda = torch.cuda.is_available()
        device = torch.cuda.get_device_name() if cuda else f'CPU ({platform.machine()})'
        setup = Setup(
            args.table,
            args.dataset or ' and '.join(sorted({row.data for method in methods for row in method.rows})),
            deviations,
            ' or '.join(dict.fromkeys('{1}×{0}'.format(*input_size(m.configs[-1])) for m in methods)),
            f'{device}, torch {torch.__version__}',
            'CUDA tensors' if cuda else 'resident set of the process',
        )
        print(
            write_report(
                [
                    Measured(
                        method.name,
                        method.rows,
                        method.baseline,
                        f'configs/{method.paths[-1].name}',
                        *counts[method.name],
                        {seed: found[method.name, seed] for seed in args.seeds},
                    )
                    for method in methods
                ],
                setup,
                args.work_dir,
            )
        )


if __name__ == '__main__':
    run(main)
