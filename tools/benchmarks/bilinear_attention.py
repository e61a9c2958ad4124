"""Time and memory of bilinear attention networks, compared with other orders of the same computation.

    python tools/benchmarks/bilinear_attention.py [--repeats 3]
    python tools/benchmarks/bilinear_attention.py --batch 16 --regions 20 --mean-regions 8 --width 64 --features 32

Random questions and regions; images have different numbers of regions and are padded. The models are BAN-8 of the test
split and BAN-4 of the ablations, in three orders:

* ours: the logits multiply p into the words; regions are projected without padding, and projections of the glimpses are
  computed again in the backward pass;
* published: the logits multiply p into the regions, once per glimpse, and regions are projected with padding, as in the
  published code;
* literal: products of all pairs of a word and a region, as in the equations. With the default sizes, this requires some
  60 GiB.

The network alone runs forward and backward; a training step of the model adds question encoder, classifier, loss and
optimizer. Memory is that of the tensors beyond weights and optimizer states. Orders take turns, so that other load
affects all of them equally; medians are compared. Before the measurement, all orders must agree in output and all
gradients, in float64.
"""

import argparse
import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor

import mmattn.utils.command
from mmattn.registry import MODELS
from mmattn.utils import config_path
from mmattn.utils.profiling import extra_memory, seconds

CONFIGS = {
    'BAN-8': 'ban/ban-8_1xb512-13e_vqa2-trainval-genome.py',
    'BAN-4': 'ban/ban-4_1xb512-13e_vqa2.py',
}


def forward(literal: bool, network: Any, words: Tensor, regions: Tensor, *arguments: Any) -> tuple[Tensor, None]:
    """Run a residual BilinearAttentionNetwork in another order, with arguments and output of its ``forward``."""
    mask = arguments[1]
    query = network.logits.word_proj(words)
    key = network.logits.region_dropout(network.logits.region_proj(regions))
    p, b = network.logits.glimpses.weight, network.logits.glimpses.bias
    if literal:
        pairs = query.unsqueeze(2) * key.unsqueeze(1)  # (B, L, K, K')
        logits = torch.stack([(pairs * row).sum(-1) for row in p], 1)
    else:
        logits = query.unsqueeze(1) @ (key.unsqueeze(1) * p[:, None]).mT  # of (B, G, K, K')
    logits = (logits + b[:, None, None]).masked_fill(mask[:, None, None], -torch.inf)
    weights = logits.flatten(2).softmax(-1).view_as(logits)
    state = words
    for g, attention in enumerate(weights.unbind(1)):
        x, y = network.word_proj[g](state), network.region_proj[g](regions)
        if literal:
            pooled = (attention.unsqueeze(-1) * x.unsqueeze(2) * y.unsqueeze(1)).sum((1, 2))
        else:
            pooled = (x * (attention @ y)).sum(1)
        state = state + network.out_proj[g](pooled).unsqueeze(1)
    return state.sum(1), None


ORDERS: dict[str, Callable[..., tuple[Tensor, None]] | None] = {
    'ours': None,
    'published': partial(forward, False),
    'literal': partial(forward, True),
}


def build(name: str, args: argparse.Namespace) -> Any:
    """Return a model of the configs, with the sizes that are requested."""
    cfg = Config.fromfile(config_path(CONFIGS[name])).model
    cfg.num_features = args.features
    if args.width is not None:
        cfg.question_encoder.embed_dim = args.width
    torch.manual_seed(0)
    return MODELS.build(cfg).to('cuda' if torch.cuda.is_available() else 'cpu')


def batch(model: Any, args: argparse.Namespace) -> dict[str, Tensor]:
    """Return random inputs; the numbers of regions have about the requested mean, and the first image has all."""
    least = min(10, args.mean_regions)
    drawn = torch.empty(args.batch).exponential_(1 / max(args.mean_regions - least, 1e-6))
    counts = (least + drawn).clamp(max=args.regions).long()
    counts[0] = args.regions
    symbols = len(model.question_encoder.embedding.weight)
    inputs = dict(
        question=torch.randint(4, symbols, (args.batch, args.words)),
        features=torch.rand(args.batch, args.regions, args.features),
        region_mask=torch.arange(args.regions) >= counts[:, None],
        targets=torch.rand(args.batch, model.num_answers),
    )
    return {name: x.to(model.question_encoder.embedding.weight.device) for name, x in inputs.items()}


