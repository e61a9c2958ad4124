"""Self-critical training: the reward, and the loss against the policy gradient, token by token."""

from types import SimpleNamespace

import pytest
import torch

from mmattn.language.captioning import (
    CiderD,
    CiderReward,
    SelfCriticalHook,
    end_mask,
    mean_baseline,
    self_critical_loss,
)
from mmattn.language.text.vocabulary import EOS, PAD

from ..failing import failing

TOKENS = torch.tensor([[4, 5, EOS, PAD], [6, EOS, 7, EOS], [4, 5, 6, 7], [EOS, PAD, PAD, PAD]])
LENGTHS = [3, 2, 4, 1]


@pytest.fixture
def logits():
    return torch.randn(4, 4, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()


def log_p_of(logits):
    return logits.log_softmax(-1).gather(-1, TOKENS[..., None])[..., 0]


def test_loss_and_gradient_are_their_definition(logits):
    """Minus advantage · ∇ log p of each caption, token by token, over the number of tokens."""
    reward, baseline = (torch.rand(4, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in (1, 2))
    found = self_critical_loss(log_p_of(logits), TOKENS, reward, baseline)
    found['loss'].backward()
    expected, value = torch.zeros_like(logits), 0.0
    p = logits.detach().softmax(-1)
    for i, length in enumerate(LENGTHS):
        for t in range(length):
            one_hot = torch.zeros(9, dtype=torch.float64)
            one_hot[TOKENS[i, t]] = 1
            expected[i, t] = -(reward[i] - baseline[i]) * (one_hot - p[i, t]) / sum(LENGTHS)
            value -= (reward[i] - baseline[i]) * p[i, t, TOKENS[i, t]].log() / sum(LENGTHS)
    torch.testing.assert_close(logits.grad, expected, rtol=0, atol=1e-14)
    assert found['loss'].item() == pytest.approx(value.item(), abs=1e-14)
    assert found['num_tokens'] == sum(LENGTHS)
    assert found['reward'].item() == pytest.approx(reward.mean().item())
    assert found['baseline'].item() == pytest.approx(baseline.mean().item())


def test_tokens_after_the_end_have_no_effect(logits):
    """Neither their probabilities, -∞ included, nor what they are; rewards have no gradient."""
    reward, baseline = torch.rand(2, 4, dtype=torch.float64).requires_grad_().unbind()
    log_p = log_p_of(logits)
    loss = self_critical_loss(log_p, TOKENS, reward, baseline)['loss']
    (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
    masked = log_p.masked_fill(~end_mask(TOKENS), -torch.inf)
    again = self_critical_loss(masked, TOKENS, reward, baseline)
    assert again['loss'] == loss
    assert not again['reward'].requires_grad
    assert torch.equal(torch.autograd.grad(again['loss'], logits)[0], gradient)
    assert (gradient[~end_mask(TOKENS)] == 0).all()


def test_reward_counts_the_end_token_as_a_word():
    """In hypothesis, references and frequencies; a caption that is complete but for its end has less."""
    references = [[[4, 5, 6, EOS], [4, 5, EOS]], [[7, 8, EOS]], [[4, 9, 10, 11, EOS]]]
    reward = CiderReward(references)
    tokens = torch.tensor([[4, 5, 6, EOS, 9], [4, 5, 6, 7, 8], [7, 8, EOS, PAD, PAD]])
    index = torch.tensor([0, 0, 1])
    expected = CiderD(references).score([[4, 5, 6, EOS], [4, 5, 6, 7, 8], [7, 8, EOS]], [0, 0, 1])
    found = reward(tokens, index)
    assert found.dtype == torch.float64
    assert found.tolist() == expected.tolist()
    assert reward(tokens[:1, :3], index[:1]) < found[0]


def test_the_hook_sets_the_reward_of_the_training_images():
    references = [[[4, 5, 6, EOS]], [[7, 8, 9, EOS], [7, EOS]]]
    model = SimpleNamespace(self_critical={})
    data = SimpleNamespace(dataset=SimpleNamespace(references=lambda: references))
    SelfCriticalHook().before_train(SimpleNamespace(model=model, _has_loaded=True, train_dataloader=data))
    tokens, index = torch.tensor([[4, 5, 6, EOS], [7, 8, 6, EOS]]), torch.tensor([0, 1])
    assert model.reward(tokens, index).tolist() == CiderReward(references)(tokens, index).tolist()


LOG_P, REWARD = torch.zeros(2, 3), torch.zeros(2)
WITHOUT = SimpleNamespace(
    model=SimpleNamespace(self_critical={}), _has_loaded=True, train_dataloader=SimpleNamespace(dataset=[])
)
RESUMED = SimpleNamespace(model=SimpleNamespace(self_critical={}), _resume=True, _load_from=None, _has_loaded=False)


test_failures = failing(
    (lambda: self_critical_loss(LOG_P[:, :2], TOKENS[:2, :3], REWARD, REWARD), 'log_p and tokens'),
    (lambda: self_critical_loss(LOG_P, TOKENS[:2, :3], REWARD[:1], REWARD), 'reward'),
    (lambda: self_critical_loss(LOG_P, TOKENS[:2, :3], REWARD, REWARD[:, None]), 'baseline'),
    (lambda: mean_baseline(REWARD, 1), 'num_samples'),
    (lambda: mean_baseline(REWARD, 3), 'num_samples'),
    *(
        (lambda caption=caption: CiderReward([[[4, EOS]], [[5, EOS], caption]]), 'references .*image 1')
        for caption in ([4, 5], [4, EOS, 5, EOS], [])
    ),
    (lambda: SelfCriticalHook().before_train(SimpleNamespace(model=SimpleNamespace())), 'self_critical'),
    (lambda: SelfCriticalHook().before_train(WITHOUT), 'references'),
    # resume=True in an empty work dir would start with random weights
    (lambda: SelfCriticalHook().before_train(RESUMED), 'load_from'),
)
