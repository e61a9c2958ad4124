"""Count the multiply-accumulates and parameters of a config's model; compare a family of configs with the paper.

    python tools/analysis_tools/get_flops.py CONFIG [--shape H W] [--frames 8] [--depth 3]
    python tools/analysis_tools/get_flops.py configs/deeplabv3plus_ba

``mmattn/utils/complexity.py`` describes what is counted. For a folder, every config with figures of the paper in
metafile.yml is counted. For a config, and options, the entry in metafile.yml is also compared.
"""

import argparse
from pathlib import Path

from mmattn.engine import add_config_options, load_config
from mmattn.utils.command import run
from mmattn.utils.complexity import input_channels, input_size, table_by_module, table_with_paper


def main() -> None:
    parser = argparse.ArgumentParser(description='Count multiply-accumulates and parameters')
    parser.add_argument('config', type=Path, help='a config, or a folder with metafile.yml')
    parser.add_argument(
        '--shape',
        type=int,
        nargs='+',
        help="height and width, or one side; default: the config's crop size, or the size to which it scales images; "
        'for translation: the lengths of source and target in tokens',
    )
    parser.add_argument('--frames', type=int, help='length of a clip, for video models; default: 8')
    parser.add_argument('--depth', type=int, help='levels of modules in the table; default: 3')
    add_config_options(parser)
    args = parser.parse_args()
    if args.shape is not None and (len(args.shape) > 2 or min(args.shape) < 1):
        parser.error(f'--shape must be one side, or height and width, of at least one pixel; got {args.shape}')
    if args.config.is_dir():
        if any(value is not None for name, value in vars(args).items() if name != 'config'):
            parser.error(f'{args.config} is a folder: its metafile defines what is counted; options require a config')
        table = table_with_paper(args.config / 'metafile.yml')
        if table is None:
            raise SystemExit(
                f'{args.config}/metafile.yml has no figures of a paper (Complexity) to compare with; choose one config'
            )
        print(table)
        return
    cfg = load_config(args.config, args.cfg_options)
    shape = args.shape or input_size(cfg)
    if shape is None:
        parser.error(f'--shape is required: {args.config} neither crops nor scales its images')
    frames, depth = 8 if args.frames is None else args.frames, 3 if args.depth is None else args.depth
    print(table_by_module(cfg, (input_channels(cfg), shape[0], shape[-1]), frames, depth))
    metafile = args.config.parent / 'metafile.yml'
    table = table_with_paper(metafile, args.config.stem, args.cfg_options) if metafile.is_file() else None
    if table is not None:
        print(table)


if __name__ == '__main__':
    run(main)
