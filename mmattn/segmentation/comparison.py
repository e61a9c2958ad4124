"""Several models on the same images: results of each, and one sheet, as in Fig. 4.3 of the thesis."""

from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from mmseg.datasets.transforms import LoadAnnotations
from mmseg.registry import DATASETS
from PIL import Image

from mmattn.utils.component_type import inner_data_sets
from mmattn.utils.files import atomic_write, check_not_input, check_path, check_writable
from mmattn.utils.images import CLASS_INDICES, open_whole
from mmattn.visualization.panels import Panel, add_legend, arrange, resized

from .inferencer import SegmentationInferencer
from .result_files import draw_labels

IGNORED = 255
MANY_CLASSES = 24  # the most that the legend names
WIDTH = 220  # pixels of a picture


def compare_segmentations(
    inferencers: Mapping[str, SegmentationInferencer],
    inputs: str | Path | Sequence[str | Path],
    out_dir: str | Path,
    batch_size: int = 1,
    opacity: float = 0.5,
    truth: str | Path | None = None,
    max_images: int = 8,
    **options: Any,
) -> Path:
    """Segment images with several models, and write ``comparison.jpg``: image, truth, and a column per model.

    The results of a model are in ``out_dir/<name>/pred`` and ``out_dir/<name>/vis``.

    Args:
        inferencers (mapping of str to SegmentationInferencer): models of the same classes and palette, by name.
        inputs, batch_size, opacity: as in :class:`SegmentationInferencer`.
        out_dir (str or Path): output folder.
        truth (str or Path, optional): folder of masks of the images, ``<name>.png``, with class indices as in the data
            set of the first model's config, or as :class:`SegmentationInferencer` writes them. 255 is ignored. Defaults
            to None: no such column.
        max_images (int): rows of the sheet, the first images. Defaults to 8.
        **options: further arguments of :class:`SegmentationInferencer`, such as ``tile``. A ``progress_file`` is for
            one model.

    Raises:
        ValueError: before a model runs, classes or palettes differ, a mask does not fit, or several models have a
            ``progress_file``. After the first model, some images could not be segmented.
        OSError: a mask does not exist, or a result cannot be written.
    """
    if len(inferencers) > 1 and options.get('progress_file') is not None:
        raise ValueError(
            f'progress_file is of one model; got {len(inferencers)}: call each SegmentationInferencer with a file '
            'of its own, and leave it out here'
        )
    out_dir = check_path('out_dir', out_dir)
    check_writable(out_dir)
    first = next(iter(inferencers.values()))
    inputs = inputs if isinstance(inputs, str | Path) else [*inputs]  # each model takes them
    classes, palette = _same_classes(inferencers)
    colours = np.array(palette, np.uint8)
    shown = first.list_inputs(inputs)[:max_images]
    folders = [] if truth is None else [check_path('truth', truth)]
    for output in (out_dir / 'comparison.jpg', *(out_dir / name / 'pred' for name in inferencers)):
        check_not_input('out_dir', output, [*shown, *folders])
    reading = _reading(first.cfg) if folders else {}
    masks = [_read_mask(first, path, folder, reading) for folder in folders for path in shown]
    written = {
        name: dict(zip(shown, inferencer(inputs, out_dir / name, batch_size, opacity, **options)))
        for name, inferencer in inferencers.items()
    }
    rows, labels = {}, set()
    for number, path in enumerate(shown):
        image = first.read_image(path)
        maps = masks[number : number + 1] + [np.asarray(Image.open(of_model[path])) for of_model in written.values()]
        rows[Path(path).name] = [image, *(draw_labels(image, x, colours, opacity) for x in maps)]
        labels |= {label for x in maps for label in np.unique(x).tolist() if label < len(classes)}
    named = {classes[label]: palette[label] for label in sorted(labels)}
    columns = ['image', *(['truth'] if masks else []), *inferencers]
    sheet = comparison_sheet(rows, columns, named if len(named) <= MANY_CLASSES else None)
    with atomic_write(out_dir / 'comparison.jpg') as temporary:
        Image.fromarray(sheet).save(temporary, quality=90)
    return out_dir / 'comparison.jpg'


