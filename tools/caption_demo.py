"""Caption images with a trained model, by their region features.

    python tools/caption_demo.py CONFIG CHECKPOINT --regions STORE [STORE …] --out DIR

It writes DIR/captions.json, in the format of COCO's server. The checkpoint contains the vocabulary. Without --ids and
--ann-file, all images of the store are captioned. A model that reads attributes requires --attributes.

--images FOLDER adds DIR/captions.html, a page of pictures: the captions of the first images, the regions that each word
looked at and, with --ann-file, its captions. A picture belongs to the image whose id is its file name without suffix,
or the number at the end of it, as in COCO_val2014_000000000042.jpg. It may be reduced.

    python tools/caption_demo.py CONFIG CHECKPOINT CONFIG CHECKPOINT … --regions STORE --images FOLDER --out DIR

compares models: it writes DIR/NAME/captions.json for each, and DIR/captions.html has the captions of all models below
each picture. --attributes is for the models that read attributes.

Finished captions are kept in DIR/captions.json.part. After an interruption, the same command with --resume continues,
and the result is the same as after an uninterrupted run.

Args:
    regions (STORE): folder of a region store, or several
    out (DIR): folder to write
    ids (ID): images to caption; default: all. Write --ids=ID for each one that begins with -
    ann_file: Karpathy's dataset_*.json or COCO's captions_*.json: its images are captioned
    split: split of --ann-file, if it has splits: 'train', 'val' or 'test'
    attributes (FILE): JSON: {image id: [[word, score], …]}, for ETA
    num_attributes (N): attributes per image; default: as in the training
    images (FOLDER): pictures, for the page captions.html
    page_images (N): images on the page
    beam (N): hypotheses per image; default: as in the config
    n_best (N): add the best N captions of each image with their scores, as 'n_best'
    length_penalty (A): exponent of the length penalty; default: as in the config
    batch_size (N): images per batch
    resume: continue an interrupted run, from captions.json.part
    overwrite: replace files that exist; without --resume, also captions.json.part
"""

import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from PIL import ExifTags
from rich.progress import track

from mmattn.engine import ModelsArguments, check_checkpoint, load_config, trained_models
from mmattn.language.captioning.annotations import Annotation, read_annotations, select_splits
from mmattn.language.captioning.caption_metric import coco_ids
from mmattn.language.captioning.inferencer import CaptionInferencer, StoredImage
from mmattn.language.captioning.region_pictures import (
    ONE_MODEL,
    SEVERAL_MODELS,
    caption_page,
    comparison_figure,
    region_layers,
)
from mmattn.language.regions.image_inputs import picture_paths, read_picture, same_shape
from mmattn.language.regions.region_store import RegionStore
from mmattn.utils.arguments import UsageError, command
from mmattn.utils.command import run
from mmattn.utils.faults import Faults
from mmattn.utils.files import check_not_input, input_files, write_text
from mmattn.utils.images import open_whole, unreadable
from mmattn.utils.resumable import check_output, progress_path


@dataclass
class Arguments(ModelsArguments):
    """What the command is given."""

    _: KW_ONLY
    regions: list[Path]
    out: Path
    ids: Annotated[list[str] | None, dict(action='extend')] = None
    ann_file: Path | None = None
    split: str | None = None
    attributes: Path | None = None
    num_attributes: int | None = None
    images: Path | None = None
    page_images: int = 100
    beam: int | None = None
    n_best: int | None = None
    length_penalty: float | None = None
    batch_size: int = 64
    resume: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.split is not None and self.ann_file is None:
            raise UsageError('--split requires --ann-file')
        if self.page_images < 1:
            raise UsageError(f'--page-images must be at least 1; got {self.page_images}')


def annotations_by_image(args: Arguments) -> dict[str, Annotation]:
    if args.ann_file is None:
        return {}
    annotations = read_annotations(args.ann_file)
    splits = None if args.split is None else [args.split]
    selected = select_splits('split', annotations, splits, str(args.ann_file))
    return {annotation.image_id: annotation for annotation in selected}


def find_pictures(folder: Path, image_ids: Sequence[str]) -> dict[str, Path]:
    """Return the pictures of images."""
    paths = picture_paths(folder)
    Faults(folder, [f'no picture of image {name}' for name in image_ids if name not in paths]).check()
    return {name: paths[name] for name in image_ids}


def check_pictures(folder: Path, paths: dict[str, Path], store: RegionStore) -> None:
    """Raise a ValueError that lists the pictures that cannot be read, or that have another shape than in the store."""
    faults = Faults()
    for name, path in paths.items():
        try:
            with open(path, 'rb') as stream:
                picture = open_whole(stream)
                turned = picture.getexif().get(ExifTags.Base.Orientation, 1) > 4
                size = picture.size[::-1] if turned else picture.size
        except Exception as error:  # decoders raise many types
            faults.add(path, unreadable(error))
            continue
        width, height = store[name].size
        if not same_shape(size, (width, height)):
            faults.add(
                path, f'{size[0]}×{size[1]} pixels; image {name} of the store, {width}×{height}, has another shape'
            )
    faults.check()


