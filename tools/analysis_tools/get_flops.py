"""Count the multiply-accumulates and parameters of a config's model; compare a family of configs with the paper.

    python tools/analysis_tools/get_flops.py CONFIG [--shape H W] [--frames 8] [--depth 3]
    python tools/analysis_tools/get_flops.py configs/deeplabv3plus_ba

For a folder, every config with figures of the paper in metafile.yml is counted. For a config, and options, the entry in
metafile.yml is also compared.

The counter of PyTorch counts convolutions and matrix products, including the products in the operators of this package,
but not norms, activations and softmaxes. Only shapes are computed, so any input size takes seconds and no memory. A
deformable convolution counts as a standard convolution plus the convolution of its offsets. The second stage of a
detector counts for the number of proposals that it keeps in testing, without a head for masks. A video model follows
one object. A translation model reads one sentence and computes the logits of one translation at once, without beam
search. A captioning model does the same with one image. A question-answering model reads one question about one image.
"""

import argparse
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.fileio import load
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from prettytable import PrettyTable
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from mmattn.engine import add_config_options, load_config
from mmattn.utils.command import run
from mmattn.utils.component_type import dicts


def count(cfg: Config, shape: tuple[int, ...], frames: int = 8, module: str = '') -> tuple[int, float]:
    """Count parameters and multiply-accumulates of a config's model in inference, without auxiliary heads.

    Args:
        cfg (Config): the config. It is not changed.
        shape (tuple[int, ...]): shape of one input, ``(channels, height, width)``. The last two are the numbers of
            source and target tokens for a translation model, and of regions and words for a model that reads regions.
        frames (int): length of a clip, for video models. Defaults to 8.
        module (str): name of a submodule to count, with an input of ``shape``. Defaults to '', the whole model.

    Example:
        >>> from mmattn.utils import config_path
        >>> cfg = Config.fromfile(config_path('bi_cc/bi-cc_r50-d8_4xb2-80k_cityscapes-769x769.py'))
        >>> parameters, macs = count(cfg, (3, 769, 769))
    """
    counted, counter = _count(cfg, shape, frames, module)
    return _parameters(counted), counter.get_total_flops() / 2


def table_by_module(cfg: Config, shape: tuple[int, ...], frames: int = 8, depth: int = 3) -> str:
    """Format the counts of :func:`count`, with a table of modules down to ``depth`` levels."""
    model, counter = _count(cfg, shape, frames)
    table = PrettyTable(['module', 'G multiply-accumulates'], align='l')
    for name, flops in sorted(counter.get_flop_counts().items()):
        if name != 'Global' and name.count('.') < depth:
            table.add_row([name, f'{sum(flops.values()) / 2e9:.2f}'])
    return (
        f'{table}\ninput {shape[-2]}×{shape[-1]}: {counter.get_total_flops() / 2e9:.2f} G multiply-accumulates, '
        f'{_parameters(model) / 1e6:.2f} M parameters'
    )


def table_with_paper(
    metafile: Path, name: str | None = None, options: dict[str, Any] | None = None
) -> PrettyTable | None:
    """Compare our counts with the paper's, which a metafile lists under ``Complexity`` of a model.

    An entry is a config, or a config with ``Options``. It counts one ``Module`` ('' is the model) for one ``Input``
    (channels, height, width). With a ``Base``, our count is the paper's figure for the base config plus the difference
    between the modules of the two configs, so that differences between our heads and the paper's cancel. The paper may
    have printed parameters, multiply-accumulates, or both.

    Args:
        metafile (Path): metafile of a folder of configs.
        name (str, optional): name of the only model to count. Defaults to None, all entries of the metafile.
        options (dict, optional): the options with which this model is counted. Defaults to None, without options.

    Returns:
        PrettyTable or None: None without figures of the paper.
    """
    entries = [
        (Path(model['Config']).name, entry)
        for model in load(metafile)['Models']
        for entry in model.get('Complexity', ())
        if name is None or (model['Name'], options or {}) == (name, entry.get('Options', {}))
    ]

    @cache
    def count_base(config: str, module: str, shape: tuple[int, ...]) -> float:
        return count(Config.fromfile(metafile.parent / config), shape, module=module)[1]

    table = PrettyTable(
        ['row', 'K parameters', 'in the paper', 'G MACs', 'of the paper', 'difference', 'of what is added'], align='r'
    )
    for config, paper in sorted(entries, key=lambda entry: entry[1]['Row']):
        module, shape = paper['Module'], tuple(paper['Input'])
        cfg = Config.fromfile(metafile.parent / config)
        cfg.merge_from_dict(paper.get('Options', {}))
        parameters, macs = count(cfg, shape, module=module)
        billions, added, printed = macs / 1e9, '-', paper.get('MACs (G)')
        if 'Base' in paper:
            base = paper['Base']['MACs (G)']
            extra = (macs - count_base(paper['Base']['Config'], module, shape)) / 1e9
            billions = base + extra
            if printed and printed > base:
                added = f'{extra / (printed - base) - 1:+.2%}'
        table.add_row(
            [
                paper['Row'],
                f'{parameters / 1e3:.2f}',
                paper.get('Parameters (K)', '-'),
                f'{billions:.2f}',
                f'{printed:.2f}' if printed else '-',
                f'{billions / printed - 1:+.2%}' if printed else '-',
                added,
            ]
        )
    return table if entries else None


