"""Segment objects in all frames of a video: write an index mask with its palette per frame, and a colour overlay.

    python tools/video_demo.py VIDEO_OR_FOLDER MASK… --config CONFIG --checkpoint CHECKPOINT --out DIR

writes DIR/masks/*.png and DIR/overlay.mp4. The same command resumes an interrupted run.
"""

import argparse

from mmattn.engine import add_config_options, check_checkpoint, load_config
from mmattn.utils.command import describe, run


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description='Segment objects in all frames of a video')
    parser.add_argument('video', help='path of a video file, or of a folder of frames')
    parser.add_argument(
        'masks',
        nargs='+',
        metavar='mask',
        help='masks whose values are object ids, or folders of masks, in a lossless format such as PNG; mask.png@20 is '
        'the mask of frame 20; a mask with the name of a frame in a folder of frames belongs to that frame, any other '
        'to the first frame',
    )
    parser.add_argument('--config', required=True, help='path of the config')
    parser.add_argument('--checkpoint', required=True, help='path or URL of the checkpoint')
    parser.add_argument('--out', required=True, help='folder for masks/<frame>.png and overlay.mp4')
    parser.add_argument(
        '--max-frames',
        type=int,
        default=16,
        help='maximum number of frames per forward pass, including those of the masks; default: %(default)s',
    )
    parser.add_argument('--device', help='such as cpu or cuda:1; default: a GPU if one is available')
    parser.add_argument('--no-overlay', action='store_true', help='write only the masks')
    parser.add_argument(
        '--opacity', type=float, default=0.5, help='opacity of the colours in the overlay, 0 to 1; default: %(default)s'
    )
    parser.add_argument(
        '--single-object', action='store_true', help='treat all non-zero values of the masks as object 1'
    )
    parser.add_argument('--overwrite', action='store_true', help='first remove the results of another run from OUT')
    add_config_options(parser)
    return parser.parse_args()


def main() -> None:
    """Segment the video and print the paths of the results."""
    from mmattn.video import VOSInferencer  # late: it imports packages that print

    args = parse_args()
    try:
        check_checkpoint(args.checkpoint)
        cfg = load_config(args.config, args.cfg_options)
        inferencer = VOSInferencer(cfg, args.checkpoint, device=args.device)
        written = inferencer(
            args.video,
            args.masks,
            args.out,
            args.max_frames,
            not args.no_overlay,
            args.opacity,
            args.single_object,
            args.overwrite,
        )
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: lists the keys that do not fit
        raise SystemExit(describe(error)) from error
    overlay = '' if args.no_overlay else f', the overlay is {args.out}/overlay.mp4'
    print(f'{len(written)} masks are in {args.out}/masks{overlay}; {inferencer.summary}')


if __name__ == '__main__':
    run(main)
