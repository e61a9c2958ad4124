"""Another backbone for a row: its config, what the heads read from it, its weights, and whether it is trained."""

from functools import cache
from pathlib import Path

import torch
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor

from mmattn.engine import read_checkpoint
from mmattn.utils import config_path
from mmattn.utils.faults import shorten

from .frozen_backbone import FrozenBackbone

FOLDER = '_base_/backbones'
READERS = 'neck', 'decode_head', 'auxiliary_head'  # the parts of a model that read the maps of its backbone
PREFIX = 'backbone.'


def backbones() -> list[str]:
    return sorted(path.stem for path in config_path(FOLDER).glob('*.py'))


def read_backbone(name: str) -> Config:
    """Return the config of a backbone, given by its name or by the path of a file.

    Its ``model`` has a ``backbone`` and changes to the other parts of a row's model: ``data_preprocessor``, and what
    ``decode_head``, ``auxiliary_head`` or ``neck`` read, or ``in_channels``, if the model itself reads the last map.
    """
    path = config_path(FOLDER) / f'{name}.py' if name in backbones() else Path(name)
    if not path.is_file():
        raise ValueError(f"--backbone must be one of {', '.join(backbones())}, or a config; got '{name}'")
    cfg = Config.fromfile(path)
    if 'type' not in cfg.get('model', {}).get('backbone', {}):
        raise ValueError(f'{path} has no model.backbone')
    return cfg


def replace_backbone(cfg: Config, name: str) -> None:
    """Replace the backbone of a row's config, and what the other parts of the model read from it.

    Settings of the low-level map (``c1_…``) apply to heads that read one.
    """
    source = read_backbone(name)
    model, changes = cfg.model, source.model.to_dict()
    if 'backbone' not in model:
        raise ValueError(f'--backbone {name}: the model {model.type} has no backbone')
    if model.backbone.get('plugins'):
        raise ValueError(f'--backbone {name}: the rows of this table differ in plugins of their own backbone')
    for part in READERS:
        there, read = model.get(part), changes.get(part)
        if there is None:
            changes.pop(part, None)
            continue
        if read is None or _is_one(read.get('in_channels')) != _is_one(there.in_channels):
            raise ValueError(
                f'--backbone {name} does not fit: {part} of the row reads {there.in_channels} channels, that of the '
                f'config {read and read.get("in_channels")}'
            )
        changes[part] = {key: value for key, value in read.items() if not key.startswith('c1_') or key in there}
    if 'in_channels' in model and 'in_channels' not in changes:
        raise ValueError(f'--backbone {name} does not fit: the model {model.type} reads its last map')
    model.backbone = ConfigDict(changes.pop('backbone'))
    _drop_weights(cfg)
    cfg.merge_from_dict(dict(model=changes))
    for module in source.get('custom_imports', {}).get('imports', []):
        add_import(cfg, module)


def set_weights(cfg: Config, file: Path) -> None:
    """Let the backbone of a config start from the weights in a file; :func:`check_weights` checks that they fit."""
    if 'backbone' not in cfg.model:
        raise ValueError(f'--pretrained {file}: the model {cfg.model.type} has no backbone')
    prefix = PREFIX if any(key.startswith(PREFIX) for key in _read(file)) else None
    _drop_weights(cfg)
    cfg.model.backbone.init_cfg = dict(type='Pretrained', checkpoint=str(file.resolve()), prefix=prefix)


def check_weights(backbone: ConfigDict, scope: str) -> None:
    """Check that the file from which a backbone starts has all its weights, in their shapes.

    Weights that the backbone does not have, such as those of a classifier, are ignored. Only tensors and plain values
    are unpickled.

    Args:
        backbone (ConfigDict): config of the backbone; its ``init_cfg`` is that of :func:`set_weights`.
        scope (str): the default scope of the config.
    """
    file, prefix = Path(backbone.init_cfg.checkpoint), backbone.init_cfg.prefix or ''
    weights = {key.removeprefix(prefix): value for key, value in _read(file).items() if key.startswith(prefix)}
    init_default_scope(scope)
    with torch.device('meta'):
        expected = MODELS.build(backbone).state_dict()
    # As in mmengine, checkpoints from before PyTorch 0.4.1 may lack num_batches_tracked.
    missing = [key for key in expected if key not in weights and not key.endswith('.num_batches_tracked')]
    shapes = [
        f'{key} {tuple(weights[key].shape)} in place of {tuple(value.shape)}'
        for key, value in expected.items()
        if key in weights and weights[key].shape != value.shape
    ]
    if not missing and not shapes:
        return
    faults = []
    unknown = [key for key in weights if key not in expected]
    for text, keys in (('missing', missing), ('of another shape', shapes), ('unknown', unknown)):
        if keys:
            faults.append(f'{text}: {", ".join(shorten(keys, 10))}')
    raise ValueError(f'{file} does not fit the backbone {backbone.type}. Weights {"; ".join(faults)}')


def freeze_backbone(cfg: Config) -> None:
    cfg.model.backbone = dict(type='mmattn.FrozenBackbone', backbone=cfg.model.backbone)
    add_import(cfg, FrozenBackbone.__module__)


def add_import(cfg: Config, module: str) -> None:
    """Let a config import a module of this folder, which ``tools/train.py`` finds beside itself."""
    imports = cfg.get('custom_imports', {}).get('imports', [])
    cfg.custom_imports = dict(imports=[*imports, module])


def _drop_weights(cfg: Config) -> None:
    """Remove the weights of the model's own backbone; models of other scopes than these have them in its config."""
    if cfg.default_scope in ('mmseg', 'mmdet'):
        cfg.model.pretrained = None


def _is_one(channels: object) -> bool:
    return isinstance(channels, int)


def _read(file: Path) -> dict[str, Tensor]:
    return _tensors(file.resolve(), file.stat().st_mtime_ns)


@cache
def _tensors(file: Path, modified: int) -> dict[str, Tensor]:
    weights = read_checkpoint(file, 'meta')
    weights = weights.get('state_dict', weights) if isinstance(weights, dict) else weights
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise ValueError(f'{file} is not a state dict')
    return weights
