"""Prediction for image files: an index map with the palette in it and a colour overlay a file."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from multiprocessing.pool import ThreadPool
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from mmengine.config import Config, ConfigDict
from mmengine.logging import print_log
from mmengine.runner.checkpoint import _load_checkpoint_to_model
from mmengine.visualization import Visualizer
from mmseg.apis import MMSegInferencer
from mmseg.datasets.transforms.loading import InferencerLoader
from mmseg.registry import DATASETS
from mmseg.visualization import SegLocalVisualizer
from PIL import Image
from rich.progress import track
from torch import nn

import mmattn.engine  # noqa: F401  (what checkpoints hold, and `_base_ = 'mmattn::…'`)

from ..image_facts import THREADS, ImageFile, look

SUFFIXES = set(Image.registered_extensions())


class FaceParsingInferencer(MMSegInferencer):
    """mmseg's inferencer for files, of any number and size, which writes each result as soon as it is there.

    Beyond the stock one: the outputs are called as the inputs and the index map holds its palette; classes and palette
    are the checkpoint's, or else those of the config's test set, never Cityscapes'; a checkpoint that does not fit the
    model is an error; a batch may be of images of different sizes; memory does not grow with the number of files; and
    overlay and index map are of the pixels that the model saw, so an EXIF orientation turns both or neither.

    Args:
        model (str, Path or Config): the config, or its path.
        weights (str): path or URL of the checkpoint.
        device (str, optional): such as 'cpu' or 'cuda:1'. Defaults to a GPU if there is one.
        scope (str): where names in the config are looked up first. Defaults to 'mmseg'.
        show_progress (bool): show a progress bar. Defaults to True.

    Raises:
        OSError: there is no such config or checkpoint.
        RuntimeError: the checkpoint does not fit the model; it lists the keys.
        ValueError: neither checkpoint nor config have classes and a palette, or they are not those of the model.
    """

    def __init__(
        self,
        model: str | Path | Config,
        weights: str,
        device: str | None = None,
        scope: str = 'mmseg',
        show_progress: bool = True,
    ) -> None:
        cfg = model if isinstance(model, Config) else Config.fromfile(model)
        super().__init__(cfg, weights, device=device, scope=scope)
        self.visualizer.set_dataset_meta(**self.model.dataset_meta)
        self.show_progress = show_progress
        self._load = next(t for t in self.pipeline.transforms if isinstance(t, InferencerLoader))

    def __call__(  # type: ignore[override]
        self, inputs: str | Path | Sequence[str | Path], out_dir: str | Path, batch_size: int = 1, opacity: float = 0.5
    ) -> list[Path]:
        """Write ``pred/<name>.png`` and ``vis/<name>.png`` in ``out_dir`` for each ``<name>.<suffix>`` of the inputs.

        Both have the image's own height and width, turned as its EXIF orientation says if the pipeline's loader does
        that (mmcv's does unless told otherwise). The first holds the labels as indices into its palette, the second the
        colours over the image. Files appear whole or not at all.

        Args:
            inputs (str, Path or sequence of them): image, folder or list of images on a local disk. Of a folder, all
                files that are directly in it, not hidden and called like images, by name; the log counts the others.
            out_dir (str or Path): folder, made if need be.
            batch_size (int): images at once at most; only neighbours of the same size go together. Defaults to 1.
            opacity (float): of the colours over the image, 0 to 1. Defaults to 0.5.

        Returns:
            list of Path: the index maps, in the order of the inputs.

        Raises:
            ValueError: before the model runs: there is no input; some cannot be read, and it lists them; two would
                have the same output; an output would overwrite an input; ``batch_size`` or ``opacity`` is out of range.
        """
        if batch_size < 1:
            raise ValueError(f'batch_size must be at least 1; got {batch_size}')
        if not 0 <= opacity <= 1:
            raise ValueError(f'opacity must be from 0 to 1; got {opacity}')
        pred_dir, vis_dir = Path(out_dir, 'pred'), Path(out_dir, 'vis')
        paths = self._inputs_to_list(inputs)
        names = [f'{Path(path).stem}.png' for path in paths]
        _check_names(paths, names, pred_dir, vis_dir)
        self._check_readable(paths)
        pred_dir.mkdir(parents=True, exist_ok=True)
        vis_dir.mkdir(exist_ok=True)

        self.visualizer.alpha = opacity
        palette = np.array(self.model.dataset_meta['palette'], np.uint8).tobytes()
        samples = chain.from_iterable(map(self.forward, self.preprocess(paths, batch_size)))
        results = track(zip(paths, names, samples), 'Inference', len(paths), disable=not self.show_progress)
        with TemporaryDirectory(prefix='.part-', dir=out_dir) as folder:
            pred, vis = Path(folder, 'pred.png'), Path(folder, 'vis.png')
            for path, name, sample in results:
                labels = Image.fromarray(sample.pred_sem_seg.data[0].cpu().numpy().astype(np.uint8))
                labels.putpalette(palette)
                labels.save(pred)
                image = self._load(path)['img'][..., ::-1]  # BGR to RGB
                self.visualizer.add_datasample(name, image, sample, draw_gt=False, out_file=str(vis), with_labels=False)
                pred.replace(pred_dir / name)
                vis.replace(vis_dir / name)
        return [pred_dir / name for name in names]

    def _load_weights_to_model(self, model: nn.Module, checkpoint: dict | None, cfg: Config) -> None:
        """Load the weights, all of them, and give the model its ``dataset_meta``."""
        if checkpoint is None:
            raise ValueError('weights must be the path or URL of a checkpoint; got None')
        _load_checkpoint_to_model(model, checkpoint, strict=True)
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
                f'the model has {model.num_classes} classes, but there are {len(classes)} names and '
                f'{len(palette)} colours of classes: {list(classes)}'
            )
        model.dataset_meta = dict(classes=classes, palette=palette)  # type: ignore[assignment]

    def _init_visualizer(self, cfg: Config | ConfigDict) -> Visualizer:
        """Return mmseg's visualizer, whatever the config's writes to elsewhere."""
        return SegLocalVisualizer()

    def _inputs_to_list(self, inputs: str | Path | Sequence[str | Path]) -> list[str]:
        """Return the paths of the images."""
        if isinstance(inputs, str | Path):
            found = sorted(super()._inputs_to_list(str(inputs)))
            if Path(inputs).is_dir():
                images = [path for path in found if Path(path).suffix.lower() in SUFFIXES]
                if len(images) < len(found):
                    print_log(f'{len(found) - len(images)} files in {inputs} are not called like images', 'current')
                found = images
            inputs = found
        paths = [os.fspath(path) for path in inputs]
        if not paths:
            raise ValueError('there is no image in the inputs')
        return paths

    def _get_chunk_data(self, inputs: Iterable[dict], chunk_size: int) -> Iterator[list[dict]]:
        """Yield batches of neighbours of the same size, since mmseg's models take no others."""
        for _, alike in groupby(inputs, lambda item: (item['inputs'].shape, item['data_samples'].ori_shape)):
            yield from super()._get_chunk_data(alike, chunk_size)

    def _check_readable(self, paths: list[str]) -> None:
        """Decode every file as the pipeline will; raise one ValueError for all that fail."""
        with ThreadPool(THREADS) as pool:
            results = pool.imap(self._fault, paths)
            faults = [*track(results, 'Reading the images', len(paths), disable=not self.show_progress)]
        unreadable = [f'{path}: {fault}' for path, fault in zip(paths, faults) if fault]
        if unreadable:
            raise ValueError(f'{len(unreadable)} of {len(paths)} inputs cannot be read:{_lines(unreadable)}')

    def _fault(self, path: str) -> str:
        """Return what is wrong with a file, or ''."""
        loader = self._load.from_file
        fault = look(ImageFile(path, loader.imdecode_backend, loader.color_type)).fault
        if not fault:
            try:
                self._load(path)
            except Exception:  # decoders raise all kinds, and the loader's own names the path again
                return f'{loader.imdecode_backend} cannot decode it'
        return fault


def _check_names(paths: list[str], names: list[str], *folders: Path) -> None:
    """Raise a ValueError if an output, of that name in each folder, would overwrite another or an input."""
    sources = defaultdict(list)
    for path, name in zip(paths, names):
        sources[name].append(path)
    clashes = [f'{name}: of {" and ".join(same)}' for name, same in sources.items() if len(same) > 1]
    if clashes:
        raise ValueError(f'inputs must differ in name, not only in suffix or folder:{_lines(clashes)}')
    targets = {(folder / name).resolve() for folder in folders for name in names}
    overwritten = [path for path in paths if Path(path).resolve() in targets]
    if overwritten:
        raise ValueError(f'outputs would overwrite inputs; choose another out_dir:{_lines(overwritten)}')


def _lines(items: list[str]) -> str:
    return ''.join(f'\n  {item}' for item in items)