def comparison_sheet(
    rows: Mapping[str, Sequence[np.ndarray]],
    columns: Sequence[str],
    colours: Mapping[str, Sequence[int]] | None = None,
) -> np.ndarray:
    """Arrange pictures with the names of rows and columns, and a legend: uint8 ``(height, width, 3)``, RGB.

    Args:
        rows (mapping of str to sequence of np.ndarray): one row per input: uint8 ``(H, W, 3)``, RGB, or ``(H, W, 1)``
            for each column. Pictures of a row have the same height and width.
        columns (sequence of str): names of the columns.
        colours (mapping of str to sequence of int, optional): red, green and blue of each name in the legend, 0 to 255.
            Defaults to no legend.
    """
    panels: list[list[Panel]] = []
    for name, pictures in rows.items():
        pairs = zip(pictures, columns)
        panels.append([Panel(resized(picture, WIDTH), '' if panels else column) for picture, column in pairs])
        panels[-1][0].caption = name
    return add_legend(arrange(panels, margin=10), colours or {})


def _same_classes(inferencers: Mapping[str, SegmentationInferencer]) -> tuple[list[str], list[list[int]]]:
    metas = {name: inferencer.model.dataset_meta for name, inferencer in inferencers.items()}
    first = next(iter(metas))
    values = {
        name: ([*meta['classes']], [[*map(int, colour)] for colour in meta['palette']]) for name, meta in metas.items()
    }
    for name, (classes, palette) in values.items():
        for key, value, expected in (('classes', classes, values[first][0]), ('palettes', palette, values[first][1])):
            if value != expected:
                raise ValueError(f'the {key} of {first} and {name} differ: {expected} and {value}')
    return values[first]


def _reading(cfg: Config) -> dict:
    """Return what mmseg's ``LoadAnnotations`` reads from the test data set of a config, which may not be here."""
    dataset = (cfg.get('test_dataloader') or {}).get('dataset') or {}
    dataset = inner_data_sets(dataset)[0]
    if not dataset:
        return dict(reduce_zero_label=False)
    kind = DATASETS.get(dataset['type'])
    default = getattr(signature(kind).parameters.get('reduce_zero_label'), 'default', False)
    label_map = kind.get_label_map((dataset.get('metainfo') or {}).get('classes'))
    return dict(reduce_zero_label=dataset.get('reduce_zero_label', default), label_map=label_map)


def _read_mask(inferencer: SegmentationInferencer, path: str, folder: Path, reading: dict) -> np.ndarray:
    """Read the mask of an image, uint8 ``(H, W)``: class indices, or 255."""
    mask_path = folder / f'{Path(path).stem}.png'
    with open(mask_path, 'rb') as stream:
        picture = open_whole(stream)
        if picture.mode not in ('L', 'P'):
            raise ValueError(f'{mask_path} is not an index map: it has the mode {picture.mode}')
        if CLASS_INDICES.items() <= picture.info.items():  # a prediction of image_demo.py
            reading = dict(reduce_zero_label=False)
    height, width = inferencer.read_image(path).shape[:2]
    if picture.size != (width, height):
        raise ValueError(f'{mask_path}: {picture.width}×{picture.height} pixels, but the image has {width}×{height}')
    mask = LoadAnnotations()(dict(reading, seg_map_path=str(mask_path), seg_fields=[]))['gt_seg_map']
    mask = mask.reshape(height, width)  # mmseg drops sides of 1
    unknown = sorted({*np.unique(mask).tolist()} - {*range(inferencer.model.num_classes), IGNORED})
    if unknown:
        raise ValueError(
            f'{mask_path} has labels {unknown}; the model has {inferencer.model.num_classes} classes, from 0'
        )
    return mask
