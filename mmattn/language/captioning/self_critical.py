"""Self-critical sequence training: the reward of sampled captions, the loss of the policy gradient, and the hook."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor

from mmattn._compat import has_loaded
from mmattn.language.text.vocabulary import EOS
from mmattn.registry import HOOKS
from mmattn.utils.checks import check_count
from mmattn.utils.model_wrappers import unwrapped

from .cider import CiderD


class CiderReward:
    """CIDEr-D of sampled captions of training images. The end token counts as a word.

    Args:
        references (sequence of sequence of sequence of int): references of each training image, as numbers of the
            vocabulary that end in ``</s>``. ``COCOCaptionDataset.references()`` has this form.

    Example:
        >>> reward = CiderReward([[[4, 5, 2], [4, 6, 2]], [[7, 8, 9, 2]]])
        >>> reward(torch.tensor([[4, 5, 2, 1], [7, 8, 9, 5]]), torch.tensor([0, 1])).round(decimals=3)
        tensor([4.3750, 5.0820], dtype=torch.float64)
    """

    def __init__(self, references: Sequence[Sequence[Sequence[int]]]) -> None:
        for index, captions in enumerate(references):
            for caption in captions:
                if list(caption).count(EOS) != 1 or caption[-1] != EOS:
                    raise ValueError(f'references must end in their only {EOS} (</s>); image {index} has {caption}')
        self.cider = CiderD(references)

    def __call__(self, tokens: Tensor, index: Tensor) -> Tensor:
        """Score n captions: float64 ``(n)``, from 0 to 10, on the device of ``tokens``.

        Args:
            tokens (Tensor): int64 ``(n, T)``. Tokens after the first ``</s>`` have no effect. ``</s>`` may be absent.
            index (Tensor): int64 ``(n)``, image of each caption, as an index of ``references``.
        """
        lengths = end_mask(tokens).sum(1).tolist()
        captions = [caption[:length] for caption, length in zip(tokens.tolist(), lengths)]
        return torch.from_numpy(self.cider.score(captions, index.tolist())).to(tokens.device)


def end_mask(tokens: Tensor) -> Tensor:
    """Mark the tokens up to and including the first ``</s>`` of each caption: bool ``(n, T)``.

    Example:
        >>> end_mask(torch.tensor([[4, 2, 2], [4, 5, 6]])).int()
        tensor([[1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
    """
    ends = tokens == EOS
    return ends.cumsum(1) - ends.long() == 0


def mean_baseline(reward: Tensor, num_samples: int) -> Tensor:
    """Compute the baseline of each caption, ``(n)``: the mean reward of the other captions of the image.

    ``reward`` is float ``(n)``. The ``num_samples`` captions of an image, at least 2, are adjacent. Their advantages
    then sum to 0.
    """
    check_count('num_samples', num_samples, 2)
    if reward.dim() != 1 or len(reward) % num_samples:
        raise ValueError(f'reward must be (n), n a multiple of num_samples={num_samples}; got {tuple(reward.shape)}')
    by_image = reward.unflatten(0, (-1, num_samples))
    return ((by_image.sum(1, keepdim=True) - by_image) / (num_samples - 1)).flatten()


def self_critical_loss(log_p: Tensor, tokens: Tensor, reward: Tensor, baseline: Tensor) -> dict[str, Tensor]:
    """Compute the loss whose gradient is the policy gradient of the expected reward, and figures for the log.

    The loss is -Σ (r - b) log p(w) / number of tokens, over all captions and their tokens w up to and including the
    first ``</s>``. Rewards and baselines receive no gradient.

    Source: S. J. Rennie et al.: "Self-critical Sequence Training for Image Captioning", CVPR 2017.

    Args:
        log_p (Tensor): float ``(n, T)``, log probability of each sampled token.
        tokens (Tensor): int64 ``(n, T)``, sampled captions. Tokens after ``</s>`` have no effect.
        reward (Tensor): float ``(n)``, reward r of each caption.
        baseline (Tensor): float ``(n)``, baseline b: reward of the image's greedy caption, or :func:`mean_baseline`.

    Returns:
        dict[str, Tensor]: 'loss', the mean 'reward' and 'baseline', and 'num_tokens', for
        :meth:`mmattn.language.SequenceModel.parse_losses`.
    """
    n = len(tokens)
    if log_p.shape != tokens.shape or tokens.dim() != 2 or not tokens.numel():
        raise ValueError(f'log_p and tokens must be (n, T), not empty; got {(*log_p.shape,)} and {(*tokens.shape,)}')
    for name, x in (('reward', reward), ('baseline', baseline)):
        if x.shape != (n,):
            raise ValueError(f'{name} must be ({n},), one per caption; got {tuple(x.shape)}')
    mask = end_mask(tokens)
    advantage = (reward - baseline).detach().to(log_p.dtype)
    count = mask.sum()
    # The log probability of a token after the end may be -inf, and 0 · -inf is NaN.
    loss = -(advantage[:, None] * log_p).masked_fill(~mask, 0).sum() / count
    return dict(loss=loss, reward=reward.detach().mean(), baseline=baseline.detach().mean(), num_tokens=count)


@HOOKS.register_module()
class SelfCriticalHook(Hook):
    """Set the reward of a captioner before training: CIDEr-D with the references of the training images.

    Training must start from a checkpoint that was trained by cross-entropy. Other models draw captions whose reward is
    0. The model needs ``self_critical``. The training data need ``references``, as :class:`COCOCaptionDataset` has.

    Example:
        >>> custom_hooks = [dict(type='mmattn.SelfCriticalHook')]  # in a config
    """

    def before_train(self, runner: Runner) -> None:
        """Build the reward."""
        model = unwrapped(runner.model)
        if getattr(model, 'self_critical', None) is None:
            raise ValueError(f'SelfCriticalHook requires a captioner with self_critical; got {type(model).__name__}')
        if not has_loaded(runner):  # also where `resume` has found no checkpoint
            raise ValueError(
                'self-critical training requires load_from, a checkpoint that was trained by cross-entropy: '
                '--cfg-options load_from=CHECKPOINT'
            )
        dataset = runner.train_dataloader.dataset
        if not hasattr(dataset, 'references'):
            raise ValueError(f'the training data must have references; got {type(dataset).__name__}')
        model.reward = CiderReward(dataset.references())
