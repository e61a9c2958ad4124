"""Count the multiply-accumulates and parameters of a config's model, or of a family of configs beside the paper's.

    python tools/analysis_tools/get_flops.py CONFIG [--shape H W] [--depth 3]
    python tools/analysis_tools/get_flops.py configs/deeplabv3plus_ba

Shapes alone are computed, so any input size takes seconds and no memory. PyTorch's counter is used: convolutions and
matrix products, those inside this package's operators included; norms, activations and softmaxes are not.

Of a folder, every config is counted whose entry in metafile.yml has the paper's figures under ``Complexity``, those of
one ``Module`` (or '' for all) for one ``Input`` (channels, height, width). With a ``Base``, ours is the paper's figure
for that config and what the module of this one adds to it: so heads that differ from the paper's do not matter.
"""
import argparse
from functools import cache
from pathlib import Path

import torch
from mmengine.config import Config, DictAction
from mmengine.fileio import load
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from prettytable import PrettyTable
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import mmattn.registry  # noqa: F401


def build(cfg: Config) -> nn.Module:
    """Build a config's model for inference, so without its auxiliary heads, in a FakeTensorMode of the caller.

    Args:
        cfg (Config): as read from the file.
    """
    init_default_scope(cfg.get('default_scope', 'mmseg'))
    model_cfg = {key: value for key, value in cfg.model.items() if key not in ('auxiliary_head', 'pretrained')}
    return revert_sync_batchnorm(MODELS.build(model_cfg)).eval()


def count(module: nn.Module, shape: tuple[int, ...], **kwargs) -> FlopCounterMode:
    """Return the counter that saw the forward pass of one input, ``(1, *shape)``; ``kwargs`` go to the module."""
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        module(torch.empty(1, *shape), **kwargs)
    return counter


def count_one(cfg: Config, shape: tuple[int, int], depth: int) -> None:
    """Print the counts of a config's model, by module to a depth, for an image of a height and a width in pixels."""
    with FakeTensorMode():
        model = build(cfg)
        counter = count(model, (3, *shape), mode='tensor')
    table = PrettyTable(['module', 'G multiply-accumulates'], align='l')
    for name, flops in sorted(counter.get_flop_counts().items()):
        if name != 'Global' and name.count('.') < depth:
            table.add_row([name, f'{sum(flops.values()) / 2e9:.2f}'])
    print(table)
    parameters = sum(p.numel() for p in model.parameters())
    print(f'input {shape[0]}×{shape[1]}: {counter.get_total_flops() / 2e9:.2f} G multiply-accumulates, '
          f'{parameters / 1e6:.2f} M parameters')


def count_family(folder: Path) -> None:
    """Print the counts of the configs in a folder's metafile.yml beside the paper's."""
    models = [model for model in load(folder / 'metafile.yml')['Models'] if 'Complexity' in model]
    if not models:
        raise SystemExit(f'{folder}/metafile.yml gives no Complexity')

    @cache
    def counted(config: str, module: str, shape: tuple[int, ...]) -> tuple[float, float]:
        """Return thousands of parameters and billions of multiply-accumulates."""
        with FakeTensorMode():
            found = build(Config.fromfile(folder / config)).get_submodule(module)
            macs = count(found, shape).get_total_flops() / 2e9
        return sum(p.numel() for p in found.parameters()) / 1e3, macs

    table = PrettyTable(['row', 'config', 'K parameters', 'in the paper', 'G MACs', 'of the paper', 'difference'],
                        align='r')
    for model in sorted(models, key=lambda model: model['Complexity']['Row']):
        paper = model['Complexity']
        what = paper['Module'], tuple(paper['Input'])
        parameters, macs = counted(Path(model['Config']).name, *what)
        if 'Base' in paper:  # the paper's count of the network without what the config adds, and what it adds
            macs += paper['Base']['MACs (G)'] - counted(paper['Base']['Config'], *what)[1]
        table.add_row([paper['Row'], model['Name'].partition('_')[0] if 'Base' not in paper else model['Name'],
                       f'{parameters:.2f}', paper.get('Parameters (K)', '-'), f'{macs:.2f}',
                       f"{paper['MACs (G)']:.2f}", f"{macs / paper['MACs (G)'] - 1:+.2%}"])
    print(table)


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description='Count multiply-accumulates and parameters')
    parser.add_argument('config', help='path of the config, or of a folder with metafile.yml')
    parser.add_argument('--shape', type=int, nargs='+', default=[1024, 2048], help='height and width; or one side')
    parser.add_argument('--depth', type=int, default=3, help='levels of modules in the table; default: 3')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, help='override settings: key=value …')
    args = parser.parse_args()
    if len(args.shape) > 2:
        parser.error(f'--shape takes one side, or height and width; got {args.shape}')
    if Path(args.config).is_dir():
        count_family(Path(args.config))
        return
    cfg = Config.fromfile(args.config)
    if args.cfg_options is not None:
        cfg.merge_from_dict(args.cfg_options)
    height, width = args.shape if len(args.shape) == 2 else args.shape * 2
    count_one(cfg, (height, width), args.depth)


if __name__ == '__main__':
    main()
