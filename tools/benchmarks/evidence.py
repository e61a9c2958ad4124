"""Run a question of docs/evidence.md under its protocol, or report the results of all.

    python tools/benchmarks/evidence.py a … --stock 1200       # the stock components alone, to choose the size
    python tools/benchmarks/evidence.py a --data-root data/camvid --pretrained mobilenet_v2_imagenet.pth --jobs 2
    python tools/benchmarks/evidence.py a … --trained          # the primary contrasts, with the backbone trained
    python tools/benchmarks/evidence.py c … --explore          # variants of a method, on other seeds
    python tools/benchmarks/evidence.py report                 # tables, and docs/evidence.png

A run is one row with one seed, for question d in one fold of the clips. After an interruption, the same command
resumes. After each seed, the figures of all finished seeds are written to configs/reproduced/evidence, from which
``report`` reads them.
"""

import argparse
from pathlib import Path
from typing import Any

from mmattn.utils.command import run

from mmattn.reproduction.exploration import explore
from mmattn.reproduction.questions import EXPLORATORY, KINDS, QUESTIONS, RESULTS, answer, choose_size, report


def main() -> None:
    """Run a question, or report."""
    parser = argparse.ArgumentParser(description='Evidence for the claims of the papers')
    parser.add_argument('question', choices=[*QUESTIONS, 'report'])
    parser.add_argument('--data-root', type=Path, help='folder of the data set; default: the folder in its config')
    parser.add_argument('--pretrained', type=Path, metavar='FILE', help='weights of the backbone')
    parser.add_argument('--trained', action='store_true', help='train the backbone, too; only the primary contrasts')
    parser.add_argument(
        '--explore',
        action='store_true',
        help='train variants of the method, each with one change, on other seeds; for question c',
    )
    parser.add_argument(
        '--stock',
        type=int,
        metavar='ITERATIONS',
        help='train only the stock components, with this length and three seeds; their curves decide the size',
    )
    parser.add_argument('--work-dir', type=Path, help='default: work_dirs/evidence_QUESTION_frozen, or similar')
    parser.add_argument('--results', type=Path, default=RESULTS, help='figures of all questions; default: %(default)s')
    parser.add_argument('--picture', type=Path, default=Path('docs/evidence.png'), help='default: %(default)s')
    parser.add_argument('--jobs', type=int, default=1, help='simultaneous runs; they share the cores; default: 1')
    parser.add_argument('--workers', type=int, help="data loading processes of a run; default: the config's")
    args = parser.parse_args()
    if args.question == 'report':
        print(report(args.picture, args.results))
        return
    if args.pretrained is None:
        parser.error('a question requires --pretrained')
    if args.stock is not None and (args.stock < 10 or args.stock % 10):
        parser.error(f'--stock must be a multiple of 10, at least 10; got {args.stock}')
    for name, least in (('jobs', 1), ('workers', 0)):
        if getattr(args, name) is not None and getattr(args, name) < least:
            parser.error(f'--{name} must be {least} or more; got {getattr(args, name)}')
    if args.explore and (not QUESTIONS[args.question].variants or args.trained or args.stock):
        parser.error(f'--explore is for a question with variants, without --trained and --stock; got {args.question}')
    kind = EXPLORATORY if args.explore else KINDS[args.trained] + (f'_{args.stock}' if args.stock else '')
    work_dir = args.work_dir or Path('work_dirs', f'evidence_{args.question}_{kind}')
    options: dict[str, Any] = dict(data_root=args.data_root, jobs=args.jobs, workers=args.workers, results=args.results)
    if args.explore:
        print(explore(args.question, args.pretrained, work_dir, **options))
    elif args.stock is None:
        print(answer(args.question, args.pretrained, work_dir, trained=args.trained, **options))
    else:
        print(choose_size(args.question, args.stock, args.pretrained, work_dir, trained=args.trained, **options))


if __name__ == '__main__':
    run(main)
