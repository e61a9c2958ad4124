"""Hooks for attention maps during validation: pictures, and the entropy of each glimpse."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.dist import all_gather_object, is_main_process
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner

from mmattn.language.layers.bilinear_attention_network import attention_entropy
from mmattn.language.regions.image_inputs import picture_paths, read_picture
from mmattn.registry import HOOKS
from mmattn.utils.checks import check_counts
from mmattn.utils.model_wrappers import unwrapped

from .questions import QuestionTokenizer


@HOOKS.register_module()
class GlimpseEntropyHook(Hook):
    """Log the mean entropy of each glimpse's attention maps over the validation questions, after each validation.

    The entropy −Σ A ln A, in nats, runs over all pairs of words and regions, or over all regions. The log has
    ``entropy/1`` for the first glimpse, and so on. A second pass of the model computes the maps. The model must have
    ``attention``, and its head must return weights.

    Source: "Bilinear Attention Networks", 2018, Fig. 2d.

    Example:
        >>> custom_hooks = [dict(type='mmattn.GlimpseEntropyHook')]  # in a config
    """

    def before_run(self, runner: Runner) -> None:
        """Check that the model has attention."""
        find_attention(runner.model)

    def before_val_epoch(self, runner: Runner) -> None:
        """Reset the sums."""
        self.sums: Any = 0.0
        self.count = 0

    @torch.no_grad()
    def after_val_iter(self, runner: Runner, batch_idx: int, data_batch: dict, outputs: Sequence | None = None) -> None:  # type: ignore[override]
        """Add the entropies of the maps of a batch."""
        model = find_attention(runner.model)
        _, weights = model.attention(model.data_preprocessor(data_batch, False)['inputs'])
        if weights is None:
            raise ValueError(f'model.head must return attention weights; {type(model.head).__name__} returns none')
        weights = weights.double() if weights.dim() == 4 else weights.double().unsqueeze(2)
        self.sums = self.sums + attention_entropy(weights).sum(0)
        self.count += len(weights)

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        """Log the means over the questions of all processes."""
        parts = all_gather_object((self.sums.tolist() if self.count else [], self.count))  # one may have no question
        parts = [(sums, count) for sums, count in parts if count]
        for glimpse, sums in enumerate(zip(*(sums for sums, _ in parts)), 1):
            mean = sum(sums) / sum(count for _, count in parts)
            runner.message_hub.update_scalar(f'val/entropy/{glimpse}', mean)


def find_attention(model: Any) -> Any:
    """Unwrap the model of a distributed run, and check that it has ``attention``, and a head with weights."""
    model = unwrapped(model)
    if not hasattr(model, 'attention'):
        raise ValueError(f'the model must have attention maps, such as mmattn.VQAModel; got {type(model).__name__}')
    head = getattr(model, 'head', None)
    if not getattr(head, 'has_weights', True):
        raise ValueError(f'model.head must return attention weights; {type(head).__name__} has none')
    return model


@HOOKS.register_module()
class BilinearMapHook(Hook):
    """Draw the attention maps of the first validation questions through the Runner's visualizer.

    The visualizer writes them to its backends (files, TensorBoard, …) as ``attention_<question id>``. A question about
    an image without regions has no map. See :func:`mmattn.language.vqa.attention_pictures.draw_question_attention`.

    Args:
        num_questions (int): number of questions, at least 1. Defaults to 4.
        interval (int): draw in every ``interval``-th validation, from the first. Defaults to 1.
        pictures (str or Path, optional): folder of the pictures in which the boxes are drawn. The name of a file is,
            or ends in, the id of its image. Defaults to None: a white picture, if the model does not read pictures.
        top_k (int): number of answers in a picture. Defaults to 5.

    Example:
        >>> HOOKS.build(dict(type='BilinearMapHook', num_questions=8)).interval
        1
        >>> custom_hooks = [dict(type='mmattn.BilinearMapHook', num_questions=8)]  # in a config
    """

    def __init__(
        self, num_questions: int = 4, interval: int = 1, pictures: str | Path | None = None, top_k: int = 5
    ) -> None:
        check_counts(num_questions=num_questions, interval=interval, top_k=top_k)
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
        from .attention_pictures import draw_answer_attention  # late: it imports matplotlib

        model, meta = find_attention(runner.model), runner.val_dataloader.dataset.metainfo
        tokenizer = QuestionTokenizer(meta['symbols'], meta['tokens'], meta['max_words'])
        for i, sample in enumerate(samples):
            inputs = {name: values[i] for name, values in data_batch['inputs'].items()}
            padding = inputs.pop('region_mask', None)  # of the batch
            if padding is not None:
                regions = {name: inputs[name][~padding] for name in ('features', 'boxes') if name in inputs}
                inputs.update(regions)
            if 'features' in inputs and not len(inputs['features']):
                print_log(f'question {sample.question_id}: its image has no region, so no map is drawn', 'current')
                continue
            path = self._paths.get(sample.image_id)
            picture = None if path is None else np.asarray(read_picture(path))
            drawn = draw_answer_attention(
                model, inputs, sample.question, tokenizer, meta['answers'], picture, self.top_k
            )
            runner.visualizer.add_image(f'attention_{sample.question_id}', drawn, runner.iter)

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        """Count the validations."""
        self.validations += 1
