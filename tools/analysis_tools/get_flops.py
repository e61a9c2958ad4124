"""Count the multiply-accumulates and parameters of a config's model, or of a family of configs beside the paper's.

    python tools/analysis_tools/get_flops.py CONFIG [--shape H W] [--frames 8] [--depth 3]
    python tools/analysis_tools/get_flops.py configs/deeplabv3plus_ba

Shapes alone are computed, so any input size takes seconds and no memory. PyTorch's counter is used: convolutions and
matrix products, those inside this package's operators included; norms, activations and softmaxes are not. A deformable
convolution counts as the convolution it replaces and that of its offsets; a detector's second stage, as many proposals
as it keeps in testing; a video model follows one object through the frames.

Of a folder, every config is counted whose entry in metafile.yml has the paper's figures under ``Complexity``, those of
one ``Module`` (or '' for all) for one ``Input`` (channels, height, width); of a config, its entry is counted, too. With
a ``Base``, ours is the paper's figure for that config and what the module of this one adds to it: so heads that differ
from the paper's do not matter.
"""

import argparse
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from mmattn.utils.command import run

import torch
from mmcv.ops import DeformConv2dPack, ModulatedDeformConv2dPack
from mmengine.config import Config
from mmengine.fileio import load
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from prettytable import PrettyTable
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from mmattn.engine import add_config_options, load_config


def build(cfg: Config) -> nn.Module:
    """Build a config's model for inference, so without its auxiliary heads, in a FakeTensorMode of the caller.

    Args:
        cfg (Config): as read from the file.
    """
    init_default_scope(cfg.get('default_scope', 'mmseg'))
    model_cfg = {key: value for key, value in cfg.model.items() if key not in ('auxiliary_head', 'pretrained')}
    model = revert_sync_batchnorm(MODELS.build(model_cfg)).eval()
    for module in model.modules():
        if isinstance(module, DeformConv2dPack | ModulatedDeformConv2dPack):  # mmcv's operator knows no fake tensors
            module.forward = partial(_as_convolution, module)
    return model


def _as_convolution(module: nn.Module, x: Tensor) -> Tensor:
    """A deformable convolution's offsets, and a convolution in its place."""
    module.conv_offset(x)
    return F.conv2d(x, module.weight, None, module.stride, module.padding, module.dilation, module.groups)


def count(module: nn.Module, shape: tuple[int, ...], frames: int = 8) -> FlopCounterMode:
    """Return the counter that saw one input, ``(1, *shape)``, or a clip of it, through a module or a model."""
    counter = FlopCounterMode(display=False)
    x = torch.empty(1, *shape)
    with counter, torch.no_grad():
        if hasattr(module, 'bbox_head') or hasattr(module, 'rpn_head'):
            _detect(module, x)
        elif hasattr(module, 'object_streams'):
            _follow(module, x.expand(frames, *shape))
        elif hasattr(module, 'data_preprocessor'):
            module(x, mode='tensor')
        else:
            module(x)
    return counter


def _detect(model: nn.Module, x: Tensor) -> None:
    """Run a detector without what depends on the image: the choice of proposals."""
    features = model.extract_feat(x)
    (model.rpn_head if hasattr(model, 'rpn_head') else model.bbox_head)(features)
    if hasattr(model, 'roi_head'):
        head, proposals = model.roi_head.bbox_head, model.test_cfg.rpn.max_per_img
        head(x.new_empty(proposals, head.in_channels, *head.roi_feat_size))


def _follow(model: nn.Module, frames: Tensor) -> None:
    """Follow one object through a clip."""
    features, fine = model.extract_feat(frames)
    numbers, first, clip = torch.arange(len(frames)).unsqueeze(0), features[:1], torch.zeros(1, dtype=torch.long)
    streams = model.object_streams(features.unsqueeze(0), numbers, first, first[..., 0], clip)
    model.head(streams[0], fine, frames.shape[-2:])


def count_one(cfg: Config, shape: tuple[int, int], depth: int, frames: int) -> None:
    """Print the counts of a config's model, by module to a depth, for an image of a height and a width in pixels."""
    with FakeTensorMode():
        model = build(cfg)
        counter = count(model, (3, *shape), frames)
    table = PrettyTable(['module', 'G multiply-accumulates'], align='l')
    for name, flops in sorted(counter.get_flop_counts().items()):
        if name != 'Global' and name.count('.') < depth:
            table.add_row([name, f'{sum(flops.values()) / 2e9:.2f}'])
    print(table)
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f'input {shape[0]}×{shape[1]}: {counter.get_total_flops() / 2e9:.2f} G multiply-accumulates, '
        f'{parameters / 1e6:.2f} M parameters'
    )


