"""Hook that writes one picture of ground truth and prediction per test image."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from PIL import Image

from mmattn.utils.files import atomic_write, common_folder

from .figure import image_loader, read_image
from .panels import add_legend, class_colours, detector_meta


class PictureHook(Hook):
    """Write a picture per test image, with the image's name: ground truth on the left, prediction on the right.

    The visualizer of the config draws it. With several processes, only the first one draws its share of the images.

    Args:
        out_dir (str or Path): folder for ``<name>.png``, or ``<folder>/<name>.png`` for images of the same name in
            several folders.
        backend_args (dict, optional): arguments of mmengine's file client, for images that the data set loads neither
            by ``LoadImageFromFile`` nor by ``LoadChannels``. Defaults to None.
        legend (bool): whether to add the names and colours of the classes in a picture, of segmentors. Defaults to
            False.
        **options: arguments of the visualizer's ``add_datasample``, such as ``pred_score_thr``.
    """

    def __init__(self, out_dir: str | Path, backend_args: dict | None = None, legend: bool = False, **options) -> None:
        self.out_dir = Path(out_dir)
        self.backend_args = backend_args
        self.legend = legend
        self.options = options
        self.names: dict[str, str] = {}

    def before_test(self, runner: Runner) -> None:
        """Choose the names of the pictures, and colours for a detector's classes."""
        dataset = runner.test_dataloader.dataset
        self.names = picture_names(dataset.get_data_info(i)['img_path'] for i in range(len(dataset)))
        if hasattr(runner.visualizer, 'bbox_color'):  # mmdet's
            runner.visualizer.dataset_meta = detector_meta(runner.visualizer.dataset_meta)
        if get_world_size() > 1:
            runner.logger.warning(f'Only the first process draws pictures: 1 of {get_world_size()} images has one')

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict, outputs: Sequence[BaseDataElement]
    ) -> None:
        """Draw the images of a batch."""
        loader = image_loader(runner.test_dataloader.dataset)
        for sample in outputs if is_main_process() else ():  # mmengine's visualizers draw only in the main process
            image = np.ascontiguousarray(read_image(sample.img_path, self.backend_args, loader))
            name = self.names[sample.img_path]
            with atomic_write(self.out_dir / name) as temporary:
                runner.visualizer.add_datasample(name, image, sample, out_file=str(temporary), **self.options)
                if self.legend:
                    maps = [sample.get(key) for key in ('gt_sem_seg', 'pred_sem_seg')]
                    labels = np.concatenate([labels.data.cpu().flatten() for labels in maps if labels is not None])
                    colours = class_colours(runner.visualizer.dataset_meta, labels)
                    Image.fromarray(add_legend(read_image(str(temporary)), colours)).save(temporary)


def picture_names(paths: Iterable[str]) -> dict[str, str]:
    """Map the path of each image to the file name of its picture: the shortest form in which all names are distinct.

    The forms are the image's name with suffix ``.png``, the path relative to the images' common folder, and this path
    with both suffixes, if paths differ only in the suffix.

    Example:
        >>> picture_names(['val/bonn/1.png', 'val/köln/1.png'])
        {'val/bonn/1.png': 'bonn/1.png', 'val/köln/1.png': 'köln/1.png'}
    """
    paths = list(dict.fromkeys(paths))
    folder = common_folder(paths)
    choices: tuple[Callable[[str], Path], ...] = (
        lambda path: Path(Path(path).stem),
        lambda path: Path(os.path.relpath(path, folder)).with_suffix(''),
        lambda path: Path(os.path.relpath(path, folder)),
    )
    for choice in choices:
        names = {path: f'{choice(path)}.png' for path in paths}
        if len(set(names.values())) == len(paths):
            break
    return names
