"""Training and decoding speed and memory of captioners, compared with ``nn.Transformer`` of the same size.

    python tools/benchmarks/captioning.py [--size small] [--repeats 5]

Random images, each with regions, attributes and captions; the models have the size of the papers, or that of the
configs ``*_small_*``. A training iteration is forward pass, backward pass and optimizer step, by cross-entropy or
self-critical; the latter also reports the share of the reward. Memory is that of the tensors beyond weights and
optimizer states. Decoding uses a beam of 3, and always writes 20 words. Models take turns, so that other load affects
all of them equally; medians are compared. Before the measurement, SAN must agree with ``nn.Transformer`` with the same
weights.
"""

import argparse
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from mmengine.config import Config
from mmengine.structures import BaseDataElement
from torch import Tensor
from translation import copy_stacks

import mmattn.utils.command
from mmattn.language.captioning import Captioner, CiderReward
from mmattn.registry import MODELS
from mmattn.utils import config_path
from mmattn.utils.profiling import extra_memory, seconds

ATTENTION = {
    'SAN': {},
    'N-SAN': dict(query_norm='instance'),
    'G-SAN': dict(geometry='query_dependent'),
    'NG-SAN': dict(query_norm='instance', geometry='query_dependent'),
}
SIZES = dict(base='', small='_small')
WORDS = 20  # of a decoded caption
IMAGES = 1000  # of which the reward knows references


def models(size: str) -> dict[str, Captioner]:
    """Return the models, that of nn.Transformer first."""
    torch.manual_seed(0)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    san, eta = (Config.fromfile(config_path(f'_base_/models/{name}{SIZES[size]}.py')).model for name in ('san', 'eta'))
    configs = {'nn.Transformer': dict(san, stack='Torch')}
    for name, attention in ATTENTION.items():
        configs[name] = dict(san, encoder_attention=dict(san.encoder_attention, **attention))
    configs['ETA'] = eta
    return {name: MODELS.build(cfg).to(device) for name, cfg in configs.items()}


def batch(model: Captioner, images: int, regions: int, captions: int, words: int) -> dict[str, Tensor]:
    """Return random inputs of images; all have the same numbers of regions, and of words."""
    corner, sides = 400 * torch.rand(images, regions, 2), 10 + 200 * torch.rand(images, regions, 2)
    symbols = len(model.embedding.weight)
    ends = torch.full((images, captions, 1), 2)
    inputs = dict(
        features=torch.rand(images, regions, model.num_features or 1),
        boxes=torch.cat([corner, corner + sides], -1),
        attributes=torch.randint(4, symbols, (images, 20)),
        captions=torch.cat([torch.randint(4, symbols, (images, captions, words)), ends], -1),
    )
    return {name: x.to(model.embedding.weight.device) for name, x in inputs.items()}


def check(theirs: Captioner, ours: Captioner, inputs: dict[str, Tensor]) -> None:
    """Give SAN the weights of the model of nn.Transformer, and compare logits and captions."""
    for name in ('embedding', 'output', 'region_embedding'):
        getattr(ours, name).load_state_dict(getattr(theirs, name).state_dict())
    copy_stacks(theirs, ours)
    with torch.no_grad():
        logits, expected = (model.eval()(inputs) for model in (ours, theirs))
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)


def training_step(model: Captioner, inputs: dict[str, Tensor], **options: Any) -> Callable[[], Tensor]:
    """Return a function that makes a training iteration and returns the loss; it leaves no gradients."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-7)

    def step() -> Tensor:
        model.train()
        loss = model(inputs, mode='loss', **options)['loss']
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


class TimedReward:
    """A reward that sums up the seconds of its calls."""

    def __init__(self, reward: CiderReward) -> None:
        self.reward, self.seconds = reward, 0.0

    def __call__(self, tokens: Tensor, index: Tensor) -> Tensor:
        """Return the reward of each caption."""
        start = time.perf_counter()
        rewards = self.reward(tokens, index)
        self.seconds += time.perf_counter() - start
        return rewards


def share_of_reward(step: Callable[[], object], reward: TimedReward, repeats: int) -> float:
    """Return the share of the reward in the time of some self-critical iterations."""
    reward.seconds, start = 0.0, time.perf_counter()
    for _ in range(repeats):
        step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return reward.seconds / (time.perf_counter() - start)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--size', choices=SIZES, default='base')
    parser.add_argument('--images', type=int, default=10, help='images of a batch')
    parser.add_argument('--regions', type=int, default=36)
    parser.add_argument('--captions', type=int, default=5, help='captions per image, also sampled ones')
    parser.add_argument('--words', type=int, default=10, help='words of a reference')
    parser.add_argument('--repeats', type=int, default=5)
    args = parser.parse_args()
    pair = models(args.size)
    inputs = batch(pair['SAN'], args.images, args.regions, args.captions, args.words)
    check(pair['nn.Transformer'], pair['SAN'], inputs)
    train = {name: training_step(model, inputs) for name, model in pair.items()}
    times = seconds(train, args.repeats)
    memory = {name: extra_memory(step)[1] for name, step in train.items()}
    symbols = len(pair['SAN'].embedding.weight)
    draw = random.Random(0)
    references = [
        [[draw.randrange(4, symbols) for _ in range(args.words)] + [2] for _ in range(args.captions)]
        for _ in range(max(IMAGES, args.images))
    ]
    samples = [BaseDataElement(metainfo=dict(index=index)) for index in range(args.images)]
    decode, critical, rewards = {}, {}, {}
    for name, model in pair.items():
        with torch.no_grad():
            model.output.bias[2] = -100  # no end token: every model writes as many words
        model.eval()
        decode[name] = torch.no_grad()(partial(model.describe, inputs, beam=3, max_length=WORDS))
        rewards[name] = model.reward = TimedReward(CiderReward(references))
        model.self_critical = dict(samples=args.captions, baseline='greedy')
        critical[name] = training_step(model, inputs, data_samples=samples)
    decoding = seconds(decode, max(1, args.repeats // 2))
    self_critical = seconds(critical, max(1, args.repeats // 2))
    shares = {name: share_of_reward(step, rewards[name], max(1, args.repeats // 2)) for name, step in critical.items()}
    head = ['M parameters', 's per iteration', 'MiB', 'captions/s, beam 3', 's self-critical', 'of it reward']
    print(f'| {args.size}, {args.images} × {args.regions} regions × {args.captions} | {" | ".join(head)} |')
    print(f'|---{"|---" * len(head)}|')
    for name, model in pair.items():
        base = times['nn.Transformer']
        cells = [
            f'{sum(p.numel() for p in model.parameters()) / 1e6:.1f}',
            f'{times[name]:.3f} (× {times[name] / base:.2f})',
            f'{memory[name]:,.0f}',
            f'{args.images / decoding[name]:.1f}',
            f'{self_critical[name]:.3f}',
            f'{shares[name]:.1%}',
        ]
        print(f'| {name} | {" | ".join(cells)} |')


if __name__ == '__main__':
    mmattn.utils.command.run(main)
