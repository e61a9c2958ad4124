"""Convert Flickr30k Entities, captions with boxes and region features, to the files of phrase grounding.

    python tools/dataset_converters/flickr_entities.py data/flickr8k_entities --out-dir data/flickr8k_grounding
    python tools/dataset_converters/flickr_entities.py RELEASE --regions STORE --out-dir data/flickr30k_grounding

The folder contains::

    Sentences, Annotations      folders, or annotations.zip with both
    train.txt, val.txt          names of the images, one per line; test.txt, if there is one, or test.txt alone for a
                                trained model
    features_*.npz              regions of the images, as region_npz.py reads them; not with --regions

Output::

    OUT/entities_train.json     captions, phrases and boxes of the images of a split; also _val and _test. Without
                                test.txt, every second image of val.txt is in the split test
    OUT/regions                 store of the regions of all archives, or a link to that of --regions; see
                                ``mmattn.language.regions.region_store``

So a checkpoint is chosen on other images than those that its result is reported on.

Args:
    regions (STORE): region store of the images
"""

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from common.archives import unpack
from common.conversion import (
    OutDir,
    Overwrite,
    check_folder,
    check_held_out,
    converter,
    find,
    output_folder,
    warn_of_test_set,
)
from common.published_entities import parse_annotation, parse_sentences
from common.region_archives import find_archives, image_sizes, read_images
from common.regions import Float16, describe_source, write_images
from mmattn.language.grounding.entities import Caption, EntityBoxes, prepared
from mmattn.language.regions.region_store import RegionStore
from mmattn.language.regions.region_writer import RegionWriter
from mmattn.language.text.text_files import read_lines
from mmattn.utils.command import run
from mmattn.utils.faults import Faults, FaultsError
from mmattn.utils.files import write_text
from mmattn.utils.progress import track

SPLITS = ('train', 'val', 'test')
Image = tuple[str, list[Caption], EntityBoxes]


def read_splits(folder: Path, faults: Faults) -> dict[str, list[str]]:
    splits, seen = {}, {}
    there = [split for split in SPLITS if (folder / f'{split}.txt').is_file()]
    for split in ('test',) if there == ['test'] else SPLITS:
        path = folder / f'{split}.txt'
        if split == 'test' and not path.is_file():
            with faults.catch(folder / 'val.txt'):
                check_held_out(folder / 'val.txt', splits['val'])
            splits['val'], splits['test'] = splits['val'][::2], splits['val'][1::2]
            break
        splits[split] = []
        with faults.catch(path):
            splits[split] = [name.strip() for name in read_lines(path) if name.strip()]
            if not splits[split]:
                raise ValueError('no image')
        for name in splits[split]:
            if name in seen:
                faults.add(path, f'image {name} is also in {seen[name]}')
            seen[name] = path
    return splits


def read_image(folder: Path, name: str) -> Image:
    """Return name, captions and boxes of an image."""
    sentences, annotation = folder / f'Sentences/{name}.txt', folder / f'Annotations/{name}.xml'
    faults = Faults()
    captions: list[Caption] = []
    boxes = EntityBoxes((0, 0), {}, set(), set())
    with faults.catch(sentences):
        captions = parse_sentences(sentences.read_text(encoding='utf-8-sig'), sentences)
    with faults.catch(annotation):
        boxes = parse_annotation(annotation.read_bytes(), annotation)
    faults.check()
    return name, captions, boxes


def read_sizes(archives: Sequence[Path], regions: Path | None, faults: Faults) -> dict[str, tuple[int, int]]:
    """Return width and height of the images with regions; nothing if there are faults."""
    if regions is not None:
        with faults.catch(regions):
            return RegionStore(regions).sizes
        return {}
    damaged = Faults()
    sizes = image_sizes(archives, damaged)
    faults.include(damaged)
    return {} if damaged else sizes


