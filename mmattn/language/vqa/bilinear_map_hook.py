"""Pictures of attention maps during validation."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmattn.language.regions.pictures_by_id import picture_paths, read_picture
from mmattn.registry import HOOKS
from mmattn.utils.checks import check_count

from .glimpse_entropy_hook import find_attention
from .questions import QuestionTokenizer


@HOOKS.register_module()
class BilinearMapHook(Hook):
    """Draws the attention maps of the first validation questions through the Runner's visualizer.

    The visualizer writes them to its backends (files, TensorBoard, …) as ``attention_<question id>``. See
    :func:`mmattn.language.vqa.attention_pictures.draw_question_attention`.

    Args:
        num_questions (int): number of questions. Defaults to 4.
        interval (int): draw in every ``interval``-th validation, starting with the first. Defaults to 1.
        pictures (str or Path, optional): folder of the pictures, in which the boxes are drawn; the name of a file is
            the id of its image, or ends in it. Defaults to None: a white picture, if the model does not read pictures.
        top_k (int): number of answers in a picture. Defaults to 5.

    Raises:
        OSError: when the run starts, ``pictures`` is no folder.
        ValueError: a number is below 1; or, when the run starts, the model has no ``attention``.

    Example:
        >>> HOOKS.build(dict(type='BilinearMapHook', num_questions=8)).interval
        1
        >>> custom_hooks = [dict(type='mmattn.BilinearMapHook', num_questions=8)]  # in a config
    """

    def __init__(
        self, num_questions: int = 4, interval: int = 1, pictures: str | Path | None = None, top_k: int = 5
    ) -> None:
        for name, number in (('num_questions', num_questions), ('interval', interval), ('top_k', top_k)):
            check_count(name, number)
        self.num_questions, self.interval, self.pictures, self.top_k = num_questions, interval, pictures, top_k
        self.validations = 0

    def before_run(self, runner: Runner) -> None:
        """Check that the model has attention, and find the pictures."""
        find_attention(runner.model)
        self._paths = {} if self.pictures is None else picture_paths(self.pictures)

    def before_val_epoch(self, runner: Runner) -> None:
        """Start with the first question."""
        self._left = 0 if self.validations % self.interval else self.num_questions

    def after_val_iter(self, runner: Runner, batch_idx: int, data_batch: dict, outputs: Sequence | None = None) -> None:  # type: ignore[override]
        """Draw the questions of the first batches."""
        samples = data_batch['data_samples'][: self._left]
        self._left -= len(samples)
        if not samples or not is_main_process():
            return
        from .attention_pictures import picture_of_answer  # late: it imports matplotlib

        model, meta = find_attention(runner.model), runner.val_dataloader.dataset.metainfo
        tokenizer = QuestionTokenizer(meta['symbols'], meta['tokens'], meta['max_words'])
        for i, sample in enumerate(samples):
            inputs = {name: values[i] for name, values in data_batch['inputs'].items()}
            path = self._paths.get(sample.image_id)
            picture = None if path is None else np.asarray(read_picture(path))
            drawn = picture_of_answer(model, inputs, sample.question, tokenizer, meta['answers'], picture, self.top_k)
            runner.visualizer.add_image(f'attention_{sample.question_id}', drawn, runner.iter)

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        """Count validations."""
        self.validations += 1
