"""Detection in image files: writes the boxes and a picture of them for each file."""

import json
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import mmcv.transforms
import numpy as np
from mmdet.apis import DetInferencer
from mmdet.models.detectors.base import BaseDetector
from mmdet.structures import DetDataSample
from mmdet.visualization import DetLocalVisualizer
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.visualization import Visualizer
from PIL import Image
from rich.progress import track
from torch import nn

from mmattn._compat import load_weights
from mmattn.engine import check_checkpoint, fuse_at_first_call, inference_pipeline  # registers 'mmattn::…'
from mmattn.utils.checks import check_fraction
from mmattn.utils.component_type import check_model, inner_data_sets
from mmattn.utils.devices import check_device
from mmattn.utils.files import atomic_write, check_path, check_writable, write_text
from mmattn.utils.image_files import check_names, lines, list_images, reason
from mmattn.utils.images import check_picture
from mmattn.visualization import read_image
from mmattn.visualization.panels import detector_meta


class DetectionInferencer(DetInferencer):
    """mmdet's inferencer for image files of any number and size. It writes each result as soon as it is computed.

    Differences from ``DetInferencer``:

    * Boxes in the files are the boxes in the pictures: the score threshold applies to both.
    * A checkpoint that does not fit the model, or has no names of classes, is an error.
    * The test pipeline may load annotations anywhere, and new images need none.
    * Memory does not grow with the number of files. A broken image does not stop the run.

    Args:
        model (str, Path or Config): the config, or its path.
        weights (str or Path): path or URL of the checkpoint.
        device (str, optional): such as 'cpu' or 'cuda:1'. Defaults to a GPU if one is available.
        show_progress (bool): whether to show a progress bar. Defaults to True.
        fuse_conv_bn (bool): fold batch norms, see :func:`~mmattn.engine.fuse_at_first_call`. Defaults to False.

    Raises:
        OSError: the config or the checkpoint does not exist.
        RuntimeError: the checkpoint does not fit the model. The message lists the keys.
        TypeError: ``weights`` is neither a string nor a Path.
        ValueError: the checkpoint has no names of classes, the model is no detector, or the device does not exist.

    Example::

        inferencer = DetectionInferencer('config.py', 'checkpoint.pth')
        boxes = inferencer('photos', out_dir='results', pred_score_thr=0.5)
    """

    def __init__(
        self,
        model: str | Path | Config,
        weights: str | Path,
        device: str | None = None,
        show_progress: bool = True,
        fuse_conv_bn: bool = False,
    ) -> None:
        check_checkpoint(weights)
        cfg = deepcopy(model) if isinstance(model, Config) else Config.fromfile(model)
        cfg.test_dataloader.dataset = inner_data_sets(cfg.test_dataloader.dataset)[0]  # mmdet reads its palette
        check_model(cfg, BaseDetector, 'a detector')
        self.weights = str(weights)  # read during the construction
        super().__init__(cfg, self.weights, device=str(check_device(device)), show_progress=show_progress)
        if fuse_conv_bn:
            fuse_at_first_call(self.model)
        self._load = next(t for t in self.pipeline.transforms if isinstance(t, mmcv.transforms.LoadImageFromFile))

    def __call__(  # type: ignore[override]
        self,
        inputs: str | Path | Sequence[str | Path],
        out_dir: str | Path,
        pred_score_thr: float = 0.3,
    ) -> list[Path]:
        """Write ``pred/<name>.json`` and ``vis/<name>.png`` in ``out_dir`` for each image ``<name>.<suffix>``.

        A JSON file has lists with an element per object: ``classes`` (names), ``labels`` (indices), ``scores``,
        ``bboxes`` (left, top, right, bottom in pixels) and, of instance segmentation, ``masks`` (COCO's RLE). Files are
        written atomically. An image that cannot be read, or on which the model fails, does not stop the run.
        An error at the end lists such images.

        Args:
            inputs (str, Path or sequence of them): image, folder, or list of images on a local disk.
            out_dir (str or Path): output folder, created if it does not exist.
            pred_score_thr (float): objects with smaller scores are left out, 0 to 1. Defaults to 0.3.

        Returns:
            list of Path: the JSON files, in the order of the inputs.

        Raises:
            ValueError: before the model runs, there is no input, two inputs would have the same output, or an output
                would overwrite an input. At the end, some images could not be processed.
            OSError: a result cannot be written. The message names the path.
        """
        check_fraction('pred_score_thr', pred_score_thr)
        pred_dir, vis_dir = (check_path('out_dir', out_dir) / name for name in ('pred', 'vis'))
        check_writable(pred_dir)
        check_writable(vis_dir)
        paths = list_images(inputs)
        check_names(paths, [f'{Path(path).stem}.png' for path in paths], vis_dir)
        written, faults = [], []
        for path in track(paths, 'Inference', disable=not self.show_progress):
            boxes, picture = pred_dir / f'{Path(path).stem}.json', vis_dir / f'{Path(path).stem}.png'
            sample = self._detect(path, pred_score_thr)
            if isinstance(sample, str):
                faults.append(f'{path}: {sample}')
                continue
            write_text(boxes, json.dumps(self.pred2dict(sample)))
            with atomic_write(picture) as temporary:
                Image.fromarray(self._draw(path, sample)).save(temporary)
            written.append(boxes)
        if faults:
            rest = f'; the results of the others are in {pred_dir} and {vis_dir}' if written else ''
            raise ValueError(f'detection fails on {len(faults)} of {len(paths)} images{rest}:{lines(faults)}')
        return written

    def pred2dict(self, data_sample: DetDataSample, pred_out_dir: str = '') -> dict:
        """Extend mmdet's dictionary of a prediction by ``classes``, the names of its labels."""
        result = super().pred2dict(data_sample, pred_out_dir)
        return dict(result, classes=[self.model.dataset_meta['classes'][label] for label in result['labels']])

    def _load_weights_to_model(self, model: nn.Module, checkpoint: dict | None, cfg: Config) -> None:
        assert checkpoint is not None
        load_weights(model, checkpoint, self.weights)
        meta = checkpoint.get('meta') or {}
        if not {'dataset_meta', 'CLASSES'} & {*meta}:  # mmdet would take the classes of COCO
            raise ValueError(f'{self.weights} has no names of classes (meta.dataset_meta)')
        super()._load_weights_to_model(model, checkpoint, cfg)
        model.dataset_meta = detector_meta(model.dataset_meta)  # type: ignore[assignment, arg-type]

    def _init_pipeline(self, cfg: Config) -> Compose:
        return inference_pipeline(cfg)

    def _init_visualizer(self, cfg: Config) -> Visualizer:
        visualizer = DetLocalVisualizer()  # without the config's backends
        visualizer.dataset_meta = self.model.dataset_meta
        return visualizer

    def _detect(self, path: str, pred_score_thr: float) -> DetDataSample | str:
        try:
            check_picture(path)
            (sample,) = self.forward(self.collate_fn([self.pipeline(dict(img_path=path))]))
            instances = sample.pred_instances
        except Exception as error:  # decoders and models raise many types
            return f'the pipeline or the model fails: {reason(error)}'
        sample.pred_instances = instances[instances.scores >= pred_score_thr]
        return sample

    def _draw(self, path: str, sample: DetDataSample) -> np.ndarray:
        image = read_image(path, loader=self._load)
        self.visualizer.add_datasample(path, image, sample, draw_gt=False, pred_score_thr=-1)
        return self.visualizer.get_image()
