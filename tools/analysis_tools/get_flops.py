"""Count the multiply-accumulates and parameters of a config's model.

    python tools/analysis_tools/get_flops.py CONFIG [--shape H W] [--depth 3]

Shapes alone are computed, so any input size takes seconds and no memory. PyTorch's counter is used: convolutions and
matrix products, those inside this package's operators included; norms, activations and softmaxes are not.
"""
import argparse

import torch
from mmengine.config import Config, DictAction
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from prettytable import PrettyTable
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import mmattn.registry  # noqa: F401


def count(cfg: Config, shape: tuple[int, int], depth: int = 3) -> tuple[int, int, str]:
    """Return the multiply-accumulates of a forward pass, the parameters it uses, and a table by module.

    Args:
        cfg (Config): a segmentor's config; its auxiliary heads, unused in inference, do not count.
        shape (tuple[int, int]): height and width of the one input image, in pixels.
        depth (int): levels of modules in the table.
    """
    init_default_scope(cfg.get('default_scope', 'mmseg'))
    model_cfg = {key: value for key, value in cfg.model.items() if key not in ('auxiliary_head', 'pretrained')}
    with FakeTensorMode():
        model = revert_sync_batchnorm(MODELS.build(model_cfg)).eval()
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad():
            model(torch.empty(1, 3, *shape), mode='tensor')
    parameters = sum(p.numel() for p in model.parameters())
    table = PrettyTable(['module', 'G multiply-accumulates'], align='l')
    for name, flops in sorted(counter.get_flop_counts().items()):
        if name != 'Global' and name.count('.') < depth:
            table.add_row([name, f'{sum(flops.values()) / 2e9:.2f}'])
    return counter.get_total_flops() // 2, parameters, str(table)


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description='Count multiply-accumulates and parameters')
    parser.add_argument('config', help='path of the config')
    parser.add_argument('--shape', type=int, nargs='+', default=[1024, 2048], help='height and width; or one side')
    parser.add_argument('--depth', type=int, default=3, help='levels of modules in the table; default: 3')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, help='override settings: key=value …')
    args = parser.parse_args()
    if len(args.shape) > 2:
        parser.error(f'--shape takes one side, or height and width; got {args.shape}')
    cfg = Config.fromfile(args.config)
    if args.cfg_options is not None:
        cfg.merge_from_dict(args.cfg_options)
    height, width = args.shape if len(args.shape) == 2 else args.shape * 2
    macs, parameters, table = count(cfg, (height, width), args.depth)
    print(table)
    print(f'input {height}×{width}: {macs / 1e9:.2f} G multiply-accumulates, {parameters / 1e6:.2f} M parameters')


if __name__ == '__main__':
    main()
