"""A loss of 0 for a batch whose pixels are all ignored, also with one logit."""

from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.utils import SampleList
from torch import Tensor, nn


class IgnoredBatch(BaseDecodeHead):
    """Base class of heads. With one logit, mmseg's binary cross-entropy fails if all pixels of a batch are ignored."""

    def loss_by_feat(self, seg_logits: Tensor, batch_data_samples: SampleList) -> dict:
        """Compute the losses as mmseg does, and 0, with gradients of 0, if one logit has no pixel to learn from."""
        if self.out_channels > 1 or (self._stack_batch_gt(batch_data_samples) != self.ignore_index).any():
            return super().loss_by_feat(seg_logits, batch_data_samples)
        losses = self.loss_decode if isinstance(self.loss_decode, nn.ModuleList) else [self.loss_decode]
        zero = seg_logits.sum() * 0
        return {**{loss.loss_name: zero for loss in losses}, 'acc_seg': zero.detach()[None]}
