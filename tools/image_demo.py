"""Segment images: write an index map with its palette and a colour overlay for each image. Or detect objects in them.

    python tools/image_demo.py IMAGE_OR_FOLDER CONFIG CHECKPOINT --out-dir DIR

writes DIR/pred/*.png and DIR/vis/*.png. --probabilities adds DIR/prob/*.npy, --coco DIR/coco.json with polygons,
--geojson DIR/geojson/*.geojson with polygons in map coordinates. --tile segments large images in parts.

    python tools/image_demo.py IMAGE_OR_FOLDER CONFIG CHECKPOINT CONFIG CHECKPOINT … --out-dir DIR [--truth MASKS]

compares models: it writes DIR/NAME/pred and DIR/NAME/vis for each, and DIR/comparison.jpg, a sheet with a row per image
and a column per model, beside the image and its mask in the folder MASKS.

With the config and checkpoint of a detector, the first command writes boxes, classes and scores, DIR/pred/*.json, and
pictures with the boxes, DIR/vis/*.png.

Args:
    image: path of an image, or of a folder of images
    out_dir: folder for pred/<name>.png and vis/<name>.png
    truth (MASKS): folder of masks <name>.png, for comparison.jpg
    sheet_images (N): images in comparison.jpg, the first ones; default: 8
    opacity: opacity of the colours over the image, 0 to 1
    batch_size: maximum number of images of the same size, or of tiles, per batch
    probabilities: also write prob/<name>.npy, float16 (classes, height, width)
    coco: also write coco.json, with a polygon for each connected area of a class
    geojson: also write geojson/<name>.geojson, with these polygons in the map coordinates of a GeoTIFF or world file
    legend: write the names and colours of an image's classes below its overlay
    tile (SIZE): segment what the test pipeline makes of an image in overlapping tiles of SIZE×SIZE pixels, as
        mode="slide" of mmseg does, with memory for the image and one row of tiles
    stride: distance between tiles; default: two thirds of SIZE
    scale (S): segment at S times the size of the file, in place of the test pipeline's Resize; 1: as it is
    score_threshold (S): of detectors: objects with smaller scores are left out, 0 to 1; default: 0.3
"""

from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path

from mmattn.engine import ModelsArguments, check_checkpoint, load_config, trained_models
from mmattn.utils.arguments import UsageError, command
from mmattn.utils.command import describe, run
from mmattn.utils.component_type import model_scope

COMMON = {'image', 'models', 'names', 'out_dir', 'device', 'cfg_options'}  # arguments of both tasks


@dataclass
class Arguments(ModelsArguments):
    """What the command is given."""

    _: KW_ONLY
    out_dir: str
    truth: Path | None = None
    sheet_images: int | None = None
    opacity: float = 0.5
    batch_size: int = 1
    probabilities: bool = False
    coco: bool = False
    geojson: bool = False
    legend: bool = False
    tile: int | None = None
    stride: int | None = None
    scale: float | None = None
    score_threshold: float | None = None

    def __post_init__(self) -> None:
        given = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        self.given = [f'--{name.replace("_", "-")}' for name in given if name not in COMMON]
        if self.sheet_images is None:
            self.sheet_images = 8
        elif len(self.models) <= 2 and self.truth is None:
            raise UsageError('--sheet-images requires several models, or --truth')
        if not 0 <= self.opacity <= 1:
            raise UsageError(f'--opacity must be from 0 to 1; got {self.opacity}')
        if self.sheet_images < 1:
            raise UsageError(f'--sheet-images must be at least 1; got {self.sheet_images}')


def detect(image: str, args: Arguments) -> None:
    """Detect objects in the images and print the folders of the results."""
    if others := [option for option in args.given if option != '--score-threshold']:
        raise ValueError(f'{", ".join(others)}: only for segmentors')
    if len(args.models) > 2:
        raise ValueError('several models must be segmentors; for detectors, run one command per model')
    from mmattn.detection import DetectionInferencer  # late: mmdet requires the operators of mmcv

    config, checkpoint = args.models
    inferencer = DetectionInferencer(load_config(config, args.cfg_options), checkpoint, device=args.device)
    written = inferencer(image, args.out_dir, 0.3 if args.score_threshold is None else args.score_threshold)
    print(f'boxes and pictures of {len(written)} images are in {args.out_dir}/pred and {args.out_dir}/vis')


@command
def main(image: str, args: Arguments) -> None:
    try:
        models = trained_models(args)
        for model in models:
            check_checkpoint(model.checkpoint)
        if model_scope(load_config(models[0].config, args.cfg_options)) == 'mmdet':
            detect(image, args)
            return
        if args.score_threshold is not None:
            raise ValueError('--score-threshold: only for detectors')
        from mmattn.segmentation.comparison import compare_segmentations  # late: mmseg prints at import
        from mmattn.segmentation.inferencer import SegmentationInferencer

        inferencers = {
            model.name: SegmentationInferencer(
                load_config(model.config, args.cfg_options), model.checkpoint, device=args.device, amp=args.amp
            )
            for model in models
        }
        options = {
            name: getattr(args, name)
            for name in ('probabilities', 'tile', 'stride', 'scale', 'coco', 'geojson', 'legend')
        }
        common = image, args.out_dir, args.batch_size, args.opacity
        if len(models) > 1 or args.truth is not None:
            sheet = compare_segmentations(inferencers, *common, args.truth, args.sheet_images, **options)
            print(f'{sheet}; index maps and overlays are in {args.out_dir}/{{{",".join(inferencers)}}}/{{pred,vis}}')
            return
        (inferencer,) = inferencers.values()
        written = inferencer(*common, **options)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: lists the keys that do not fit
        raise SystemExit(describe(error)) from error
    print(f'{len(written)} index maps and overlays are in {args.out_dir}/pred and {args.out_dir}/vis')


if __name__ == '__main__':
    run(main)
