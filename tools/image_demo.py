"""Segment images: write an index map with its palette and a colour overlay for each image.

python tools/image_demo.py IMAGE_OR_FOLDER CONFIG CHECKPOINT --out-dir DIR    # DIR/pred/*.png, DIR/vis/*.png
"""

import argparse

from mmattn.utils.command import describe, run

from mmattn.engine import add_config_options, check_checkpoint, load_config
from mmattn.segmentation.face_parsing.inferencer import FaceParsingInferencer


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description='Segment images')
    parser.add_argument('image', help='path of an image, or of a folder of images')
    parser.add_argument('config', help='path of the config')
    parser.add_argument('checkpoint', help='path or URL of the checkpoint')
    parser.add_argument('--out-dir', required=True, help='folder for pred/<name>.png and vis/<name>.png')
    parser.add_argument('--device', help='such as cpu or cuda:1; default: a GPU if one is available')
    parser.add_argument(
        '--opacity', type=float, default=0.5, help='opacity of the colours over the image, 0 to 1; default: %(default)s'
    )
    parser.add_argument(
        '--batch-size',
        type=int,
        default=1,
        help='maximum number of images of the same size per batch; default: %(default)s',
    )
    add_config_options(parser)
    return parser.parse_args()


def main() -> None:
    """Segment the images and print the folders of the results."""
    args = parse_args()
    try:
        check_checkpoint(args.checkpoint)
        cfg = load_config(args.config, args.cfg_options)
        inferencer = FaceParsingInferencer(cfg, args.checkpoint, device=args.device)
        written = inferencer(args.image, args.out_dir, args.batch_size, args.opacity)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: lists the keys that do not fit
        raise SystemExit(describe(error)) from error
    print(f'{len(written)} index maps and overlays are in {args.out_dir}/pred and {args.out_dir}/vis')


if __name__ == '__main__':
    run(main)
