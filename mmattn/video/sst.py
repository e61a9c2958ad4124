"""Sparse spatiotemporal transformers (SST), chapter 5 of the thesis: all frames of a clip in one forward pass."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from mmengine.structures import BaseDataElement
from torch import Tensor
from torch.nn import functional as F

from mmattn.registry import MODELS

from .expand_mask_project import shrink_masks
from .masks import VOID
from .network import SSTNetwork
from .session import check_settings, segment_clips


@MODELS.register_module()
class SST(SSTNetwork):
    """Follow objects through a clip, given one mask per object: an encoder of the video, a decoder of objects.

    Source: *Attention and Fusion of Deep Representations for Computer Vision*, master's thesis, University of Guelph,
    2020, chapter 5. Network and further arguments: see :class:`~mmattn.video.network.SSTNetwork`.

    Args:
        dice_weight (float): weight of a second loss, 1 − the soft Dice coefficient of each object in each frame, which
            is as sensitive to small objects as to large ones. Defaults to 0: only cross-entropy.
        test_cfg (dict, optional): settings of inference.

            * ``scale`` (tuple[int, int]): width and height to which frames are resized, as in ``ClipResize``. Defaults
              to the size of the files.
            * ``max_frames`` (int): number of frames that the model processes at once, including reference frames, at
              least 2. A longer clip is processed in parts. Defaults to all ("dense evaluation", Table 5.4).
            * ``sampling`` (str): parts are 'dense', consecutive frames, or 'sparse', frames from the whole clip.
              Defaults to 'dense'.

    Example:
        >>> import numpy as np
        >>> from mmattn.video import ClipSession, Frame
        >>> stages = dict(num_stages=2, out_indices=(1,), strides=(1, 2), dilations=(1, 1))
        >>> model = SST(dict(type='mmseg.ResNet', depth=18, **stages), in_channels=128, embed_dims=32).eval()
        >>> images, mask = np.zeros((3, 32, 48, 3), np.uint8), np.eye(32, 48, dtype=np.uint8)
        >>> frames = [Frame(i, image, mask if i == 0 else None) for i, image in enumerate(images)]
        >>> [ids.shape for _, ids in ClipSession(model).segment(frames)]
        [(32, 48), (32, 48), (32, 48)]
    """

    def __init__(self, *args, dice_weight: float = 0.0, test_cfg: dict | None = None, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.dice_weight = dice_weight
        self.test_cfg = check_settings(test_cfg or {})

    def forward(self, inputs: Any, data_samples: list[BaseDataElement], mode: str = 'tensor') -> Any:
        """Run the model.

        Args:
            inputs (Tensor, optional): float ``(B, T, 3, H, W)``. 'predict' reads the frames of the samples instead.
            data_samples (list of BaseDataElement): as made by ``PackClip``.
            mode (str): 'loss' returns a dict of losses, 'predict' the samples with ``pred_masks``, and 'tensor' a list
                with one float ``(O, 2, T, H, W)`` per clip, the logits of background and foreground of its objects.
        """
        if mode == 'loss':
            return self.loss(inputs, data_samples)
        if mode == 'predict':
            return self.predict(data_samples)
        if mode == 'tensor':
            return self._clip_logits(inputs, data_samples)
        raise ValueError(f"mode must be 'loss', 'predict' or 'tensor'; got {mode!r}")

    def loss(self, inputs: Tensor, data_samples: list[BaseDataElement]) -> dict[str, Tensor]:
        """Compute ``loss_mask``, the cross-entropy of an object against its background, averaged over objects.

        With ``dice_weight``, also compute ``loss_dice``. The reference frame, whose mask is given, is ignored unless it
        is the only frame. Pixels with 255 in ``gt_masks`` are ignored. ``acc_iou`` is the mean IoU of the objects, in
        percent.
        """
        cross_entropies, dices, ious = [], [], []
        for logits, sample in zip(self._clip_logits(inputs, data_samples), data_samples):
            truth = sample.gt_masks.data.to(logits.device)
            start = int(len(truth) > 1)
            truth, (height, width) = truth[start:], truth.shape[-2:]
            counts = truth != VOID
            for i, scores in zip(sample.first_frames, logits[:, :, start:, :height, :width].float()):
                present = truth == i  # (T, H, W)
                target = torch.where(counts, present.long(), VOID)
                cross_entropies.append(F.cross_entropy(scores.unsqueeze(0), target.unsqueeze(0), ignore_index=VOID))
                foreground = scores.softmax(0)[1] * counts
                both, either = (foreground * present).sum((1, 2)), (foreground + present).sum((1, 2))
                dices.append((1 - (2 * both + 1) / (either + 1)).mean())
                predicted = foreground > 0.5
                ious.append((predicted & present).sum() / (predicted | present).sum().clamp(min=1))
        losses = dict(loss_mask=torch.stack(cross_entropies).mean())
        if self.dice_weight:
            losses['loss_dice'] = self.dice_weight * torch.stack(dices).mean()
        return dict(losses, acc_iou=100 * torch.stack(ious).mean())

    def predict(self, data_samples: list[BaseDataElement]) -> list[BaseDataElement]:
        """Add ``pred_masks`` to samples of whole clips: ``data``, uint8 ``(T, H, W)``, ids at the size of the files.

        Frames are read as in :meth:`~mmattn.video.ClipSession.segment_clip`.
        """
        return segment_clips(self, self.test_cfg, data_samples)

    def _clip_logits(self, inputs: Tensor, data_samples: list[BaseDataElement]) -> list[Tensor]:
        batch, frames = inputs.shape[:2]
        features, fine = self.extract_feat(inputs.flatten(0, 1))
        features = features.unflatten(0, (batch, frames))
        counts = [len(sample.first_frames) for sample in data_samples]
        clip = torch.arange(batch, device=inputs.device).repeat_interleave(torch.tensor(counts, device=inputs.device))
        numbers = torch.tensor([sample.frame_numbers for sample in data_samples], device=inputs.device)
        masks = torch.cat(
            [
                object_masks(sample.given[0].to(inputs.device), sample.first_frames, inputs.shape[-2:])
                for sample in data_samples
            ]
        )
        stream = self.object_streams(
            features, numbers, features[:, 0][clip], shrink_masks(masks, features.shape[2:4]), clip
        )
        if fine is not None:
            fine = fine.unflatten(0, (batch, frames))[clip].flatten(0, 1)
        logits = self.head(stream.flatten(0, 1), fine, inputs.shape[-2:])
        return list(logits.unflatten(0, (-1, frames)).transpose(1, 2).split(counts))


def object_masks(mask: Tensor, ids: Iterable[int], size: Sequence[int]) -> Tensor:
    """Split a ``(H, W)`` mask of ids into bool ``(O, *size)`` masks, False in the padding."""
    masks = mask == torch.tensor(list(ids), device=mask.device).view(-1, 1, 1)
    return F.pad(masks, (0, size[1] - mask.shape[1], 0, size[0] - mask.shape[0]))
