"""Prediction for image files: writes an index map with its palette and a colour overlay for each file."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from mmengine.config import Config, ConfigDict
from mmengine.logging import print_log
from mmengine.visualization import Visualizer
from mmseg.apis import MMSegInferencer
from mmseg.datasets.transforms.loading import InferencerLoader
from mmseg.models.segmentors import BaseSegmentor
from mmseg.registry import DATASETS
from mmseg.structures import SegDataSample
from mmseg.visualization import SegLocalVisualizer
from PIL import Image
from rich.progress import track
from torch import nn

from mmattn._compat import load_weights
from mmattn.data_check.images import ImageFile, look
from mmattn.engine import check_checkpoint  # it also registers `_base_ = 'mmattn::…'`
from mmattn.utils.component_type import check_model
from mmattn.utils.devices import check_device
from mmattn.utils.faults import shorten
from mmattn.utils.files import atomic_write, check_path, check_writable
from mmattn.utils.images import deep_picture_fault
from mmattn.utils.trained_model import warn_of_differences

SUFFIXES = {suffix for suffix, name in Image.registered_extensions().items() if name in Image.OPEN}


class SegmentationInferencer(MMSegInferencer):
    """mmseg's inferencer for image files of any number and size. It writes each result as soon as it is computed.

    Differences from ``MMSegInferencer``:

    * Outputs are named after the inputs, and the index map contains its palette.
    * Classes and palette come from the checkpoint, else from the config's test set, never from Cityscapes.
    * A checkpoint that does not fit the model is an error.
    * Images of different sizes are supported, and memory does not grow with the number of files.
    * Overlay and index map show the pixels that the model received: an EXIF orientation rotates both or neither.

    Args:
        model (str, Path or Config): the config, or its path.
        weights (str): path or URL of the checkpoint.
        device (str, optional): such as 'cpu' or 'cuda:1'. Defaults to a GPU if one is available.
        scope (str): registry scope for names in the config. Defaults to 'mmseg'.
        show_progress (bool): whether to show a progress bar. Defaults to True.

    Raises:
        OSError: the config or the checkpoint does not exist.
        RuntimeError: the checkpoint does not fit the model. The message lists the keys.
        ValueError: classes and palette are missing in checkpoint and config, or do not match the model, the model has
            fewer than 2 or more than 256 classes, or the device does not exist.

    Example::

        inferencer = SegmentationInferencer('config.py', 'checkpoint.pth')
        index_maps = inferencer(['a.jpg', 'b.jpg'], out_dir='results')
    """

    def __init__(
        self,
        model: str | Path | Config,
        weights: str,
        device: str | None = None,
        scope: str = 'mmseg',
        show_progress: bool = True,
    ) -> None:
        device = str(check_device(device))
        if weights is not None:
            check_checkpoint(weights)
        cfg = model if isinstance(model, Config) else Config.fromfile(model)
        check_model(cfg, BaseSegmentor, 'a segmentor')
        self.weights = str(weights)  # read during the construction
        super().__init__(cfg, weights, device=device, scope=scope)
        self.visualizer.set_dataset_meta(**self.model.dataset_meta)
        self.show_progress = show_progress
        self._load = next(t for t in self.pipeline.transforms if isinstance(t, InferencerLoader))

    def __call__(  # type: ignore[override]
        self, inputs: str | Path | Sequence[str | Path], out_dir: str | Path, batch_size: int = 1, opacity: float = 0.5
    ) -> list[Path]:
        """Write ``pred/<name>.png`` and ``vis/<name>.png`` in ``out_dir`` for each image ``<name>.<suffix>``.

        ``pred`` has the labels as indices into the palette, ``vis`` the class colours over the image. Both have the
        image's height and width, after rotation by its EXIF orientation if the pipeline's loader applies it (mmcv's
        default). Files are written atomically. An image that cannot be read or segmented does not stop the run. An
        error at the end lists such images.

        Args:
            inputs (str, Path or sequence of them): image, folder, or list of images on a local disk. In a folder, all
                files with the suffix of an image are read in the order of their names, except hidden files. Subfolders
                are not read. The log names skipped files.
            out_dir (str or Path): output folder, created if it does not exist.
            batch_size (int): maximum number of images per batch. Only consecutive images of the same size share a
                batch. Defaults to 1.
            opacity (float): opacity of the colours over the image, 0 to 1. Defaults to 0.5.

        Returns:
            list of Path: the index maps, in the order of the inputs.

        Raises:
            ValueError: before the model runs, there is no input, two inputs would have the same output, or an output
                would overwrite an input. At the end, some images could not be read or segmented.
            OSError: a result cannot be written. The message names the path.
        """
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f'batch_size must be an integer, at least 1; got {batch_size}')
        if not 0 <= opacity <= 1:
            raise ValueError(f'opacity must be from 0 to 1; got {opacity}')
        pred_dir, vis_dir = (check_path('out_dir', out_dir) / name for name in ('pred', 'vis'))
        check_writable(pred_dir)
        check_writable(vis_dir)
        paths = self.list_inputs(inputs)
        names = [f'{Path(path).stem}.png' for path in paths]
        _check_names(paths, names, pred_dir, vis_dir)

        palette = np.array(self.model.dataset_meta['palette'], np.uint8)
        predictions = self._predict(paths, batch_size)
        results = track(zip(paths, names, predictions), 'Inference', len(paths), disable=not self.show_progress)
        written, faults = [], []
        for path, name, sample in results:
            if isinstance(sample, str):
                faults.append(f'{path}: {sample}')
                continue
            labels = sample.pred_sem_seg.data[0].cpu().numpy().astype(np.uint8)
            index_map = Image.fromarray(labels)
            index_map.putpalette(palette.tobytes())
            with atomic_write(pred_dir / name) as temporary:
                index_map.save(temporary)
            with atomic_write(vis_dir / name) as temporary:
                Image.fromarray(draw_labels(self.read_image(path), labels, palette, opacity)).save(temporary)
            written.append(pred_dir / name)
        if faults:
            rest = f'; the results of the others are in {pred_dir} and {vis_dir}' if written else ''
            raise ValueError(f'{len(faults)} of {len(paths)} images cannot be segmented{rest}:{_lines(faults)}')
        return written

    def _load_weights_to_model(self, model: nn.Module, checkpoint: dict | None, cfg: Config) -> None:
        if checkpoint is None:
            raise ValueError('weights must be the path or URL of a checkpoint; got None')
        load_weights(model, checkpoint)
        warn_of_differences(self.weights, checkpoint.get('meta') or {}, cfg.model)
        meta = checkpoint.get('meta', {}).get('dataset_meta') or {}
        if not (meta.get('classes') and meta.get('palette')):
            meta = DATASETS.build({**cfg.test_dataloader.dataset, 'lazy_init': True, 'pipeline': []}).metainfo
        classes, palette = meta.get('classes'), meta.get('palette')
        if not (classes and palette):
            raise ValueError(
                "classes and palette are not in the checkpoint's meta.dataset_meta, nor in the metainfo "
                'of test_dataloader.dataset in the config'
            )
        if not len(classes) == len(palette) == model.num_classes:
            raise ValueError(
                f'the model has {model.num_classes} classes, but the metainfo has {len(classes)} names and '
                f'{len(palette)} colours: {list(classes)}'
            )
        if not all(len(colour) == 3 and all(0 <= value <= 255 for value in colour) for colour in palette):
            raise ValueError(f'colours of the palette must be three values from 0 to 255; got {list(palette)}')
        if model.num_classes == 1:
            raise ValueError(
                'a model of one class has two labels, but one colour if decode_head.num_classes is 1; '
                'use num_classes=2 and out_channels=1'
            )
        if model.num_classes > 256:
            raise ValueError(f'8-bit index maps support at most 256 classes; the model has {model.num_classes}')
        model.dataset_meta = dict(classes=classes, palette=palette)  # type: ignore[assignment]

    def _init_visualizer(self, cfg: Config | ConfigDict) -> Visualizer:
        return SegLocalVisualizer()  # without the config's backends

    def read_image(self, path: str) -> np.ndarray:
        """Read an image with the pixels that the model receives: uint8 ``(H, W, 3)``, RGB, or ``(H, W, 1)``."""
        return np.atleast_3d(self._load(path)['img'])[..., ::-1]  # BGR to RGB, or grey

    def list_inputs(self, inputs: str | Path | Sequence[str | Path]) -> list[str]:
        """List the images of a call."""
        if isinstance(inputs, Iterable) and not isinstance(inputs, str | Path | bytes):
            paths = [str(check_path('inputs', path)) for path in inputs]
        elif (folder := check_path('inputs', inputs)).is_dir():
            entries = sorted(path for path in folder.iterdir() if not path.name.startswith('.'))
            # includes folders and broken links that are named like images: they are reported as faults
            paths = [str(path) for path in entries if path.suffix.lower() in SUFFIXES]
            rest = [path.name for path in entries if path.suffix.lower() not in SUFFIXES]
            if rest:
                print_log(f'{inputs}: skipped, no suffix of an image: {", ".join(shorten(rest, 10))}', 'current')
        else:
            paths = [str(inputs)]
        if not paths:
            raise ValueError(f'inputs contain no image; got {inputs}')
        return paths

    _inputs_to_list = list_inputs  # the name in mmengine

    def _predict(self, paths: list[str], batch_size: int) -> Iterator[SegDataSample | str]:
        def size(item: dict | str) -> tuple:
            return () if isinstance(item, str) else (item['inputs'].shape, item['data_samples'].ori_shape)

        # a batch has images of one size, as mmseg's models require
        for _, same_size in groupby(map(self._read, paths), size):
            for batch in self._get_chunk_data(same_size, batch_size):
                yield from batch if isinstance(batch[0], str) else self._segment(batch)

    def _read(self, path: str) -> dict | str:
        loader = self._load.from_file
        fault = look(ImageFile(path, loader.imdecode_backend, loader.color_type)).fault
        try:
            if not fault and loader.imdecode_backend == 'pillow':
                with Image.open(path) as image:
                    fault = deep_picture_fault(image)
            return fault or self.pipeline(path)
        except Exception as error:  # decoders raise many types
            return f'{loader.imdecode_backend} cannot decode it, or the pipeline cannot process it: {_reason(error)}'

    def _segment(self, batch: list[dict]) -> list[SegDataSample | str]:
        try:
            return self.forward(self.collate_fn(batch))
        except Exception as error:  # models raise many types
            if len(batch) > 1:  # segment the images one by one
                return [result for item in batch for result in self._segment([item])]
            height, width = batch[0]['data_samples'].ori_shape
            return [f'the model fails on {width}×{height} pixels: {_reason(error)}']


FaceParsingInferencer = SegmentationInferencer  # its name in `mmattn.segmentation.face_parsing`


def draw_labels(image: np.ndarray, labels: np.ndarray, palette: np.ndarray, opacity: float) -> np.ndarray:
    """Draw class colours over an image. Labels without a colour show the image.

    Args:
        image (np.ndarray): uint8 ``(H, W, 3)``, RGB, or ``(H, W, 1)``.
        labels (np.ndarray): uint8 ``(H, W)``.
        palette (np.ndarray): uint8 ``(classes, 3)``, RGB.
        opacity (float): opacity of the colours, 0 to 1.

    Returns:
        np.ndarray: uint8 ``(H, W, 3)``, RGB.

    Example:
        >>> image, labels = np.full((1, 2, 3), 100, np.uint8), np.array([[0, 255]], np.uint8)
        >>> draw_labels(image, labels, np.array([[200, 0, 0]], np.uint8), 0.5).tolist()
        [[[150, 50, 50], [100, 100, 100]]]
    """
    coloured = (labels < len(palette))[..., None]
    shares = np.where(coloured, np.float32(opacity), np.float32(0))
    colours = palette[np.where(coloured[..., 0], labels, 0)]
    return np.rint(image * (1 - shares) + colours * shares).astype(np.uint8)  # mmseg's visualizer fails on one pixel


def _check_names(paths: list[str], names: list[str], *folders: Path) -> None:
    sources = defaultdict(list)
    for path, name in zip(paths, names):
        sources[name].append(path)
    clashes = [f'{name} from {" and ".join(same)}' for name, same in sources.items() if len(same) > 1]
    if clashes:
        raise ValueError(f'inputs must have distinct names, without suffix and folder:{_lines(clashes)}')
    targets = {(folder / name).resolve() for folder in folders for name in names}
    overwritten = [path for path in paths if Path(path).resolve() in targets]
    if overwritten:
        raise ValueError(f'outputs would overwrite inputs; choose another out_dir:{_lines(overwritten)}')


def _reason(error: Exception) -> str:
    return ' '.join(str(error).split()) or repr(error)


def _lines(items: list[str]) -> str:
    return ''.join(f'\n  {item}' for item in items)
