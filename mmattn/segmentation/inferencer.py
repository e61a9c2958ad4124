"""Segmentation of image files, of any number and size."""

import logging
from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import groupby
from pathlib import Path

import numpy as np
from mmengine.config import Config, ConfigDict
from mmengine.dataset import Compose
from mmengine.logging import print_log
from mmengine.visualization import Visualizer
from mmseg.apis import MMSegInferencer
from mmseg.datasets.transforms.loading import InferencerLoader
from mmseg.models.segmentors import BaseSegmentor, EncoderDecoder
from mmseg.registry import DATASETS, TRANSFORMS
from mmseg.structures import SegDataSample
from mmseg.visualization import SegLocalVisualizer
from rich.progress import track
from torch import Tensor, nn

from mmattn._compat import load_weights
from mmattn.engine import (  # registers 'mmattn::…'
    check_checkpoint,
    fuse_at_first_call,
    inference_precision,
)
from mmattn.utils.checks import check_count
from mmattn.utils.component_type import check_model, component_class, inner_data_sets, type_name
from mmattn.utils.devices import check_device
from mmattn.utils.image_files import SUFFIXES, lines, list_images, reason
from mmattn.utils.images import check_picture
from mmattn.visualization import read_image

from .load_channels import LoadChannels
from .result_files import Result, ResultFiles
from .tiled_encoder_decoder import TiledEncoderDecoder
from .tiles import resize_rows, segment_in_tiles

