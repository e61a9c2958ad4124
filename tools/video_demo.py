"""Segment objects in all frames of a video: write an index mask with its palette per frame, and a colour overlay.

    python tools/video_demo.py VIDEO --first-frame frame.png
    python tools/video_demo.py VIDEO MASK… --out DIR [--config CONFIG --checkpoint CHECKPOINT]

The first command writes the frame on which to paint. The second one writes DIR/masks/*.png and DIR/overlay.mp4, by
default by label propagation, which needs no training. The same command resumes an interrupted run.

Args:
    video: path of a video file or of a folder of frames
    masks (mask): masks whose values are object ids, or folders of masks, in a lossless format such as PNG; mask.png@20
        is the mask of frame 20; a mask with the name of a frame in a folder of frames belongs to that frame, any other
        to the first frame; a later mask of an object corrects it
    first_frame (PNG): only write the first frame, on which to paint a mask; frame.png@20 writes frame 20
    config: path of the config; default: label propagation, which needs no training
    checkpoint: path or URL of the checkpoint; required for an SST
    out: folder for masks/<frame>.png and overlay.mp4
    max_frames: maximum number of frames per forward pass, including those of the masks
    no_overlay: write only the masks
    opacity: opacity of the colours in the overlay, 0 to 1
    single_object: masks have two values, of which the higher one is object 1: pixels that are not transparent, or,
        without transparency, not black
    references: masks of an object that count in a frame: the last one before it, the nearest one, or all, weighted by
        their distance; with the latter two, objects are also followed backwards
    frame_order (READING): how to read the names of frames in a folder if the log warns that another order is possible:
        numbers, decimals, signed or text
    allow_gaps: allow frame numbers with unequal steps in a folder of frames
    overwrite: first remove the results of another run from OUT
"""

from typing import Annotated, Literal

from mmattn.engine import check_checkpoint, load_config
from mmattn.engine.command_line import Amp, CfgOptions, Device, FuseConvBN
from mmattn.utils.arguments import UsageError, command
from mmattn.utils.command import describe, run
from mmattn.utils.component_type import type_name
from mmattn.utils.paths import config_path


@command
def main(
    video: str,
    masks: Annotated[list[str], dict(nargs='*')],
    *,
    first_frame: str | None = None,
    config: str | None = None,
    checkpoint: str | None = None,
    out: str | None = None,
    max_frames: int = 16,
    device: Device = None,
    amp: Amp = False,
    fuse_conv_bn: FuseConvBN = False,
    no_overlay: bool = False,
    opacity: float = 0.5,
    single_object: bool = False,
    references: Literal['last', 'nearest', 'all'] = 'last',
    frame_order: str | None = None,
    allow_gaps: bool = False,
    overwrite: bool = False,
    cfg_options: CfgOptions = None,
) -> None:
    if first_frame and (masks or out):
        raise UsageError('--first-frame only writes the frame: paint the mask, then run the command without it')
    if not first_frame and not (masks and out):
        raise UsageError('a mask and --out are required (--first-frame frame.png writes the frame on which to paint)')
    from mmattn.video import VOSInferencer, write_frame  # late: they import packages that print
    from mmattn.video.inferencer import DEFAULT_CONFIG

    try:
        if first_frame:
            print(f'the frame is {write_frame(video, first_frame, frame_order, allow_gaps)}')
            return
        if checkpoint is not None:
            check_checkpoint(checkpoint)
        cfg = load_config(config or config_path(DEFAULT_CONFIG), cfg_options)
        if checkpoint is None and type_name(cfg.model) != 'LabelPropagation':
            raise ValueError(f'--checkpoint is required: {config} is not of label propagation')
        inferencer = VOSInferencer(cfg, checkpoint, device=device, amp=amp, fuse_conv_bn=fuse_conv_bn)
        written = inferencer(
            video,
            masks,
            out,
            max_frames,
            overlay=not no_overlay,
            opacity=opacity,
            single_object=single_object,
            overwrite=overwrite,
            references=references,
            frame_order=frame_order,
            allow_gaps=allow_gaps,
        )
    except (ImportError, OSError, RuntimeError, ValueError) as error:  # RuntimeError: lists the keys that do not fit
        raise SystemExit(describe(error)) from error
    overlay = '' if no_overlay else f', the overlay is {out}/overlay.mp4'
    print(f'{len(written)} masks are in {out}/masks{overlay}; {inferencer.summary}')


if __name__ == '__main__':
    run(main)