def read_release(
    folder: Path, splits: dict[str, list[str]], sizes: dict[str, tuple[int, int]], where: str, faults: Faults
) -> dict[str, list[Image]]:
    """Return the images of each split.

    Args:
        folder (Path): with ``Sentences`` and ``Annotations``.
        splits (dict): the names of the images of each split.
        sizes (dict): width and height of the images with regions, as :func:`read_sizes` returns them.
        where (str): where the regions are.
        faults (Faults): faults of ``splits`` and ``sizes``.
    """
    images: dict[str, list[Image]] = {split: [] for split in splits}
    names = [(split, name) for split in splits for name in splits[split]]
    for split, name in track(names, 'Captions'):
        try:
            images[split].append(read_image(folder, name))
        except FaultsError as fault:
            for path, reasons in fault.by_path.items():
                faults.add(path.replace(f'{folder}{os.sep}', ''), *reasons)
    if sizes:
        for name, _, boxes in (image for split in images.values() for image in split):
            if name not in sizes:
                faults.add(f'image {name}', f'no regions in {where}')
            elif sizes[name] != boxes.size:
                (width, height), (w, h) = boxes.size, sizes[name]
                faults.add(f'image {name}', f'{width}×{height} in its annotation, but {w}×{h} in {where}')
    faults.check()
    return images


def described(images: Sequence[Image]) -> str:
    captions = [(caption, boxes.boxes) for _, image_captions, boxes in images for caption in image_captions]
    grounded = [[phrase for phrase in caption.phrases if phrase.entity in boxes] for caption, boxes in captions]
    phrases = sum(len(caption.phrases) for caption, _ in captions)
    with_box = sum(map(len, grounded))
    words = Counter(word for caption, _ in captions for word in caption.words)
    length = max((len(caption.words) for (caption, _), boxes in zip(captions, grounded) if boxes), default=0)
    return (
        f'{len(images):,} images, {len(captions):,} captions, {sum(map(bool, grounded)):,} of them with '
        f'{with_box:,} phrases with a box, at most {max(map(len, grounded), default=0)} and {length} words each; '
        f'{phrases - with_box:,} phrases without a box; {len(words):,} different words'
    )


@converter
def main(
    folder: Path,
    *,
    regions: Path | None = None,
    out_dir: OutDir,
    float16: Float16 = False,
    overwrite: Overwrite = False,
) -> None:
    check_folder(folder)
    sources = [folder, *([regions] if regions else [])]
    files = {f'entities_{split}.json' for split in SPLITS}
    with output_folder(out_dir, overwrite, sources, {*files, 'regions'}) as scratch:
        archives = find_archives(folder)
        if bool(archives) == (regions is not None):
            raise FaultsError(
                f'{folder}: has features_*.npz, which --regions would replace'
                if archives
                else f'{folder}: no features_*.npz in it; --regions names a region store'
            )
        faults = Faults()
        splits = read_splits(folder, faults)
        sizes = read_sizes(archives, regions, faults)
        if not (folder / 'Sentences').is_dir():
            folder = find(folder, 'annotations.zip')
            faults.check()
            folder = find(unpack(folder, scratch), 'Sentences').parent
        images = read_release(
            folder, splits, sizes, str(regions or ', '.join(archive.name for archive in archives)), faults
        )
        new = scratch / 'new'
        new.mkdir(exist_ok=True)
        if regions is not None:
            (new / 'regions').symlink_to(regions.resolve(), target_is_directory=True)
        else:
            with RegionWriter(new / 'regions', describe_source(archives), float16) as writer:
                write_images(writer, read_images(archives, '{}'))
        for split, split_images in images.items():
            write_text(new / f'entities_{split}.json', json.dumps(prepared(split_images), ensure_ascii=False))
    for split, split_images in images.items():
        print(f'{split}: {described(split_images)}')
    print(f'{out_dir / "regions"}: {len(RegionStore(out_dir / "regions")):,} images')
    warn_of_test_set(images)


if __name__ == '__main__':
    run(main)
