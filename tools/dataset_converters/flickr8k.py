"""Convert Flickr8k, captions and region features, to the files of captioning.

    python tools/dataset_converters/flickr8k.py data/flickr8k_entities --out-dir data/flickr8k

The folder contains::

    dataset_flickr8k.json       Karpathy's splits, possibly .gz; or the split test alone, for a trained model
    features_*.npz              regions of the images, as region_npz.py reads them; image_id is the name of the image

Output::

    OUT/dataset_flickr8k.json   the same; without a split 'test', every second image of 'val' becomes 'test'
    OUT/regions                 store of the regions of all archives; see ``mmattn.language.regions.region_store``

So a checkpoint is chosen on other images than those that its result is reported on.
"""

import json
from collections.abc import Sequence
from pathlib import Path

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
from common.region_archives import find_archives, image_sizes, missing_regions, read_images
from common.regions import Float16, describe_source, write_images
from mmattn.language.captioning.annotations import Annotation, read_annotations
from mmattn.language.regions.region_writer import RegionWriter
from mmattn.language.text.annotation_files import read_json
from mmattn.utils.command import run
from mmattn.utils.faults import Faults, FaultsError
from mmattn.utils.files import write_text

NAME = 'dataset_flickr8k.json'


def check(path: Path, archives: Sequence[Path]) -> list[Annotation]:
    """Return the images of the annotation file."""
    faults = Faults()
    annotations: list[Annotation] = []
    with faults.catch(path):
        annotations = read_annotations(path)
        splits = {str(annotation.split) for annotation in annotations}
        if splits != {'test'} and not {'train', 'val'} <= splits:
            raise ValueError(f'must have the splits train and val, or test alone; got {", ".join(sorted(splits))}')
    damaged = Faults()
    stored = image_sizes(archives, damaged)
    faults.include(damaged)
    if not damaged:
        faults.add(path, *missing_regions((image.image_id for image in annotations), stored))
    faults.check()
    return annotations


@converter
def main(folder: Path, *, out_dir: OutDir, float16: Float16 = False, overwrite: Overwrite = False) -> None:
    check_folder(folder)
    with output_folder(out_dir, overwrite, [folder], {NAME, 'regions'}) as scratch:
        path = find(folder, f'{NAME}*')
        archives = find_archives(path.parent)
        if not archives:
            raise FaultsError(path.parent, 'no features_*.npz in it')
        annotations = check(path, archives)
        data = read_json(path)
        held_out = [image for image in data['images'] if image['split'] == 'val']
        if all(annotation.split != 'test' for annotation in annotations):
            check_held_out(f'{path}, split val', held_out)
            for image in held_out[1::2]:
                image['split'] = 'test'
        with RegionWriter(scratch / 'new' / 'regions', describe_source(archives), float16) as writer:
            write_images(writer, read_images(archives, '{}'))
        write_text(scratch / 'new' / NAME, json.dumps(data, ensure_ascii=False))
    for split in dict.fromkeys(image['split'] for image in data['images']):
        images = [image for image in data['images'] if image['split'] == split]
        captions = sum(len(image['sentences']) for image in images)
        print(f'{split}: {len(images):,} images, {captions:,} captions')
    print(f'{out_dir / "regions"}: {len(writer):,} images')
    warn_of_test_set({image['split'] for image in data['images']})


if __name__ == '__main__':
    run(main)
