"""Training and decoding speed of translation Transformers, compared with ``nn.Transformer`` of the same size.

    python tools/benchmarks/translation.py [--size tiny] [--tokens 15 50 200] [--repeats 5]

Random sentences of one length, about 4,096 tokens per training batch. A training step is forward pass, backward pass
and optimizer step. Decoding uses a beam of 5, and writes as many tokens as the source has: incrementally for our
stacks; with the layers of ``nn.Transformer``, which have no decoding state, by computing the prefix again. Models take
turns, so that other load affects all of them equally; medians are compared. Before the measurement, attention without
positions must agree with ``nn.Transformer`` with the same weights.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import mmattn.utils.command
from mmattn.language.translation import TranslationTransformer
from mmattn.language.translation.transformer import SIZES
from mmattn.utils.profiling import seconds

BILATERAL = 'mmattn.BilateralMultiheadAttention'
ATTENTION = {
    'sa': dict(type=BILATERAL, position='none'),
    'sa-rpe': dict(type=BILATERAL, position='relative', max_offset=16),
    'bi-sa': dict(type=BILATERAL, window_size=21),
}


def models(size: str, vocabulary: int) -> dict[str, TranslationTransformer]:
    """Return the models, that of nn.Transformer first."""
    torch.manual_seed(0)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    networks = {'nn.Transformer': TranslationTransformer(vocabulary, size, stack='Torch')}
    for name, attention in ATTENTION.items():
        layers = dict(encoder_attention=attention, decoder_attention=attention)
        networks[name] = TranslationTransformer(vocabulary, size, **layers)
    return {name: model.to(device) for name, model in networks.items()}


def copy_stacks(theirs: Any, ours: Any) -> None:
    """Give the encoder and the decoder of ``ours`` the weights of ``theirs``, which has those of nn.Transformer."""
    for stack in ('encoder', 'decoder'):
        for mine, other in zip(getattr(ours, stack).layers, getattr(theirs, stack).stack.layers):
            norms = [mine.attention_norm, mine.feedforward_norm]
            mine.self_attention[0].load_state_dict(other.self_attn.state_dict())
            if stack == 'decoder':
                mine.cross_attention.load_state_dict(other.multihead_attn.state_dict())
                norms.insert(1, mine.cross_attention_norm)
            mine.feedforward[0].load_state_dict(other.linear1.state_dict())
            mine.feedforward[3].load_state_dict(other.linear2.state_dict())
            for number, norm in enumerate(norms, 1):
                norm.load_state_dict(getattr(other, f'norm{number}').state_dict())


def check(theirs: TranslationTransformer, ours: TranslationTransformer, source: Tensor, target: Tensor) -> None:
    """Give ``ours``, without positions in attention, the weights of ``theirs``, and compare the logits."""
    ours.embedding.load_state_dict(theirs.embedding.state_dict())
    copy_stacks(theirs, ours)
    with torch.no_grad():
        losses, expected = (model.eval()(dict(source=source, target=target)) for model in (ours, theirs))
    torch.testing.assert_close(losses, expected, rtol=1e-3, atol=1e-3)


def training_step(model: TranslationTransformer, source: Tensor, target: Tensor) -> Callable[[], None]:
    """Return a function that makes a training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        model.train()
        optimizer.zero_grad()
        model.loss(source, target)['loss'].backward()
        optimizer.step()

    return step


def never_ends(model: TranslationTransformer) -> None:
    """Make the end token improbable, so that every model writes as many tokens."""

    def logits(x: Tensor) -> Tensor:
        logits = F.linear(x, model.embedding.weight)
        logits[..., 2] -= 100
        return logits

    model.embedding.logits = logits  # type: ignore[method-assign]


def main() -> None:
    """Measure and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--size', choices=SIZES, default='tiny')
    parser.add_argument('--tokens', type=int, nargs='+', default=[15, 50, 200], help='lengths of the sentences')
    parser.add_argument('--vocabulary', type=int, default=5036, help='number of symbols')
    parser.add_argument('--sentences', type=int, default=20, help='sentences of a batch in decoding')
    parser.add_argument('--repeats', type=int, default=5)
    args = parser.parse_args()
    train, decode = [], []
    for length in args.tokens:
        networks = models(args.size, args.vocabulary)
        device = next(networks['sa'].parameters()).device
        source, target = (
            F.pad(torch.randint(4, args.vocabulary, (max(1, 4096 // length), length - 1)), (0, 1), value=2).to(device)
            for _ in range(2)
        )
        check(networks['nn.Transformer'], networks['sa'], source[:2], target[:2])
        steps = {name: training_step(model, source, target) for name, model in networks.items()}
        train.append((length, source.numel(), seconds(steps, args.repeats)))
        few = source[: args.sentences]
        calls = {}
        for name, model in networks.items():
            never_ends(model.eval())
            calls[name] = partial(model.translate, few, max_length=length)
        decode.append((length, len(few), seconds(calls, max(1, args.repeats // 2))))
    names = list(ATTENTION)
    for title, unit, rows in (('training', 'target tokens/s', train), ('decoding, beam 5', 'sentences/s', decode)):
        print(f'\n| {title}, {args.size} | nn.Transformer, {unit} | {" | ".join(f"{n}, {unit}" for n in names)} |')
        print(f'|---{"|---" * (len(names) + 1)}|')
        for length, count, times in rows:
            base = times['nn.Transformer']
            ours = [f'{count / times[name]:,.1f} (time × {times[name] / base:.2f})' for name in names]
            print(f'| {length} tokens | {count / base:,.1f} | {" | ".join(ours)} |')


if __name__ == '__main__':
    mmattn.utils.command.run(main)