def input_size(cfg: Config) -> tuple[int, int] | None:
    """Return height and width of the crops in training, or of what images are scaled to; None if they are neither."""
    for key in ('crop_size', 'scale'):
        for transform in dicts(cfg.get('train_dataloader')):
            if isinstance(transform.get(key), list | tuple):
                first, second = transform[key]
                return (first, second) if key == 'crop_size' else (second, first)
    return None


def dicts(value: Any) -> Iterator[dict]:
    """Yield all dictionaries in a part of a config."""
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from dicts(part)


def beside_the_paper(metafile: Path, name: str | None = None) -> PrettyTable | None:
    """Return the counts of a metafile's configs, or of the one called ``name``, beside the paper's; or None."""
    models = [model for model in load(metafile)['Models'] if 'Complexity' in model and name in (None, model['Name'])]

    @cache
    def counted(config: str, module: str, shape: tuple[int, ...]) -> tuple[float, float]:
        """Return thousands of parameters and billions of multiply-accumulates."""
        with FakeTensorMode():
            found = build(Config.fromfile(metafile.parent / config)).get_submodule(module)
            macs = count(found, shape).get_total_flops() / 2e9
        return sum(p.numel() for p in found.parameters()) / 1e3, macs

    table = PrettyTable(
        ['row', 'K parameters', 'in the paper', 'G MACs', 'of the paper', 'difference', 'of what is added'], align='r'
    )
    for model in sorted(models, key=lambda model: model['Complexity']['Row']):
        paper = model['Complexity']
        what = paper['Module'], tuple(paper['Input'])
        parameters, macs = counted(Path(model['Config']).name, *what)
        added = '-'
        if 'Base' in paper:
            base = paper['Base']['MACs (G)']
            extra = macs - counted(paper['Base']['Config'], *what)[1]
            macs = base + extra
            if paper['MACs (G)'] > base:
                added = f'{extra / (paper["MACs (G)"] - base) - 1:+.2%}'
        table.add_row(
            [
                paper['Row'],
                f'{parameters:.2f}',
                paper.get('Parameters (K)', '-'),
                f'{macs:.2f}',
                f'{paper["MACs (G)"]:.2f}',
                f'{macs / paper["MACs (G)"] - 1:+.2%}',
                added,
            ]
        )
    return table if models else None


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description='Count multiply-accumulates and parameters')
    parser.add_argument('config', type=Path, help='path of the config, or of a folder with metafile.yml')
    parser.add_argument(
        '--shape',
        type=int,
        nargs='+',
        help="height and width, or one side; default: the config's crop size, or the size that it scales images to",
    )
    parser.add_argument('--frames', type=int, help='of a clip, for video models; default: 8')
    parser.add_argument('--depth', type=int, help='levels of modules in the table; default: 3')
    add_config_options(parser)
    args = parser.parse_args()
    if args.shape is not None and (len(args.shape) > 2 or min(args.shape) < 1):
        parser.error(f'--shape takes one side, or height and width, of at least one pixel; got {args.shape}')
    if args.config.is_dir():
        if any(value is not None for name, value in vars(args).items() if name != 'config'):
            parser.error(f'{args.config} is a folder: its metafile says what is counted; options are for a config')
        table = beside_the_paper(args.config / 'metafile.yml')
        if table is None:
            raise SystemExit(
                f'{args.config}/metafile.yml has no figures of a paper (Complexity) to compare with; give one config'
            )
        print(table)
        return
    cfg = load_config(args.config, args.cfg_options)
    shape = args.shape or input_size(cfg)
    if shape is None:
        parser.error(f'--shape is required: {args.config} neither crops nor scales its images')
    count_one(
        cfg, (shape[0], shape[-1]), 3 if args.depth is None else args.depth, 8 if args.frames is None else args.frames
    )
    metafile = args.config.parent / 'metafile.yml'
    table = beside_the_paper(metafile, args.config.stem) if metafile.is_file() else None
    if table is not None and args.cfg_options is None:
        print(table)


if __name__ == '__main__':
    run(main)
