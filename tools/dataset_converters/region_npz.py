"""Convert region features in NumPy archives to a store of region features.

    python tools/dataset_converters/region_npz.py features_train.npz [NPZ …] --out-dir data/flickr8k/regions
    python tools/dataset_converters/region_npz.py features_val.npz --id-format 'image{}' --out-dir data/daquar/regions

Each archive has the regions of N images, padded to the largest number n, under these names::

    features or feat            (N, n, D), floating-point, or integers that are multiplied by ``step``
    boxes                       (N, n, 4): left, top, right, bottom, in pixels of ``size``
    image_id or image_ids       (N,), integers or strings
    size or sizes               (N, 2): width and height of the images
    step                        optional: a number, or (D,)
    num_regions                 optional: (N,), numbers of regions that are not padding
    classes or cls              optional: (N, n); the largest number of an unsigned type is none, and becomes -1
    scores or score             optional: (N, n); those of an integer type are divided by its largest number

Several archives become one store; see ``mmattn.language.regions.region_store``. An interrupted run continues with the
same command. All faults of the input are reported together, on stderr, with exit code 1.

Args:
    id_format (TEXT): id of an image in the store, with {} for its image_id, such as 'image{}'
"""

from pathlib import Path
from typing import Annotated

from common.conversion import converter
from common.region_archives import image_sizes, read_images
from common.regions import RepairOptions, describe_source, write_store
from mmattn.utils.command import run
from mmattn.utils.faults import Faults


def check_format(text: str) -> str:
    try:
        different = text.format(1) != text.format(2)
    except (LookupError, AttributeError) as error:
        raise ValueError from error
    if not different:
        raise ValueError
    return text


check_format.__name__ = 'format'  # in the message of argparse


@converter
def main(npz: list[Path], store: RepairOptions, *, id_format: Annotated[str, dict(type=check_format)] = '{}') -> None:
    source = describe_source(npz, f'--id-format {id_format}')
    faults = Faults()
    image_sizes(npz, faults)
    faults.check()
    write_store(store, source, read_images(npz, id_format), npz)


if __name__ == '__main__':
    run(main)
