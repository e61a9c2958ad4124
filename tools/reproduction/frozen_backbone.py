"""A backbone that is not trained."""

from typing import Any

import torch
from mmengine.model import BaseModule, revert_sync_batchnorm

from mmattn.registry import MODELS


@MODELS.register_module()
class FrozenBackbone(BaseModule):
    """Any backbone, always in evaluation mode and without gradients.

    Its norm layers keep their statistics, and dropout and stochastic depth are off. It has the weights of
    ``backbone.init_cfg``. Synchronised batch norms become batch norms, which are the same in evaluation.

    Args:
        backbone (dict): config of the backbone.

    Example:
        >>> backbone = FrozenBackbone(dict(type='mmattn.ResNetStem', depth=18, out_indices=(3,))).train()
        >>> backbone.training, backbone(torch.randn(1, 3, 32, 64))[-1].requires_grad
        (False, False)
    """

    def __init__(self, backbone: dict) -> None:
        super().__init__()
        self.backbone = revert_sync_batchnorm(MODELS.build(backbone)).requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> 'FrozenBackbone':
        return super().train(False)

    @torch.no_grad()
    def forward(self, x: Any) -> Any:
        return self.backbone(x)