def input_size(cfg: Config) -> tuple[int, int] | None:
    """Find height and width of the training crops or scaled training images. Of several scales, take the last one.

    Crops relative to the image are left out.
    """
    for key in ('crop_size', 'scale'):
        for transform in dicts(cfg.get('train_dataloader')):
            size = transform.get(key)
            if isinstance(size, list | tuple) and size and isinstance(size[-1], list | tuple):
                size = size[-1]
            if isinstance(size, int):
                size = size, size
            if isinstance(size, list | tuple) and len(size) == 2 and all(isinstance(side, int) for side in size):
                return (size[0], size[1]) if key == 'crop_size' else (size[1], size[0])
    return None


def input_channels(cfg: Config) -> int:
    """Find the channels of an image: those that the data preprocessor normalises, or 3.

    One mean may be that of all channels. Then, the backbone tells how many they are.
    """
    mean = (cfg.model.get('data_preprocessor') or {}).get('mean') or ()
    return len(mean) if len(mean) > 1 else (cfg.model.get('backbone') or {}).get('in_channels', 3)


def _parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _count(cfg: Config, shape: tuple[int, ...], frames: int, module: str = '') -> tuple[nn.Module, FlopCounterMode]:
    # The layers of nn.Transformer are copied, which fake tensors do not support; images become tensors on the CPU.
    models = cfg.model.get('members', [cfg.model])  # of an ensemble
    shapes = torch.device('meta') if 'vocab_size' in models[0] else FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with shapes:
            counted = _build(cfg).get_submodule(module)
    except DataDependentOutputException:  # a constructor reads numbers from a tensor, for example rates of drop paths
        counted = _build(cfg).get_submodule(module)
    with shapes:
        x, sides = torch.empty(1, *shape), shape[-2:]

        def describe() -> None:
            for part, model in zip(getattr(counted, 'members', [counted]), models):
                _describe(part, model.get('num_features', 2048), *sides)

        runs: dict[str, Callable[[], Any]] = {  # by what only such a model has
            'bbox_head': lambda: _detect(counted, x),
            'rpn_head': lambda: _detect(counted, x),
            'object_streams': lambda: _follow(counted, x.expand(frames, *shape)),
            'num_answers': lambda: _answer(counted, *sides),
            'translate': lambda: _translate(counted, *sides),
            'describe': describe,
            'scorer': lambda: _ground(counted, cfg.model.num_features, *sides),
            'data_preprocessor': lambda: counted(x, mode='tensor'),
        }
        run = next((run for name, run in runs.items() if hasattr(counted, name)), lambda: counted(x))
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            run()
    return counted, counter


def _build(cfg: Config) -> nn.Module:
    init_default_scope(cfg.get('default_scope', 'mmseg'))
    model_cfg = {key: value for key, value in cfg.model.items() if key not in ('auxiliary_head', 'pretrained')}
    model = revert_sync_batchnorm(MODELS.build(model_cfg)).eval()
    try:
        from mmcv.ops import DeformConv2dPack, ModulatedDeformConv2dPack
    except ImportError:  # mmcv without its operators: no model has a deformable convolution
        return model
    for module in model.modules():
        if isinstance(module, DeformConv2dPack | ModulatedDeformConv2dPack):  # mmcv's operator has no fake tensors
            module.forward = partial(_as_convolution, module)
    return model


