"""The entropy of attention maps in the log, for each glimpse."""

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.dist import all_reduce
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner

from mmattn.language.layers.bilinear_attention_network import attention_entropy
from mmattn.registry import HOOKS


@HOOKS.register_module()
class GlimpseEntropyHook(Hook):
    """Logs the mean entropy of the attention maps of each glimpse over the validation questions, after each validation.

    The entropy −Σ A ln A, in nats, is of all pairs of words and regions, or of all regions. The log has ``entropy/1``
    for the first glimpse, and so on. The maps are computed by a second pass of the model.

    Source: "Bilinear Attention Networks", 2018, Fig. 2d.

    Raises:
        ValueError: when the run starts, the model has no ``attention``; or, in the first validation, its head returns
            no weights.

    Example:
        >>> custom_hooks = [dict(type='mmattn.GlimpseEntropyHook')]  # in a config
    """

    def before_run(self, runner: Runner) -> None:
        """Check that the model has attention."""
        find_attention(runner.model)

    def before_val_epoch(self, runner: Runner) -> None:
        """Forget the last validation."""
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
        if not self.count:
            return
        totals = torch.cat([self.sums, self.sums.new_tensor([self.count])])
        all_reduce(totals)
        for glimpse, total in enumerate(totals[:-1], 1):
            runner.message_hub.update_scalar(f'val/entropy/{glimpse}', float(total / totals[-1]))


def find_attention(model: Any) -> Any:
    """Return a model without the wrapper of a distributed run, after a check that it has ``attention``.

    Raises:
        ValueError: it has none.
    """
    model = model.module if is_model_wrapper(model) else model
    if not hasattr(model, 'attention'):
        raise ValueError(f'the model must have attention maps, such as mmattn.VQAModel; got {type(model).__name__}')
    return model
