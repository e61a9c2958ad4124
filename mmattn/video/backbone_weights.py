"""Weights of a pretrained backbone, from a file or an address, and its maps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlparse

import torch
from mmengine.logging import print_log
from torch import Tensor, nn

from mmattn.engine import read_checkpoint
from mmattn.utils.component_type import type_name


def backbone_maps(backbone: nn.Module, frames: Tensor) -> Sequence[Tensor]:
    """Compute the maps of a backbone. Some, such as mmseg's MobileNetV2, return a single map without a tuple."""
    maps = backbone(frames)
    return (maps,) if isinstance(maps, Tensor) else maps


def load_backbone(backbone: nn.Module, cfg: Mapping) -> None:
    """Load weights into a backbone. Entries that it does not have, such as a classifier, are ignored.

    Args:
        backbone (nn.Module): the backbone.
        cfg (Mapping): its config, whose ``init_cfg`` names the ``checkpoint``, a file or an address. In a checkpoint of
            a whole network, the names of weights begin with 'backbone.'.

    Raises:
        OSError: the file does not exist, or cannot be downloaded.
        ValueError: ``init_cfg`` names no checkpoint, the file contains objects that may run code, or its weights are of
            another backbone.
    """
    address = str((cfg.get('init_cfg') or {}).get('checkpoint') or '')
    if not address:
        raise ValueError('label propagation requires a pretrained backbone: set model.backbone.init_cfg.checkpoint')
    print_log(f'weights of the backbone: {address}', 'current')
    weights = _read(address)
    whole = {name.removeprefix('backbone.'): x for name, x in weights.items() if name.startswith('backbone.')}
    try:
        missing = backbone.load_state_dict(whole or weights, strict=False).missing_keys
    except RuntimeError as error:  # shapes
        raise ValueError(f'{address}: {" ".join(str(error).split())}') from error
    if missing:
        raise ValueError(
            f'{address}: not weights of {type_name(cfg)}: they lack {len(missing)} of its entries, such as {missing[0]}'
        )


def _read(address: str) -> dict[str, torch.Tensor]:
    is_url = urlparse(address).scheme in ('http', 'https')
    try:
        checkpoint = read_checkpoint(address)
    except URLError as error:
        if not is_url:
            raise
        cached = Path(torch.hub.get_dir(), 'checkpoints', Path(urlparse(address).path).name)
        raise ConnectionError(
            f'{address} cannot be downloaded ({error.reason}). Download it elsewhere and copy it to {cached}, or name '
            'your file: --cfg-options model.backbone.init_cfg.checkpoint=FILE'
        ) from error
    weights = checkpoint.get('state_dict', checkpoint) if isinstance(checkpoint, dict) else None
    if not isinstance(weights, dict):
        raise ValueError(f'{address}: no checkpoint of PyTorch: it contains {type(weights).__name__}')
    return weights
