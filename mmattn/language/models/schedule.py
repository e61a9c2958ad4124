"""The inverse-root schedule of the learning rate of a Transformer."""

from mmengine.optim.scheduler.lr_scheduler import LRSchedulerMixin
from mmengine.optim.scheduler.param_scheduler import _ParamScheduler

from mmattn.registry import PARAM_SCHEDULERS
from mmattn.utils.checks import check_count


@PARAM_SCHEDULERS.register_module()
class InverseRootLR(LRSchedulerMixin, _ParamScheduler):
    """Linear warm-up of the learning rate, then decay with the inverse square root of the iteration.

    Iteration n = 1, 2, … has the rate ``warmup_start`` + (lr − ``warmup_start``) · n/W while n ≤ W = ``warmup``, then
    lr · √(W/n), where lr is the rate of the optimizer. If gradients are accumulated, W counts the iterations, not the
    updates.

    Args:
        optimizer (Optimizer or OptimWrapper): the optimizer.
        warmup (int): W. Defaults to 4000.
        warmup_start (float): rate from which the warm-up starts. Defaults to 1e-7.
        by_epoch (bool): must be False. Defaults to True, as in mmengine, whose Runner relies on it: without
            ``by_epoch=False`` in the config it would end the schedule at the number of epochs.
        **kwargs: ``begin``, ``end``, ``last_step`` and ``verbose``, as in the schedulers of mmengine.

    Raises:
        TypeError: ``warmup`` is not an integer.
        ValueError: ``warmup`` is below 1, or ``by_epoch`` is True.

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
        """Load the state of a run, but not its ``end``: a longer run may resume it."""
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
