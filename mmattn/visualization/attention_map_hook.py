"""Attention maps during training."""

from collections.abc import Sequence
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmattn.registry import HOOKS

from .attention_maps import attention_layers, attention_maps
from .figure import draw_attention_maps, read_image


@HOOKS.register_module()
class AttentionMapHook(Hook):
    """Draws attention maps of the first validation images through the Runner's visualizer.

    So they are in whatever the visualizer writes to: files, TensorBoard and so on, under ``attention_maps_<image>``.

    Args:
        points (sequence of tuple[float, float]): (x, y) of each query, from 0 to below 1, relative to the image.
            Defaults to the middle of the image.
        interval (int): draw in every ``interval``-th validation, the first included. Defaults to 1.
        num_images (int): how many images. Defaults to 1.
        layer (str, optional): name of the attention layer. Defaults to the last one. Of a recurrent layer, the last
            pass is drawn.
        threshold (float): weights under this share of a map's largest are hidden. Defaults to 0.02.

    Raises:
        ValueError: a point outside the image; when the run starts, a model without attention layer or without
            ``layer``.
    """

    def __init__(
        self,
        points: Sequence[tuple[float, float]] = ((0.5, 0.5),),
        interval: int = 1,
        num_images: int = 1,
        layer: str | None = None,
        threshold: float = 0.02,
    ) -> None:
        if not all(0 <= coordinate < 1 for point in points for coordinate in point):
            raise ValueError(f'points must be (x, y) from 0 to below 1, relative to the image; got {points}')
        self.points = points
        self.interval = interval
        self.num_images = num_images
        self.layer = layer
        self.threshold = threshold
        self.validations = 0

    def before_run(self, runner: Runner) -> None:
        """Check that the model has the layer, before a long training."""
        attention_layers(runner.model, self.layer)

    def after_val_iter(self, runner: Runner, batch_idx: int, data_batch: dict, outputs: Sequence) -> None:
        """Draw the batch's first image."""
        if self.validations % self.interval or batch_idx >= self.num_images:
            return
        maps = attention_maps(runner.model, data_batch, self.points, self.layer)[-1]  # each process: it may be sharded
        if is_main_process():
            path = outputs[0].img_path
            picture = draw_attention_maps(read_image(path), self.points, maps, self.threshold)
            runner.visualizer.add_image(f'attention_maps_{Path(path).stem}', picture, runner.iter)

    def after_val(self, runner: Runner) -> None:
        """Count validations."""
        self.validations += 1
