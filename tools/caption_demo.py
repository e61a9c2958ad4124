"""Caption images with a trained model, by their region features.

    python tools/caption_demo.py CONFIG CHECKPOINT --regions STORE [STORE …] --out DIR

It writes DIR/captions.json, in the format of COCO's server. The checkpoint contains the vocabulary. Without --ids and
--ann-file, all images of the store are captioned. A model that reads attributes requires --attributes.

--images FOLDER adds DIR/captions.html, a page of pictures: the captions of the first images, the regions that each word
looked at and, with --ann-file, its captions. A picture belongs to the image whose id is its file name without suffix,
or the number at the end of it, as in COCO_val2014_000000000042.jpg. It may be reduced.

Finished captions are kept in DIR/captions.json.part. After an interruption, the same command with --resume continues,
and the result is the same as after an uninterrupted run.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from mmattn.utils.command import run

from PIL import ExifTags
from rich.progress import track

from mmattn.engine import add_config_options, check_checkpoint, load_config
from mmattn.language.captioning.annotations import Annotation, read_annotations, select_splits
from mmattn.language.captioning.caption_metric import coco_ids
from mmattn.language.captioning.inferencer import CaptionInferencer, StoredImage
from mmattn.language.captioning.region_pictures import caption_page, region_layers
from mmattn.language.models.progress_file import check_output, progress_path
from mmattn.language.regions.image_inputs import picture_paths, read_picture, same_shape
from mmattn.language.regions.region_store import RegionStore
from mmattn.language.text.annotation_files import raise_faults
from mmattn.utils.files import check_not_input, input_files, write_text
from mmattn.utils.images import open_whole, unreadable


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description='Caption images by their region features')
    parser.add_argument('config', help='path of the config')
    parser.add_argument('checkpoint', help='path or URL of the checkpoint')
    parser.add_argument(
        '--regions', type=Path, nargs='+', required=True, metavar='STORE', help='folder of a region store, or several'
    )
    parser.add_argument('--out', type=Path, required=True, metavar='DIR', help='folder to write')
    parser.add_argument('--ids', nargs='+', metavar='ID', help='images to caption; default: all')
    parser.add_argument(
        '--ann-file', type=Path, help="Karpathy's dataset_*.json or COCO's captions_*.json: its images are captioned"
    )
    parser.add_argument('--split', help="split of --ann-file, if it has splits: 'train', 'val' or 'test'")
    parser.add_argument('--attributes', type=Path, metavar='FILE', help='JSON: {image id: [[word, score], …]}, for ETA')
    parser.add_argument(
        '--num-attributes', type=int, metavar='N', default=20, help='attributes per image; default: %(default)s'
    )
    parser.add_argument('--images', type=Path, metavar='FOLDER', help='pictures, for the page captions.html')
    parser.add_argument(
        '--page-images', type=int, metavar='N', default=100, help='images on the page; default: %(default)s'
    )
    parser.add_argument('--beam', type=int, metavar='N', help='hypotheses per image; default: that of the config')
    parser.add_argument(
        '--n-best', type=int, metavar='N', help="add the best N captions of each image with their scores, as 'n_best'"
    )
    parser.add_argument(
        '--length-penalty', type=float, metavar='A', help='exponent of the length penalty; default: that of the config'
    )
    parser.add_argument('--batch-size', type=int, metavar='N', default=64, help='default: %(default)s')
    parser.add_argument('--device', help='such as cpu or cuda:1; default: a GPU if one is available')
    parser.add_argument('--resume', action='store_true', help='continue an interrupted run, from captions.json.part')
    parser.add_argument(
        '--overwrite', action='store_true', help='replace files that exist; without --resume, also captions.json.part'
    )
    add_config_options(parser)
    args = parser.parse_args()
    if args.split is not None and args.ann_file is None:
        parser.error('--split requires --ann-file')
    if args.page_images < 1:
        parser.error(f'--page-images must be at least 1; got {args.page_images}')
    return args


def annotations_by_image(args: argparse.Namespace) -> dict[str, Annotation]:
    """Return the annotations of ``--ann-file`` by image."""
    if args.ann_file is None:
        return {}
    annotations = read_annotations(args.ann_file)
    splits = None if args.split is None else [args.split]
    selected = select_splits('split', annotations, splits, str(args.ann_file))
    return {annotation.image_id: annotation for annotation in selected}


def find_pictures(folder: Path, image_ids: Sequence[str]) -> dict[str, Path]:
    """Return the pictures of images.

    Raises:
        OSError: there is no such folder.
        ValueError: there is no picture of an image; the message lists all.
    """
    paths = picture_paths(folder)
    raise_faults(folder, [f'no picture of image {name}' for name in image_ids if name not in paths])
    return {name: paths[name] for name in image_ids}


def check_pictures(folder: Path, paths: dict[str, Path], store: RegionStore) -> None:
    """Raise a ValueError that lists the pictures that cannot be read, or are not those of the store."""
    faults = []
    for name, path in paths.items():
        try:
            with open(path, 'rb') as stream:
                picture = open_whole(stream)
                turned = picture.getexif().get(ExifTags.Base.Orientation, 1) > 4
                size = picture.size[::-1] if turned else picture.size
        except Exception as error:  # decoders raise many types
            faults.append(f'{path.name}: {unreadable(error)}')
            continue
        width, height = store[name].size
        if not same_shape(size, (width, height)):
            faults.append(
                f'{path.name}: {size[0]}×{size[1]} pixels; image {name} of the store, {width}×{height}, has another '
                'shape'
            )
    raise_faults(folder, faults)


def build_page(
    args: argparse.Namespace,
    inferencer: CaptionInferencer,
    images: Sequence[StoredImage],
    predictions: Sequence[dict],
    pictures: dict[str, Path],
    annotations: dict[str, Annotation],
) -> str:
    """Return the page of pictures."""
    figures = []
    for image, prediction in track([*zip(images, predictions)], 'Pictures'):
        references = annotations[image.image_id].captions if image.image_id in annotations else ()
        picture = read_picture(pictures[image.image_id])
        figures.append(inferencer.visualize(image, prediction['caption'], picture, references))
    shown = (
        f'the first {len(figures)} of {len(predictions)} images' if len(figures) < len(predictions) else 'all images'
    )
    num_words = max(len(prediction['caption'].split()) for prediction in predictions)
    return caption_page(figures, f'Captions of {Path(args.checkpoint).name}: {shown}', num_words)


def main() -> None:
    """Caption images, and write captions and page."""
    args = parse_args()
    out, page = args.out / 'captions.json', args.out / 'captions.html'
    part = progress_path(out, args.resume, args.overwrite)
    if args.images is not None:
        check_output(page, args.overwrite)
    for path in (out, part, page):
        check_not_input('--out', path, input_files(args))
    check_checkpoint(args.checkpoint)
    cfg = load_config(args.config, args.cfg_options)
    annotations = annotations_by_image(args)
    store = RegionStore(args.regions)
    image_ids = args.ids or [*annotations] or store.image_ids
    if annotations:
        split = '' if args.split is None else f', split {args.split}'
        missing = [image_id for image_id in image_ids if image_id not in annotations]
        raise_faults(f'--ids: not in {args.ann_file}{split}', missing)
    pictures = {}
    if args.images is not None:
        shown = image_ids[: args.page_images]
        store.check(shown, features=False)
        pictures = find_pictures(args.images, shown)
        check_pictures(args.images, pictures, store)
    inferencer = CaptionInferencer(cfg, args.checkpoint, args.device, args.batch_size)
    if args.images is not None:
        region_layers(inferencer.model)
    attributes = dict(attributes=args.attributes, num_attributes=args.num_attributes)
    predictions = inferencer(
        store,
        image_ids,
        **attributes,
        beam=args.beam,
        length_penalty=args.length_penalty,
        n_best=1 if args.n_best is None else args.n_best,
        progress_file=part,
        resume=args.resume,
    )['predictions']
    if args.images is not None:
        images = inferencer.images(store, image_ids, **attributes)[: len(pictures)]
        write_text(page, build_page(args, inferencer, images, predictions, pictures, annotations))
    records = [
        dict(image_id=name, caption=best['caption'], **({} if args.n_best is None else dict(n_best=best['n_best'])))
        for name, best in zip(coco_ids(image_ids), predictions)
    ]
    write_text(out, json.dumps(records, ensure_ascii=False))
    part.unlink()
    print(f'{len(records):,} captions: {out}{"" if args.images is None else f", {page}"}')


if __name__ == '__main__':
    run(main)
