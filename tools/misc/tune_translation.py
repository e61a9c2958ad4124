"""Choose the number of averaged checkpoints and the length penalty by BLEU on the validation data.

    python tools/misc/tune_translation.py CONFIG WORK_DIR --out tuned.pth

The papers on translation tune both. For each number of --last, the latest checkpoints of the work dir are averaged, and
the validation data are translated with each --length-penalty. The best average is written to --out, and the command
that tests it is printed. Of equal scores, the first counts. The config must keep enough checkpoints
(``default_hooks.checkpoint.max_keep_ckpts``).
"""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from average_checkpoints import average, last_checkpoints, write_checkpoint
from mmengine.config import Config
from mmengine.runner import Runner

from mmattn.engine import add_check, add_common_arguments, config_from, prepare_for_cpu
from mmattn.language.translation.transformer import TranslationTransformer
from mmattn.utils.command import run
from mmattn.utils.files import check_writable


def scores(cfg: Config, averages: dict[int, dict], penalties: Sequence[float]) -> dict[tuple[int, float], float]:
    """Return the BLEU of each average, by its number of checkpoints, with each length penalty."""
    cfg.test_dataloader, cfg.test_evaluator = cfg.val_dataloader, cfg.val_evaluator
    prepare_for_cpu(cfg)
    runner = Runner.from_cfg(cfg)
    if not isinstance(runner.model, TranslationTransformer):
        raise ValueError(f'the config must have a mmattn.TranslationTransformer; got {type(runner.model).__name__}')
    add_check(runner)
    runner.call_hook('before_test_loop')
    runner.call_hook('before_run')
    bleu = {}
    for number, checkpoint in averages.items():
        runner.call_hook('after_load_checkpoint', checkpoint=checkpoint)  # checks that it fits data and model
        runner.model.load_state_dict(checkpoint['state_dict'])
        for penalty in penalties:
            runner.model.test_cfg['length_penalty'] = penalty
            bleu[number, penalty] = runner.test_loop.run()['BLEU']
    return bleu


def main() -> None:
    parser = argparse.ArgumentParser(description='Tune averaging and length penalty of a translation model')
    parser.add_argument('config', help='path of the config')
    parser.add_argument('checkpoints', type=Path, help='work dir of the training')
    parser.add_argument(
        '--last', type=int, nargs='+', default=[1, 5, 10], help='numbers of checkpoints to average; default: 1 5 10'
    )
    parser.add_argument(
        '--length-penalty',
        type=float,
        nargs='+',
        default=[0.0, 0.5, 1.0, 1.5, 2.0],
        metavar='ALPHA',
        help='values of test_cfg.length_penalty; default: 0 0.5 1 1.5 2',
    )
    parser.add_argument(
        '--out', type=Path, required=True, help='path of the best average; an existing file is an error'
    )
    add_common_arguments(parser)
    typed = argparse.ArgumentParser(add_help=False)
    typed.add_argument('--cfg-options', nargs='+', action='extend', default=[])
    args = parser.parse_args()
    if args.launcher != 'none':
        parser.error('--launcher must be none: one process translates the validation data')
    if min(args.last) < 1:
        parser.error(f'--last must be at least 1; got {min(args.last)}')
    if args.out.exists():
        raise FileExistsError(f'{args.out} exists already')
    check_writable(args.out.parent)
    cfg = config_from(args)
    cfg.load_from = str(args.checkpoints)  # the name of all averages in errors
    paths = {number: last_checkpoints(args.checkpoints, number) for number in dict.fromkeys(args.last)}
    averages = {number: average(part) for number, part in paths.items()}
    bleu = scores(cfg, averages, args.length_penalty)
    print(f'| BLEU, validation | {" | ".join(f"α = {penalty:g}" for penalty in args.length_penalty)} |')
    print('| --- ' * (len(args.length_penalty) + 1) + '|')
    for number in paths:
        values = ' | '.join(f'{bleu[number, penalty]:.2f}' for penalty in args.length_penalty)
        print(f'| {number} averaged | {values} |')
    number, penalty = max(bleu, key=bleu.__getitem__)
    write_checkpoint(args.out, paths[number], lambda _: averages[number])
    command = ['python', 'tools/test.py', args.config, str(args.out)]
    command += [] if args.work_dir is None else ['--work-dir', args.work_dir]
    options = [*typed.parse_known_args()[0].cfg_options, f'model.test_cfg.length_penalty={penalty!r}']
    print(f'Test: {shlex.join([*command, "--cfg-options", *options])}')


if __name__ == '__main__':
    run(main)