def network_step(model: Any, inputs: dict[str, Tensor], order: str) -> Callable[[], Tensor]:
    """Return a function that runs the network forward and backward, and returns its output; no gradient is left."""
    words = model.question_encoder(inputs['question']).words.detach().requires_grad_()
    network, run = model.head.network, ORDERS[order]

    def step() -> Tensor:
        arguments = words, inputs['features'], None, inputs['region_mask']
        out, _ = network(*arguments) if run is None else run(network, *arguments)
        out.sum().backward()
        network.zero_grad()
        words.grad = None
        return out.detach()

    return step


def training_step(model: Any, inputs: dict[str, Tensor], order: str) -> Callable[[], Tensor]:
    """Return a function that makes a training iteration, and returns the loss; no gradient is left."""
    optimizer = torch.optim.Adamax(model.parameters(), lr=1e-7)
    network, run = model.head.network, ORDERS[order]

    def step() -> Tensor:
        network.forward = type(network).forward.__get__(network) if run is None else partial(run, network)
        loss = model(inputs, mode='loss')['loss']
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def check(model: Any, inputs: dict[str, Tensor], orders: list[str]) -> None:
    """Compare output and gradients of the orders, without dropout, on the first images, in float64."""
    network = copy.deepcopy(model.head.network).double().eval()
    few = {name: x[:4] for name, x in inputs.items()}
    words, regions = model.question_encoder(few['question']).words.detach().double(), few['features'].double()
    results: list[list[Tensor]] = []
    for order in orders:
        run, arguments = ORDERS[order], (words.clone().requires_grad_(), regions, None, few['region_mask'])
        out, _ = network(*arguments) if run is None else run(network, *arguments)
        parameters = [
            p for name, p in network.named_parameters() if name != 'logits.glimpses.bias'
        ]  # its gradient is 0
        results.append([out, *torch.autograd.grad(out.square().mean(), [arguments[0], *parameters])])
    for other in results[1:]:
        for theirs, ours in zip(other, results[0]):
            torch.testing.assert_close(theirs, ours, rtol=1e-8, atol=1e-8 * float(ours.detach().abs().max()))


def main() -> None:
    """Measure and print a table per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--models', nargs='+', choices=CONFIGS, default=[*CONFIGS])
    parser.add_argument('--orders', nargs='+', choices=ORDERS, default=[*ORDERS], help='the first is the base')
    parser.add_argument('--batch', type=int, default=256, help='questions of a batch')
    parser.add_argument('--regions', type=int, default=100, help='regions after padding')
    parser.add_argument('--mean-regions', type=int, default=32, help='mean number of regions')
    parser.add_argument('--words', type=int, default=14)
    parser.add_argument('--features', type=int, default=2048, help='channels of a region')
    parser.add_argument('--width', type=int, help='channels of the words (default: as in the config)')
    parser.add_argument('--repeats', type=int, default=1)
    args = parser.parse_args()
    for name in args.models:
        model = build(name, args)
        inputs = batch(model, args)
        check(model, inputs, args.orders)
        network = {order: network_step(model, inputs, order) for order in args.orders}
        times = seconds(network, args.repeats)
        memory = {order: extra_memory(step)[1] for order, step in network.items()}
        steps = seconds({order: training_step(model, inputs, order) for order in args.orders}, args.repeats)
        regions = float((~inputs['region_mask']).sum(1).float().mean())
        head = ['s of the network', 'MiB of the network', 's per training step']
        print(f'| {name}, {args.batch} × {args.regions} regions, mean {regions:.1f} | {" | ".join(head)} |')
        print(f'|---{"|---" * len(head)}|')
        base = args.orders[0]
        for order in args.orders:
            cells = [
                f'{times[order]:.3f} (× {times[order] / times[base]:.2f})',
                f'{memory[order]:,.0f} (× {memory[order] / memory[base]:.2f})',
                f'{steps[order]:.3f} (× {steps[order] / steps[base]:.2f})',
            ]
            print(f'| {order} | {" | ".join(cells)} |')


if __name__ == '__main__':
    mmattn.utils.command.run(main)
