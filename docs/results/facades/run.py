"""Train the rows, and test their last checkpoints. After an interruption, run the same command again to resume.

The work dir gets results.json with the intersections and unions of each test photograph, which ``score.py`` reads.
"""

import argparse
from pathlib import Path

from reproduction.machine import Machine
from reproduction.plan import Method, write_configs
from reproduction.reproduce import train_all
from reproduction.rows import Row
from reproduction.runs import lock
from reproduction.store import Store
from reproduction.two_configs import read_config

# Without positions, the bilateral heads compute what the stock heads compute, in less time.
ROWS = {
    'no-attention': dict(type='mmattn.AttentionHead'),
    'cc': dict(type='mmattn.BiCCHead', position='none'),
    'cc-rpe': dict(type='mmattn.BiCCHead', position='relative'),
    'bi-cc': dict(type='mmattn.BiCCHead'),
    'nl': dict(type='mmattn.BiNLHead', position='none'),
    'nl-rpe': dict(type='mmattn.BiNLHead', position='relative'),
    'bi-nl': dict(type='mmattn.BiNLHead'),
}
SEEDS = 5, 6, 7, 8, 9


def make_method(name: str, iters: int) -> Method:
    """Return a row with its config."""
    options = {f'model.decode_head.{key}': value for key, value in ROWS[name].items()}
    length = {'train_cfg.max_iters': iters, 'train_cfg.val_interval': iters}
    cfg = read_config(Path(__file__).with_name('facades.py'), {**options, **length})
    return Method(Row('', 0, name, '', None, {}, '', 8, [f'{name}.py'], [], {}), [cfg], [])


def main() -> None:
    """Train and test what is missing of the given rows and seeds."""
    parser = argparse.ArgumentParser(description='Train the rows on facades')
    parser.add_argument('--rows', nargs='+', choices=ROWS, default=[*ROWS])
    parser.add_argument('--seeds', nargs='+', type=int, default=SEEDS)
    parser.add_argument('--iters', type=int, default=600, help='other values are for trials')
    parser.add_argument('--jobs', type=int, default=1, help='simultaneous runs')
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/facades'))
    args = parser.parse_args()
    methods = [make_method(name, args.iters) for name in args.rows]
    args.work_dir.mkdir(parents=True, exist_ok=True)
    with lock(args.work_dir):
        write_configs(methods, args.work_dir / 'configs', [])
        store = Store(args.work_dir / 'results.json')
        train_all(methods, args.seeds, Machine(jobs=args.jobs, workers=0), store, by_unit=True)


if __name__ == '__main__':
    main()