_Windows = tuple[tuple[int, int], tuple[int, int]]  # height and width of windows, and of the steps between them


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
        weights (str or Path): path or URL of the checkpoint.
        device (str, optional): such as 'cpu' or 'cuda:1'. Defaults to a GPU if one is available.
        scope (str): registry scope for names in the config. Defaults to 'mmseg'.
        show_progress (bool): whether to show a progress bar. Defaults to True.
        amp (bool): use mixed precision, see :func:`~mmattn.engine.inference_precision`. Defaults to False.
        fuse_conv_bn (bool): fold batch norms, see :func:`~mmattn.engine.fuse_at_first_call`. Defaults to False.

    Raises:
        OSError: the config or the checkpoint does not exist.
        RuntimeError: the checkpoint does not fit the model. The message lists the keys.
        TypeError: ``weights`` is neither a string nor a Path.
        ValueError: classes and palette are missing in checkpoint and config, or do not match the model, the model has
            fewer than 2 or more than 256 classes, or the device does not exist.

    Example::

        inferencer = SegmentationInferencer('config.py', 'checkpoint.pth')
        index_maps = inferencer(['a.jpg', 'b.jpg'], out_dir='results')
    """

    def __init__(
        self,
        model: str | Path | Config,
        weights: str | Path,
        device: str | None = None,
        scope: str = 'mmseg',
        show_progress: bool = True,
        amp: bool = False,
        fuse_conv_bn: bool = False,
    ) -> None:
        device = str(check_device(device))
        check_checkpoint(weights)
        cfg = deepcopy(model) if isinstance(model, Config) else Config.fromfile(model)
        cfg.test_dataloader.dataset = inner_data_sets(cfg.test_dataloader.dataset)[0]  # mmseg reads its pipeline
        check_model(cfg, BaseSegmentor, 'a segmentor')
        self.weights = str(weights)  # read during the construction
        super().__init__(cfg, self.weights, device=device, scope=scope)
        self.visualizer.set_dataset_meta(**self.model.dataset_meta)
        self.show_progress = show_progress
        if fuse_conv_bn:
            fuse_at_first_call(self.model)
        self._precision = inference_precision(device, amp=amp)
        self._load = next(t for t in self.pipeline.transforms if isinstance(t, InferencerLoader | LoadChannels))

    def __call__(  # type: ignore[override]
        self,
        inputs: str | Path | Sequence[str | Path],
        out_dir: str | Path,
        batch_size: int = 1,
        opacity: float = 0.5,
        probabilities: bool = False,
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
            batch_size (int): maximum number of images, or of tiles, per batch. Only consecutive images of the same size
                share a batch. Defaults to 1.
            opacity (float): opacity of the colours over the image, 0 to 1. Defaults to 0.5.
            probabilities (bool): whether to write also ``prob/<name>.npy``, float16 ``(classes, H, W)``: the softmax of
                the logits, or the sigmoid of a single logit. ``np.load(path, mmap_mode='r')`` reads parts of it.
                Defaults to False.

        Returns:
            list of Path: the index maps, in the order of the inputs.

        Raises:
            ValueError: before the model runs, there is no input, two inputs would have the same output, or an output
                would overwrite an input. At the end, some images could not be read or segmented.
            OSError: a result cannot be written. The message names the path.
        """
        check_count('batch_size', batch_size)
        files = ResultFiles(out_dir, self.model.dataset_meta, self.read_image, opacity, probabilities=probabilities)
        paths = self.list_inputs(inputs)
        files.check(paths)
        faults: dict[str, str] = {}
        items: Iterator[tuple[str, dict | str]] = self._with_warning((path, self._read(path)) for path in paths)
        windows = self._windows()
        results = self._tiled(items, batch_size, *windows) if windows else self._predict(items, batch_size)
        for path, result in track(zip(paths, results), 'Inference', len(paths), disable=not self.show_progress):
            try:
                if isinstance(result, str):
                    raise _ModelError(result)
                with self._precision:  # the tiles of an image are segmented while it is written
                    files.write(path, result)
            except _ModelError as error:
                faults[path] = str(error)
        done = [path for path in paths if path not in faults]
        if faults:
            named = lines([f'{path}: {fault}' for path, fault in faults.items()])
            others = f'; the results of the others are in {" and ".join(map(str, files.folders))}' if done else ''
            raise ValueError(f'{len(faults)} of {len(paths)} images cannot be segmented{others}:{named}')
        return [files.of(path)[0] for path in done]

    def _windows(self) -> _Windows | None:
        """Return size and stride, if the config says ``mode='slide'``: one row of tiles needs less memory."""
        kind, cfg = type(self.model), getattr(self.model, 'test_cfg', None) or {}
        known = getattr(kind, 'slide_inference', None) in (
            EncoderDecoder.slide_inference,
            TiledEncoderDecoder.slide_inference,
        )
        return (tuple(cfg['crop_size']), tuple(cfg['stride'])) if known and cfg.get('mode') == 'slide' else None

    def _load_weights_to_model(self, model: nn.Module, checkpoint: dict | None, cfg: Config) -> None:
        if checkpoint is None:
            raise ValueError('weights must be the path or URL of a checkpoint; got None')
        load_weights(model, checkpoint, self.weights)
        meta = checkpoint.get('meta', {}).get('dataset_meta') or {}
        if not (meta.get('classes') and meta.get('palette')):
            meta = DATASETS.build({**cfg.test_dataloader.dataset, 'lazy_init': True, 'pipeline': []}).metainfo
        classes, palette = meta.get('classes'), meta.get('palette')
        if not (classes and palette):
            raise ValueError(
                f'{self.weights}: classes and palette are neither in meta.dataset_meta, nor in the metainfo of '
                'test_dataloader.dataset in the config'
            )
        if not len(classes) == len(palette) == model.num_classes:
            raise ValueError(
                f'{self.weights}: the model has {model.num_classes} classes, but the metainfo has {len(classes)} names '
                f'and {len(palette)} colours: {list(classes)}'
            )
        if not all(len(colour) == 3 and all(0 <= value <= 255 for value in colour) for colour in palette):
            raise ValueError(
                f'{self.weights}: colours of the palette must be three values from 0 to 255; got {list(palette)}'
            )
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
        """Read an image as the model receives it, as a picture to look at: uint8 ``(H, W, 3)``, RGB.

        Of an image with other channels or values, it is what :func:`~mmattn.utils.channels.as_picture` shows.
        """
        return read_image(path, loader=getattr(self._load, 'from_file', self._load))

    def list_inputs(self, inputs: str | Path | Sequence[str | Path]) -> list[str]:
        """List image files, see :func:`~mmattn.utils.image_files.list_images`."""
        return list_images(inputs, {*SUFFIXES, '.npy'} if isinstance(self._load, LoadChannels) else SUFFIXES)

    _inputs_to_list = list_inputs  # the name in mmengine

    def _init_pipeline(self, cfg: Config | ConfigDict) -> Compose:
        steps = cfg.test_dataloader.dataset.pipeline
        kinds = [component_class(step, TRANSFORMS, 'mmseg') for step in steps]
        if LoadChannels not in kinds:
            return super()._init_pipeline(cfg)
        return Compose([step for step in steps if 'Annotations' not in type_name(step)])

    def _get_transform_idx(self, pipeline_cfg: Sequence[dict], name: str) -> int:
        # mmseg knows no classes, which a pure-Python config has in place of names
        return next((i for i, step in enumerate(pipeline_cfg) if type_name(step) == name), -1)

    def _with_warning(self, items: Iterator[tuple[str, dict | str]]) -> Iterator[tuple[str, dict | str]]:
        """Pass images on, and warn of the first whose labels mmseg stretches over padding, as its own tests do."""
        warned = False
        for path, item in items:
            if not (isinstance(item, str) or warned or _is_whole(item, self.pipeline)) and _pads(self.pipeline):
                warned = True
                print_log(
                    f'{path}: the labels are displaced, because the test pipeline pads: it makes {_sizes(item)}. '
                    'Leave its Pad out: model.data_preprocessor.test_cfg pads, and its padding is cut off',
                    'current',
                    logging.WARNING,
                )
            yield path, item

    def _predict(self, items: Iterator[tuple[str, dict | str]], batch_size: int) -> Iterator[Result | str]:
        def size(item: dict | str) -> tuple:
            return () if isinstance(item, str) else (item['inputs'].shape, item['data_samples'].ori_shape)

        # a batch has images of one size, as mmseg's models require
        for _, same_size in groupby((item for _, item in items), size):
            for batch in self._get_chunk_data(same_size, batch_size):
                yield from batch if isinstance(batch[0], str) else self._segment(batch)

    def _tiled(
        self,
        items: Iterator[tuple[str, dict | str]],
        batch_size: int,
        tile: tuple[int, int],
        stride: tuple[int, int],
    ) -> Iterator[Result | str]:
        for _, item in items:
            if isinstance(item, str):
                yield item
            elif _is_whole(item, self.pipeline):
                image, sample = item['inputs'], item['data_samples']
                yield Result(sample.ori_shape, self._tile_rows(image, sample, tile, stride, batch_size))
            elif isinstance(self.model, TiledEncoderDecoder):
                yield (
                    'tiles require a test pipeline that keeps the size, or has a Resize, and does not pad; it makes '
                    f'{_sizes(item)}'
                )
            else:
                yield from self._segment([item])

    def _tile_rows(
        self,
        image: Tensor,
        sample: SegDataSample,
        tile: tuple[int, int],
        stride: tuple[int, int],
        batch_size: int,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        size = image.shape[1], image.shape[2]
        try:
            parts = segment_in_tiles(self.model, image, sample, tile, stride, batch_size)
            for logits in resize_rows(parts, size, sample.ori_shape, self.model.align_corners, tile[0]):
                if len(logits) > 1:
                    yield logits.argmax(0), logits
                else:
                    scores = logits.sigmoid()
                    yield scores[0] > self.model.decode_head.threshold, scores
        except Exception as error:  # models raise many types
            raise _ModelError(_model_fault(sample, error)) from error

    def _read(self, path: str) -> dict | str:
        loader = getattr(self._load, 'from_file', self._load)
        try:
            if not isinstance(loader, LoadChannels):
                check_picture(path)
            return self.pipeline(dict(img_path=path))
        except Exception as error:  # decoders raise many types
            return f'{type(loader).__name__} cannot decode it, or the pipeline cannot process it: {reason(error)}'

    def _forward(self, batch: list[dict]) -> list[SegDataSample]:
        with self._precision:
            return self.forward(self.collate_fn(batch))

    def _segment(self, batch: list[dict]) -> list[Result | str]:
        try:
            return [
                Result(sample.ori_shape, [(sample.pred_sem_seg.data[0], sample.seg_logits.data)])
                for sample in self._forward(batch)
            ]
        except Exception as error:  # models raise many types
            if len(batch) > 1:  # segment the images one by one
                return [result for item in batch for result in self._segment([item])]
            return [_model_fault(batch[0]['data_samples'], error)]


FaceParsingInferencer = SegmentationInferencer  # its name in `mmattn.segmentation.face_parsing`


def _resizes(transform: object) -> bool:
    return 'Resize' in type(transform).__name__


def _pads(pipeline: Compose) -> bool:
    return any('Pad' in type(transform).__name__ for transform in pipeline.transforms)


def _is_whole(item: dict, pipeline: Compose) -> bool:
    """Whether an input is the image, of its size or resized, rather than padded or a part of it."""
    sample = item['data_samples']
    scales = np.broadcast_to(sample.get('scale_factor', 1), 2)[::-1]  # ResizeToMultiple does not write it
    resized = tuple(round(side * scale) for side, scale in zip(sample.ori_shape, scales))
    return item['inputs'].shape[1:] == resized or (any(map(_resizes, pipeline.transforms)) and not _pads(pipeline))


def _sizes(item: dict) -> str:
    (height, width), original = item['inputs'].shape[1:], item['data_samples'].ori_shape
    return f'{width}×{height} of {original[1]}×{original[0]} pixels'


class _ModelError(Exception):
    """An image cannot be segmented."""


def _model_fault(sample: SegDataSample, error: Exception) -> str:
    height, width = sample.ori_shape
    return f'the model fails on {width}×{height} pixels: {reason(error)}'
