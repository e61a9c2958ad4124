"""Pictures of predicted clips next to the ground truth."""

from collections.abc import Sequence
from pathlib import Path

import mmcv
import numpy as np
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from PIL import Image

from mmattn.registry import HOOKS
from mmattn.utils.files import atomic_write

from .masks import draw_overlay, read_mask

OPACITY = 0.5
STRIP_WIDTH = 240  # of a frame in a strip, in pixels


@HOOKS.register_module()
class VOSVisualizationHook(Hook):
    """Draw frames of validated and tested clips with the Runner's visualizer, as ``<clip>_<frame>``.

    The left half shows the ground truth, or the plain frame if it has no mask. The right half shows the prediction.
    A strip per clip, ``<clip>_strip``, has all of these frames side by side, the ground truth above the prediction, as
    in Fig. 5.5 of the thesis on SST. ``tools/test.py --show-dir`` enables the hook.

    Args:
        draw (bool): enable the hook. Defaults to False.
        interval (int): draw every ``interval``-th frame of a clip, starting with the first. At least 1. Defaults to 10.
        show (bool): also show the pictures in a window. Defaults to False.
        wait_time (float): seconds that a window shows a picture. 0 waits for a key. Defaults to 2.
        out_dir (str, optional): write ``<clip>/<frame>.png`` and ``<clip>/strip.png`` to this folder, not to the
            visualizer. Defaults to None.

    Example:
        >>> hook = HOOKS.build(dict(type='mmattn.VOSVisualizationHook', draw=True, interval=5))
        >>> hook.interval
        5
    """

    def __init__(
        self,
        draw: bool = False,
        interval: int = 10,
        show: bool = False,
        wait_time: float = 2.0,
        out_dir: str | None = None,
    ) -> None:
        if interval < 1:
            raise ValueError(f'interval must be at least 1; got {interval}')
        self.draw = draw
        self.interval = interval
        self.show = show
        self.wait_time = wait_time
        self.out_dir = out_dir

    def after_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict, outputs: Sequence[BaseDataElement]
    ) -> None:
        """Draw the clips of a batch."""
        self._draw(runner, outputs, runner.iter)

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict, outputs: Sequence[BaseDataElement]
    ) -> None:
        """Draw the clips of a batch."""
        self._draw(runner, outputs, 0)  # `runner.iter` would build the training data set

    def _draw(self, runner: Runner, samples: Sequence[BaseDataElement], step: int) -> None:
        for sample in samples if self.draw and is_main_process() else ():  # visualizers of other processes do not write
            strip = []
            for position in range(0, len(sample.frame_paths), self.interval):
                path, mask_path = sample.frame_paths[position], sample.mask_paths[position]
                left = frame = sample.frames[position]
                if mask_path is not None:
                    left = draw_overlay(frame, read_mask(mask_path, sample.single_object), OPACITY)
                right = draw_overlay(frame, sample.pred_masks.data[position].cpu().numpy(), OPACITY)
                picture = self._write(runner, sample.clip, Path(path).stem, np.concatenate([left, right], 1), step)
                if self.show:
                    runner.visualizer.show(picture, f'{sample.clip}_{Path(path).stem}', self.wait_time)
                strip.append(mmcv.imrescale(np.concatenate([left, right]), STRIP_WIDTH / frame.shape[1]))
            self._write(runner, sample.clip, 'strip', np.concatenate(strip, 1), step)

    def _write(self, runner: Runner, clip: str, name: str, picture: np.ndarray, step: int) -> np.ndarray:
        picture = np.ascontiguousarray(picture[..., ::-1])  # RGB
        if self.out_dir is None:
            runner.visualizer.add_image(f'{clip}_{name}', picture, step)
        else:
            with atomic_write(Path(self.out_dir, clip, f'{name}.png')) as temporary:
                Image.fromarray(picture).save(temporary)
        return picture
