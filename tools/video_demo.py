"""Segment objects in all frames of a video: write an index mask with its palette per frame, and a colour overlay.

    python tools/video_demo.py VIDEO --first-frame frame.png
    python tools/video_demo.py VIDEO MASK… --out DIR [--config CONFIG --checkpoint CHECKPOINT]

The first command writes the frame on which to paint. The second one writes DIR/masks/*.png and DIR/overlay.mp4, by
default by label propagation, which needs no training. The same command resumes an interrupted run. With
--cutout webm, it also writes the objects on a transparent background, DIR/cutout.webm.
"""

import argparse

from mmattn.engine import add_config_options, add_device, check_checkpoint, load_config
from mmattn.utils.command import describe, run
from mmattn.utils.component_type import type_name
from mmattn.utils.paths import config_path


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Segment objects in all frames of a video')
    parser.add_argument(
        'video',
        help='path of a video file or of a folder of frames, number of a camera, address of a stream, or - for a video '
        'from standard input',
    )
    parser.add_argument(
        'masks',
        nargs='*',
        metavar='mask',
        help='masks whose values are object ids, or folders of masks, in a lossless format such as PNG; mask.png@20 is '
        'the mask of frame 20; a mask with the name of a frame in a folder of frames belongs to that frame, any other '
        'to the first frame; a later mask of an object corrects it',
    )
    parser.add_argument(
        '--first-frame',
        metavar='PNG',
        help='only write the first frame, on which to paint a mask; frame.png@20 writes frame 20',
    )
    parser.add_argument('--config', help='path of the config; default: label propagation, which needs no training')
    parser.add_argument('--checkpoint', help='path or URL of the checkpoint; required for an SST')
    parser.add_argument(
        '--backbone-weights', metavar='FILE', help="file in place of the backbone's weights that would be downloaded"
    )
    parser.add_argument('--out', help='folder for masks/<frame>.png, overlay.mp4 and cut-outs')
    parser.add_argument(
        '--max-frames',
        type=int,
        default=16,
        help='maximum number of frames per forward pass, including those of the masks; default: %(default)s',
    )
    add_device(parser)
    parser.add_argument('--no-overlay', action='store_true', help='write only the masks')
    parser.add_argument(
        '--opacity', type=float, default=0.5, help='opacity of the colours in the overlay, 0 to 1; default: %(default)s'
    )
    parser.add_argument(
        '--single-object',
        action='store_true',
        help='everything painted is object 1: pixels that are not transparent, or, without transparency, not black',
    )
    parser.add_argument(
        '--colours',
        nargs='+',
        default=(),
        metavar='COLOUR',
        help='colours of the objects 1, 2, … in the masks, such as red or ff0000; other pixels must be black or '
        'transparent, except on smoothed edges',
    )
    parser.add_argument(
        '--references',
        choices=('last', 'nearest', 'all'),
        default='last',
        help='masks of an object that count in a frame: the last one before it, the nearest one, or all, weighted by '
        'their distance; with the latter two, objects are also followed backwards; default: %(default)s',
    )
    parser.add_argument(
        '--frame-order',
        metavar='READING',
        help='how to read the names of frames in a folder if the log names several ways, such as numbers, decimals, '
        'letters or "day first"',
    )
    parser.add_argument(
        '--cutout',
        nargs='+',
        default=(),
        metavar='FORMAT',
        help='also cut the objects out: webm, png (one per frame) or gif, transparent or on a background, and mp4, mov '
        "or mkv on a background; videos require PyAV, pip install 'mmattn[cutouts]'",
    )
    parser.add_argument(
        '--cutout-objects', nargs='+', type=int, default=(), metavar='ID', help='objects to cut out; default: all'
    )
    parser.add_argument('--background', metavar='COLOUR', help="colour behind cut-outs, such as lime or '#00ff00'")
    parser.add_argument('--overwrite', action='store_true', help='first remove the results of another run from OUT')
    add_config_options(parser)
    args = parser.parse_args()
    if args.first_frame:
        if args.masks or args.out:
            parser.error('--first-frame only writes the frame: paint the mask, then run the command without it')
    elif not args.masks or not args.out:
        parser.error('a mask and --out are required (--first-frame frame.png writes the frame on which to paint)')
    return args


def main() -> None:
    args = parse_args()
    from mmattn.video import VOSInferencer, write_frame  # late: they import packages that print
    from mmattn.video.cutouts import read_cutouts
    from mmattn.video.inferencer import DEFAULT_CONFIG

    try:
        read_cutouts(args.cutout, args.cutout_objects, args.background)  # before weights are loaded
        if args.first_frame:
            print(f'the frame is {write_frame(args.video, args.first_frame, args.frame_order)}')
            return
        if args.checkpoint is not None:
            check_checkpoint(args.checkpoint)
        cfg = load_config(args.config or config_path(DEFAULT_CONFIG), args.cfg_options)
        if args.checkpoint is None and type_name(cfg.model) != 'LabelPropagation':
            raise ValueError(f'--checkpoint is required: {args.config} is not of label propagation')
        options = dict(device=args.device, backbone_weights=args.backbone_weights, amp=args.amp)
        inferencer = VOSInferencer(cfg, args.checkpoint, **options)
        written = inferencer(
            args.video,
            args.masks,
            args.out,
            args.max_frames,
            not args.no_overlay,
            args.opacity,
            args.single_object,
            args.overwrite,
            args.colours,
            args.references,
            args.frame_order,
            args.cutout,
            args.cutout_objects,
            args.background,
        )
    except (ImportError, OSError, RuntimeError, ValueError) as error:  # RuntimeError: lists the keys that do not fit
        raise SystemExit(describe(error)) from error
    overlay = '' if args.no_overlay else f', the overlay is {args.out}/overlay.mp4'
    cut = ', '.join(f'{args.out}/cutout{"" if name == "png" else f".{name}"}' for name in args.cutout)
    cut = f', the cut-out is {cut}' if cut else ''
    print(f'{len(written)} masks are in {args.out}/masks{overlay}{cut}; {inferencer.summary}')


if __name__ == '__main__':
    run(main)
