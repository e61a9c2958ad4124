"""Predicted clips as pictures, beside the truth."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from PIL import Image

from mmattn.registry import HOOKS
from mmattn.utils.files import atomic_write

from .masks import read_mask
from .overlay import draw_overlay

OPACITY = 0.5


@HOOKS.register_module()
class VOSVisualizationHook(Hook):
    """Draws frames of validated and tested clips through the Runner's visualizer, as ``<clip>_<frame>``.

    Left is the truth, or the frame itself where there is no mask, right the prediction. ``tools/test.py --show-dir``
    turns it on.

    Args:
        draw (bool): do anything at all. Defaults to False.
        interval (int): of a clip, every ``interval``-th frame is drawn, the first included. Defaults to 10.
        show (bool): show the pictures in a window, too. Defaults to False.
        wait_time (float): seconds that a window shows a picture; 0 is until a key is pressed. Defaults to 2.
        out_dir (str, optional): a folder for the pictures, as ``<clip>/<frame>.png``, in place of the visualizer.
            Defaults to None.

    Raises:
        ValueError: ``interval`` is less than 1.
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
        for sample in samples if self.draw and is_main_process() else ():  # only it has a visualizer that writes
            for position in range(0, len(sample.frame_paths), self.interval):
                path, mask_path = sample.frame_paths[position], sample.mask_paths[position]
                left = frame = sample.frames[position]
                if mask_path is not None:
                    left = draw_overlay(frame, read_mask(mask_path, sample.single_object), OPACITY)
                right = draw_overlay(frame, sample.pred_masks.data[position].cpu().numpy(), OPACITY)
                picture = np.ascontiguousarray(np.concatenate([left, right], 1)[..., ::-1])  # RGB
                name = f'{sample.clip}_{Path(path).stem}'
                if self.out_dir is None:
                    runner.visualizer.add_image(name, picture, step)
                else:
                    with atomic_write(Path(self.out_dir, sample.clip, f'{Path(path).stem}.png')) as temporary:
                        Image.fromarray(picture).save(temporary)
                if self.show:
                    runner.visualizer.show(picture, name, self.wait_time)
