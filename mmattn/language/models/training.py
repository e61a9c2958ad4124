"""Training of models that write sentences: label-smoothed loss, normalisation by tokens, learning rate."""

from collections import OrderedDict

import torch
from mmengine.dist import all_reduce, get_world_size
from mmengine.model import BaseModel
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.optim.scheduler.lr_scheduler import LRSchedulerMixin
from mmengine.optim.scheduler.param_scheduler import _ParamScheduler
from torch import Tensor
from torch.nn import functional as F

from mmattn.engine import CPUAmpOptimWrapper
from mmattn.registry import OPTIM_WRAPPERS, PARAM_SCHEDULERS
from mmattn.utils.checks import check_count


def label_smoothed_loss(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> dict[str, Tensor]:
    """Compute the label-smoothed loss of N tokens.

    The loss of a token is (1 − ε) · (−log p of the target) + ε/V · Σ (−log p), with ε = ``label_smoothing``. Returns a
    dict with 'loss', the mean loss, 'nll', the mean without smoothing, and 'num_tokens', N.

    Args:
        logits (Tensor): float ``(N, V)``, without padding.
        targets (Tensor): int64 ``(N)``.
        label_smoothing (float): ε in [0, 1]. Defaults to 0.

    Example:
        >>> losses = label_smoothed_loss(torch.zeros(3, 10), torch.tensor([4, 5, 2]), 0.1)
        >>> torch.allclose(losses['loss'], torch.tensor(10.0).log())
        True
    """
    log_p = F.log_softmax(logits, 1)  # under autocast in float32
    nll = F.nll_loss(log_p, targets)
    loss = (1 - label_smoothing) * nll - label_smoothing * log_p.mean()
    return dict(loss=loss, nll=nll, num_tokens=torch.tensor(len(targets), device=logits.device))


class SequenceModel(BaseModel):
    """A model whose loss is a mean over tokens. The loss carries the number of tokens to :class:`TokenOptimWrapper`.

    ``forward(mode='loss')`` of a subclass returns what :func:`label_smoothed_loss` returns. An ordinary optimizer
    wrapper averages the means of processes and accumulated iterations. ``mmattn.TokenOptimWrapper`` weights each mean
    by its number of tokens.
    """

    def parse_losses(self, losses: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Separate the loss, with the attribute ``num_tokens``, from the values for the log."""
        loss = losses['loss']
        loss.num_tokens = losses['num_tokens']  # type: ignore[attr-defined]
        return loss, OrderedDict((name, x.detach()) for name, x in losses.items() if name != 'num_tokens')


class _WeightedByTokens:
    accumulative_counts: int

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._tokens: list[Tensor] = []  # of the iterations of this update, all processes together

    def scale_loss(self, loss: Tensor) -> Tensor:
        count = getattr(loss, 'num_tokens', None)
        if count is None:
            raise TypeError(f'{type(self).__name__} requires a SequenceModel; the loss of this model has no num_tokens')
        total = count.to(torch.float64, copy=True)
        all_reduce(total)
        self._tokens.append(total)
        # DDP averages over processes. `step` corrects for later iterations of the update.
        return loss * (count * get_world_size() / self._tokens[0]).to(loss.dtype)

    def step(self, **kwargs) -> None:
        if len(self._tokens) > 1:
            factor = (self._tokens[0] / sum(self._tokens)).item()  # for the tokens of the whole update
            groups = self.optimizer.param_groups  # type: ignore[attr-defined]
            torch._foreach_mul_([p.grad for group in groups for p in group['params'] if p.grad is not None], factor)
        self._tokens.clear()
        super().step(**kwargs)  # type: ignore[misc]


@OPTIM_WRAPPERS.register_module()
class TokenOptimWrapper(_WeightedByTokens, OptimWrapper):
    """mmengine's ``OptimWrapper`` for sentences of different lengths, with the same arguments.

    An update follows the gradient of the mean loss over all tokens of all processes and accumulated iterations. The
    model must be a :class:`SequenceModel`. For mixed precision, ``tools/train.py --amp`` selects
    ``mmattn.AmpTokenOptimWrapper``.

    Example:
        >>> class Model(SequenceModel):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = torch.nn.Linear(4, 10)
        ...     def forward(self, inputs, mode):
        ...         return label_smoothed_loss(self.layer(inputs), torch.zeros(len(inputs), dtype=torch.long))
        >>> model = Model()
        >>> wrapper = TokenOptimWrapper(optimizer=torch.optim.SGD(model.parameters(), lr=0.1), accumulative_counts=2)
        >>> for tokens in (7, 3):
        ...     losses = model.train_step(dict(inputs=torch.ones(tokens, 4)), wrapper)
    """


@OPTIM_WRAPPERS.register_module()
class AmpTokenOptimWrapper(_WeightedByTokens, AmpOptimWrapper):
    """mmengine's ``AmpOptimWrapper``, normalised as :class:`TokenOptimWrapper`. It requires a GPU.

    Example:
        >>> model = torch.nn.Linear(4, 10)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> wrapper = AmpTokenOptimWrapper(loss_scale='dynamic', optimizer=optimizer)  # doctest: +SKIP
    """


@OPTIM_WRAPPERS.register_module()
class CPUAmpTokenOptimWrapper(_WeightedByTokens, CPUAmpOptimWrapper):
    """``mmattn.CPUAmpOptimWrapper``, normalised as :class:`TokenOptimWrapper`.

    Example:
        >>> model = torch.nn.Linear(4, 10)
        >>> wrapper = CPUAmpTokenOptimWrapper(optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        >>> with wrapper.optim_context(model):
        ...     print(model(torch.ones(1, 4)).dtype)
        torch.bfloat16
    """


@PARAM_SCHEDULERS.register_module()
class InverseRootLR(LRSchedulerMixin, _ParamScheduler):
    """Linear warm-up of the learning rate, then decay with the inverse square root of the iteration.

    Iteration n = 1, 2, … has the rate ``warmup_start`` + (lr − ``warmup_start``) · n/W while n ≤ W = ``warmup``, then
    lr · √(W/n), where lr is the rate of the optimizer. With accumulated gradients, W counts iterations, not updates.

    Args:
        warmup (int): W. Defaults to 4000.
        warmup_start (float): rate from which the warm-up starts. Defaults to 1e-7.
        by_epoch (bool): must be False. Set it in the config, because mmengine's Runner would otherwise end the schedule
            at the number of epochs. Defaults to True, as in mmengine.
        **kwargs: ``begin``, ``end``, ``last_step`` and ``verbose``, as in the schedulers of mmengine.

    Example:
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        >>> schedule = InverseRootLR(optimizer, warmup=4, warmup_start=0, by_epoch=False)
        >>> optimizer.param_groups[0]['lr']
        0.25
    """

    def __init__(
        self, optimizer, warmup: int = 4000, warmup_start: float = 1e-7, by_epoch: bool = True, **kwargs
    ) -> None:
        check_count('warmup', warmup)
        if by_epoch:
            raise ValueError('by_epoch must be False: the schedule is defined by iterations; set by_epoch=False')
        self.warmup = warmup
        self.warmup_start = warmup_start
        super().__init__(optimizer, by_epoch=False, **kwargs)

    def load_state_dict(self, state_dict: dict) -> None:
        """Load the state of a run except its ``end``, so that a longer run can resume it."""
        super().load_state_dict({**state_dict, 'end': self.end})
        if self.begin <= self._global_step < self.end:
            self.last_step = self._global_step - self.begin  # one more than in the state of a run that has ended
            self._last_value = self._get_value()
            for group, rate in zip(self.optimizer.param_groups, self._last_value):
                group[self.param_name] = rate

    def _get_value(self) -> list[float]:
        n = self.last_step + 1
        if n <= self.warmup:
            return [self.warmup_start + (lr - self.warmup_start) * n / self.warmup for lr in self.base_values]
        return [lr * (self.warmup / n) ** 0.5 for lr in self.base_values]