def build_page(
    title: str,
    captions: dict[str, tuple[CaptionInferencer, list[StoredImage], list[dict]]],
    pictures: dict[str, Path],
    annotations: dict[str, Annotation],
) -> str:
    figures, num_words = [], 0
    for number, (image_id, path) in enumerate(track(pictures.items(), 'Pictures')):
        references = annotations[image_id].captions if image_id in annotations else ()
        picture = read_picture(path)
        texts = {name: predictions[number]['caption'] for name, (_, _, predictions) in captions.items()}
        num_words = max(num_words, len(' '.join(texts.values()).split()))
        if len(captions) == 1:
            ((inferencer, images, _),) = captions.values()
            figures.append(inferencer.visualize(images[number], *texts.values(), picture, references))
            continue
        words = {}
        for name, (inferencer, images, _) in captions.items():
            reads = reads_regions(inferencer)
            words[name] = texts[name].split(), inferencer.region_weights(images[number], texts[name]) if reads else None
        regions = images[number].store[image_id]
        figures.append(comparison_figure(picture, regions, words, image_id, references))
    return caption_page(figures, title, num_words, ONE_MODEL if len(captions) == 1 else SEVERAL_MODELS)


def reads_regions(inferencer: CaptionInferencer) -> bool:
    """Check whether a model reads regions: the models that read attributes alone are captioned without boxes."""
    return any(member.num_features is not None for member in getattr(inferencer.model, 'members', [inferencer.model]))


@command
def main(args: Arguments) -> None:
    models, page = trained_models(args), args.out / 'captions.html'
    several = len(models) > 1
    outs = {model.name: (args.out / model.name if several else args.out) / 'captions.json' for model in models}
    parts = {name: progress_path(out, args.resume, args.overwrite) for name, out in outs.items()}
    if args.images is not None:
        check_output(page, args.overwrite)
    for path in (*outs.values(), *parts.values(), page):
        check_not_input('--out', path, input_files(args))
    for model in models:
        check_checkpoint(model.checkpoint)
    configs = {model.name: load_config(model.config, args.cfg_options) for model in models}
    annotations = annotations_by_image(args)
    store = RegionStore(args.regions)
    image_ids = args.ids or [*annotations] or store.image_ids
    if annotations:
        split = '' if args.split is None else f', split {args.split}'
        missing = [image_id for image_id in image_ids if image_id not in annotations]
        Faults(f'--ids: not in {args.ann_file}{split}', missing).check()
    pictures = {}
    if args.images is not None:
        shown = image_ids[: args.page_images]
        store.check(shown, features=False)
        pictures = find_pictures(args.images, shown)
        check_pictures(args.images, pictures, store)
    inferencers, attributes = {}, {}
    for model in models:
        inferencer = CaptionInferencer(
            configs[model.name], model.checkpoint, args.device, args.batch_size, amp=args.amp
        )
        if args.images is not None and not (several and not reads_regions(inferencer)):
            region_layers(inferencer.model)
        inferencers[model.name] = inferencer
        attributes[model.name] = None if several and not inferencer.model.reads_attributes else args.attributes
    if args.attributes is not None and not any(attributes.values()):
        raise ValueError('--attributes: none of these models reads attributes')
    images = {
        name: inferencer.images(store, image_ids, attributes[name], args.num_attributes)
        for name, inferencer in inferencers.items()
    }
    captions = {}
    for name, inferencer in inferencers.items():
        predictions = inferencer(
            store,
            image_ids,
            attributes[name],
            args.num_attributes,
            beam=args.beam,
            length_penalty=args.length_penalty,
            n_best=1 if args.n_best is None else args.n_best,
            progress_file=parts[name],
            resume=args.resume,
        )['predictions']
        captions[name] = inferencer, images[name], predictions
    if args.images is not None:
        all_shown = len(pictures) == len(image_ids)
        shown = 'all images' if all_shown else f'the first {len(pictures)} of {len(image_ids)} images'
        names = ', '.join(inferencers) if several else Path(models[0].checkpoint).name
        write_text(page, build_page(f'Captions of {names}: {shown}', captions, pictures, annotations))
    for name, (_, _, predictions) in captions.items():
        records = [
            dict(
                image_id=number, caption=best['caption'], **({} if args.n_best is None else dict(n_best=best['n_best']))
            )
            for number, best in zip(coco_ids(image_ids), predictions)
        ]
        write_text(outs[name], json.dumps(records, ensure_ascii=False))
        parts[name].unlink()
        print(f'{len(records):,} captions: {outs[name]}{"" if args.images is None else f", {page}"}')


if __name__ == '__main__':
    run(main)
