"""Compare two configs of your own: is the second better than the first on your data?

    python tools/compare.py stock.py mine.py --seeds 5
    python tools/compare.py stock.py mine.py --seeds 5 --cfg-options train_cfg.max_iters=1000 --units '(patient\\d+)'

Both configs are trained with the same seeds by tools/train.py, and tested on the same data by tools/test.py. What must
be equal is checked before. The work dir gets comparison.md (a sentence to quote, how many seeds would decide, a table),
comparison.png and results.json. After an interruption, the same command resumes: finished runs are not repeated. A
larger --seeds adds runs. See docs/custom_data.md.
"""

import argparse
import re
from pathlib import Path

from mmattn.engine import add_config_options
from mmattn.utils.command import run
from reproduction.machine import add_machine, read_machine
from reproduction.two_configs import compare_configs, read_pair


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Compare two configs over several seeds')
    parser.add_argument('configs', type=Path, nargs=2, metavar='CONFIG', help='the baseline, and what is compared')
    parser.add_argument(
        '--seeds', type=int, default=5, help='trainings of each config, with the seeds 0, 1, …; default: 5'
    )
    parser.add_argument('--metric', help="a metric of the configs' evaluator, such as mAcc; default: its first")
    parser.add_argument(
        '--units',
        metavar='REGEX',
        help='images whose names have the same match, such as of one patient, are drawn together; default: each alone',
    )
    parser.add_argument('--work-dir', type=Path, help='default: work_dirs/compare_CONFIG_CONFIG')
    add_config_options(parser)
    add_machine(parser)
    args = parser.parse_args()
    if args.seeds < 1:
        parser.error(f'--seeds must be 1 or more; got {args.seeds}')
    try:
        re.compile(args.units or '')
    except re.error as error:
        parser.error(f"--units must be a regular expression; got '{args.units}': {error}")
    args.machine = read_machine(parser, args)
    return args


def main() -> None:
    args = parse_args()
    pair = read_pair(args.configs, args.cfg_options or {})
    work_dir = args.work_dir or Path('work_dirs', '_'.join(['compare', *pair.names]))
    print(compare_configs(pair, work_dir, args.seeds, args.machine, args.metric, args.units))
    print(f'{work_dir}: comparison.md, comparison.png, results.json')


if __name__ == '__main__':
    run(main)
