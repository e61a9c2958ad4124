"""Hook that draws attention maps during validation."""

from collections.abc import Sequence
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmattn.registry import HOOKS

from .attention_maps import attention_layers, attention_maps
from .figure import draw_attention_maps, image_loader, read_image


@HOOKS.register_module()
class AttentionMapHook(Hook):
    """Draw attention maps of the first validation images through the Runner's visualizer.

    The visualizer writes them to its backends (files, TensorBoard, …) as ``attention_maps_<image>``.

    Args:
        points (sequence of tuple[float, float]): (x, y) of each query, in [0, 1), relative to the image's width and
            height. Defaults to the centre of the image.
        interval (int): draw in every ``interval``-th validation, starting with the first. Defaults to 1.
        num_images (int): number of images: the first of each of the first ``num_images`` batches. Defaults to 1.
        layer (str, optional): name of the attention layer in the model. Defaults to the last one. For a recurrent
            layer, the last pass is drawn.
        threshold (float): hide weights below this share of the map's largest, 0 to 1. Defaults to 0.02.

    Example:
        >>> hook = HOOKS.build(dict(type='AttentionMapHook', points=[(0.25, 0.5)], interval=5))
        >>> custom_hooks = [dict(type='mmattn.AttentionMapHook', points=[(0.25, 0.5)])]  # in a config
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
            raise ValueError(f'points must be (x, y) in [0, 1), relative to the image; got {points}')
        self.points = points
        self.interval = interval
        self.num_images = num_images
        self.layer = layer
        self.threshold = threshold
        self.validations = 0

    def before_run(self, runner: Runner) -> None:
        """Check that the model has the layer, before training starts."""
        attention_layers(runner.model, self.layer)

    def after_val_iter(self, runner: Runner, batch_idx: int, data_batch: dict, outputs: Sequence) -> None:
        """Draw the batch's first image."""
        if self.validations % self.interval or batch_idx >= self.num_images:
            return
        maps = attention_maps(runner.model, data_batch, self.points, self.layer)[-1]  # all processes: it may be sharded
        if is_main_process():
            path = outputs[0].img_path
            image = read_image(path, loader=image_loader(runner.val_dataloader.dataset))
            picture = draw_attention_maps(image, self.points, maps, self.threshold)
            runner.visualizer.add_image(f'attention_maps_{Path(path).stem}', picture, runner.iter)

    def after_val(self, runner: Runner) -> None:
        """Count validations."""
        self.validations += 1
