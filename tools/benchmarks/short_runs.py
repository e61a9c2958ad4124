"""Train the methods for a small data set in short runs over several seeds, and compare them with the stock method.

    python tools/benchmarks/short_runs.py bccd [--data-root data/bccd] [--seeds 0 1] [--jobs 1]
    python tools/benchmarks/short_runs.py fasseg
    python tools/benchmarks/short_runs.py davis --seeds 0 1 2

``bccd``: Faster R-CNN and its variants with attention. ``fasseg``: U-Net and U-Net-BA, tested on upright and rotated
images. ``davis``: SST on clips of DAVIS, compared with the repeated first mask; also with an empty reference mask.

Every row is a config of the package. After an interruption, the command resumes; finished runs are not repeated. The
work dir gets the files of ``tools/reproduce.py``, table.md, plot.png and results.json (with the figures of each seed),
and pictures for the runs of the first seed.
"""

import argparse
from importlib import import_module
from pathlib import Path

from mmattn.utils.command import run


def main() -> None:
    """Train the missing runs, write report and pictures, and print the table."""
    parser = argparse.ArgumentParser(description='Short trainings compared with the stock component')
    parser.add_argument('dataset', choices=['bccd', 'davis', 'fasseg'])
    parser.add_argument('--data-root', type=Path, help='folder of the data set; default: the folder in its config')
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1], help='default: 0 1')
    parser.add_argument('--iters', type=int, help="iterations of each run; default: the config's")
    parser.add_argument('--work-dir', type=Path, help='default: work_dirs/DATASET')
    parser.add_argument('--jobs', type=int, default=1, help='simultaneous runs; they share the cores; default: 1')
    args = parser.parse_args()
    runs = import_module(f'mmattn.reproduction.short_runs.{args.dataset}').RUNS
    work_dir = args.work_dir or Path('work_dirs', args.dataset)
    print(runs.run(args.seeds, work_dir, args.data_root, args.iters, args.jobs))


if __name__ == '__main__':
    run(main)