def _as_convolution(module: Any, x: Tensor) -> Tensor:
    module.conv_offset(x)
    return F.conv2d(x, module.weight, None, module.stride, module.padding, module.dilation, module.groups)


def _detect(model: Any, x: Tensor) -> None:
    # without the choice of proposals, which depends on the image
    features = model.extract_feat(x)
    (model.rpn_head if hasattr(model, 'rpn_head') else model.bbox_head)(features)
    if hasattr(model, 'roi_head'):
        heads, proposals = model.roi_head.bbox_head, model.test_cfg.rpn.max_per_img
        stages: Iterable[Any] = heads if isinstance(heads, nn.ModuleList) else [heads]  # several in a cascade
        for head in stages:
            head(x.new_empty(proposals, head.in_channels, *head.roi_feat_size))


def _follow(model: Any, frames: Tensor) -> None:
    features, fine = model.extract_feat(frames)
    numbers, first, clip = torch.arange(len(frames)).unsqueeze(0), features[:1], torch.zeros(1, dtype=torch.long)
    streams = model.object_streams(features.unsqueeze(0), numbers, first, first[..., 0], clip)
    model.head(streams[0], fine, frames.shape[-2:])


def _translate(model: Any, source: int, target: int) -> None:
    memory = model.encoder(model.embedding(torch.zeros(1, source, dtype=torch.long)))
    model.embedding.logits(model.decoder(model.embedding(torch.zeros(1, target, dtype=torch.long)), memory))


def _ground(model: Any, features: int, regions: int, words: int) -> None:
    texts = dict(caption=torch.zeros(1, words, dtype=torch.long), phrases=torch.zeros(1, 4, dtype=torch.long))
    model(texts | _regions(features, regions))


def _describe(model: Any, features: int, regions: int, words: int) -> None:
    attributes = torch.zeros(1, 20, dtype=torch.long)
    captions = torch.zeros(1, 1, words, dtype=torch.long)
    model(dict(_regions(features, regions), attributes=attributes, captions=captions))


def _answer(model: Any, regions: int, words: int) -> None:
    question = torch.zeros(1, words, dtype=torch.long)
    if model.num_features is None:
        model(dict(question=question, image=torch.zeros(1, 3, 64, 64)))
    else:
        model(dict(_regions(model.num_features, regions), question=question))


def _regions(features: int, regions: int) -> dict[str, Tensor]:
    return dict(features=torch.zeros(1, regions, features), boxes=torch.zeros(1, regions, 4), sizes=torch.ones(1, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description='Count multiply-accumulates and parameters')
    parser.add_argument('config', type=Path, help='a config, or a folder with metafile.yml')
    parser.add_argument(
        '--shape',
        type=int,
        nargs='+',
        help="height and width, or one side; default: the config's crop size, or the size to which it scales images; "
        'for translation: the lengths of source and target in tokens',
    )
    parser.add_argument('--frames', type=int, help='length of a clip, for video models; default: 8')
    parser.add_argument('--depth', type=int, help='levels of modules in the table; default: 3')
    add_config_options(parser)
    args = parser.parse_args()
    if args.shape is not None and (len(args.shape) > 2 or min(args.shape) < 1):
        parser.error(f'--shape must be one side, or height and width, of at least one pixel; got {args.shape}')
    if args.config.is_dir():
        if any(value is not None for name, value in vars(args).items() if name != 'config'):
            parser.error(f'{args.config} is a folder: its metafile defines what is counted; options require a config')
        table = table_with_paper(args.config / 'metafile.yml')
        if table is None:
            raise SystemExit(
                f'{args.config}/metafile.yml has no figures of a paper (Complexity) to compare with; choose one config'
            )
        print(table)
        return
    cfg = load_config(args.config, args.cfg_options)
    shape = args.shape or input_size(cfg)
    if shape is None:
        parser.error(f'--shape is required: {args.config} neither crops nor scales its images')
    frames, depth = 8 if args.frames is None else args.frames, 3 if args.depth is None else args.depth
    print(table_by_module(cfg, (input_channels(cfg), shape[0], shape[-1]), frames, depth))
    metafile = args.config.parent / 'metafile.yml'
    table = table_with_paper(metafile, args.config.stem, args.cfg_options) if metafile.is_file() else None
    if table is not None:
        print(table)


if __name__ == '__main__':
    run(main)
