"""Segment images: write an index map with its palette and a colour overlay for each image. Or detect objects in them.

    python tools/image_demo.py IMAGE_OR_FOLDER CONFIG CHECKPOINT --out-dir DIR

writes DIR/pred/*.png and DIR/vis/*.png. --probabilities adds DIR/prob/*.npy.

With the config and checkpoint of a detector, the command writes boxes, classes and scores, DIR/pred/*.json, and
pictures with the boxes, DIR/vis/*.png.

Args:
    image: path of an image, or of a folder of images
    out_dir: folder for pred/<name>.png and vis/<name>.png
    opacity: opacity of the colours over the image, 0 to 1
    batch_size: maximum number of images of the same size, or of tiles, per batch
    probabilities: also write prob/<name>.npy, float16 (classes, height, width)
    pred_score_thr (S): of detectors: objects with smaller scores are left out, 0 to 1; default: 0.3
"""

from dataclasses import KW_ONLY, dataclass, fields

from mmattn.engine import Amp, ModelArguments, check_checkpoint, load_config
from mmattn.engine.command_line import FuseConvBN
from mmattn.utils.arguments import UsageError, command
from mmattn.utils.command import describe, run
from mmattn.utils.component_type import model_scope

COMMON = {
    'config',
    'checkpoint',
    'out_dir',
    'device',
    'cfg_options',
    'pred_score_thr',
    'fuse_conv_bn',
}  # arguments for detectors


@dataclass
class Arguments(ModelArguments):
    """What the command is given."""

    _: KW_ONLY
    out_dir: str
    amp: Amp = False
    opacity: float = 0.5
    batch_size: int = 1
    probabilities: bool = False
    pred_score_thr: float | None = None
    fuse_conv_bn: FuseConvBN = False

    def __post_init__(self) -> None:
        if not 0 <= self.opacity <= 1:
            raise UsageError(f'--opacity must be from 0 to 1; got {self.opacity}')


def detect(image: str, args: Arguments) -> None:
    """Detect objects in the images and print the folders of the results."""
    given = [field.name for field in fields(args) if getattr(args, field.name) != field.default]
    if others := [f'--{name.replace("_", "-")}' for name in given if name not in COMMON]:
        raise ValueError(f'{", ".join(others)}: only for segmentors')
    from mmattn.detection import DetectionInferencer  # late: mmdet requires the operators of mmcv

    cfg = load_config(args.config, args.cfg_options)
    inferencer = DetectionInferencer(cfg, args.checkpoint, device=args.device, fuse_conv_bn=args.fuse_conv_bn)
    written = inferencer(image, args.out_dir, 0.3 if args.pred_score_thr is None else args.pred_score_thr)
    print(f'boxes and pictures of {len(written)} images are in {args.out_dir}/pred and {args.out_dir}/vis')


@command
def main(image: str, args: Arguments) -> None:
    try:
        check_checkpoint(args.checkpoint)
        cfg = load_config(args.config, args.cfg_options)
        if model_scope(cfg) == 'mmdet':
            detect(image, args)
            return
        if args.pred_score_thr is not None:
            raise ValueError('--pred-score-thr: only for detectors')
        from mmattn.segmentation.inferencer import SegmentationInferencer  # late: mmseg prints at import

        inferencer = SegmentationInferencer(
            cfg, args.checkpoint, device=args.device, amp=args.amp, fuse_conv_bn=args.fuse_conv_bn
        )
        written = inferencer(image, args.out_dir, args.batch_size, args.opacity, args.probabilities)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: lists the keys that do not fit
        raise SystemExit(describe(error)) from error
    print(f'{len(written)} index maps and overlays are in {args.out_dir}/pred and {args.out_dir}/vis')


if __name__ == '__main__':
    run(main)
