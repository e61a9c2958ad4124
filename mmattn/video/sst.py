"""Sparse spatiotemporal transformers (SST), chapter 5 of the thesis: all frames of a clip in one feed-forward pass."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from mmengine.structures import BaseDataElement, PixelData
from torch import Tensor
from torch.nn import functional as F

from mmattn.registry import MODELS

from .expand_mask_project import shrink_masks
from .masks import VOID
from .network import SSTNetwork
from .session import ClipSession

SAMPLINGS = ('dense', 'sparse')


@MODELS.register_module()
class SST(SSTNetwork):
    """Follow objects, given by a mask each, through a clip: an encoder of the video, a decoder of each object.

    The network, and how it works, is :class:`~mmattn.video.network.SSTNetwork`.

    Args:
        *args: as in :class:`~mmattn.video.network.SSTNetwork`.
        dice_weight (float): of a second loss, 1 less the soft Dice coefficient of each object in each frame, which
            small objects feel as much as large ones. Defaults to 0: cross-entropy alone.
        test_cfg (dict, optional):

            * ``scale`` (tuple[int, int]): width and height of frames for the network, as in ``ClipResize``; those of
              the files by default;
            * ``max_frames`` (int): of a clip that attention sees at once, reference frames among them, at least 2; a
              longer clip goes through in parts. All by default ("dense evaluation", Table 5.4);
            * ``sampling`` (str): parts are 'dense', consecutive frames, or 'sparse', frames from all over the clip.
              Defaults to 'dense'.
        **kwargs: as in :class:`~mmattn.video.network.SSTNetwork`.

    Raises:
        ValueError: an unknown option.
    """

    def __init__(self, *args, dice_weight: float = 0.0, test_cfg: dict | None = None, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.dice_weight = dice_weight
        self.test_cfg = _checked(test_cfg or {})

    def forward(self, inputs: Any, data_samples: list[BaseDataElement], mode: str = 'tensor') -> Any:
        """Run the model.

        Args:
            inputs (Tensor, optional): float ``(B, T, 3, H, W)``; 'predict' takes the frames of the samples.
            data_samples (list of BaseDataElement): as ``PackClip`` makes them.
            mode (str): 'loss' (a dict of losses), 'predict' (the samples, with ``pred_masks``) or 'tensor' (a list of
                float ``(O, 2, T, H, W)``, the logits of background and foreground of a clip's objects).

        Raises:
            ValueError: an unknown ``mode``.
        """
        if mode == 'loss':
            return self.loss(inputs, data_samples)
        if mode == 'predict':
            return self.predict(data_samples)
        if mode == 'tensor':
            return self._clip_logits(inputs, data_samples)
        raise ValueError(f"mode must be 'loss', 'predict' or 'tensor'; got {mode!r}")

    def loss(self, inputs: Tensor, data_samples: list[BaseDataElement]) -> dict[str, Tensor]:
        """Return ``loss_mask``, the cross-entropy of each object against its background, the mean over objects.

        With ``dice_weight``, also ``loss_dice``. The reference frame, whose mask is given, does not count, unless it is
        the only one; nor do pixels of 255 in ``gt_masks``. ``acc_iou`` is the share of each object's pixels, found or
        true, that are both, in percent.
        """
        cross_entropies, dices, ious = [], [], []
        for logits, sample in zip(self._clip_logits(inputs, data_samples), data_samples):
            truth = sample.gt_masks.data.to(logits.device)
            start = int(len(truth) > 1)
            truth, (height, width) = truth[start:], truth.shape[-2:]
            counts = truth != VOID
            for i, scores in zip(sample.first_frames, logits[:, :, start:, :height, :width].float()):
                there = truth == i  # (T, H, W)
                target = torch.where(counts, there.long(), VOID)
                cross_entropies.append(F.cross_entropy(scores.unsqueeze(0), target.unsqueeze(0), ignore_index=VOID))
                found = scores.softmax(0)[1] * counts
                both, either = (found * there).sum((1, 2)), (found + there).sum((1, 2))
                dices.append((1 - (2 * both + 1) / (either + 1)).mean())
                found = found > 0.5
                ious.append((found & there).sum() / (found | there).sum().clamp(min=1))
        losses = dict(loss_mask=torch.stack(cross_entropies).mean())
        if self.dice_weight:
            losses['loss_dice'] = self.dice_weight * torch.stack(dices).mean()
        return dict(losses, acc_iou=100 * torch.stack(ious).mean())

    @torch.no_grad()
    def predict(self, data_samples: list[BaseDataElement]) -> list[BaseDataElement]:
        """Add ``pred_masks`` to the samples of whole clips: ``data``, uint8 ``(T, H, W)``, ids in the files' size.

        A frame is taken from ``frames`` when it is needed; no more than ``max_frames`` and one are held at a time.

        Raises:
            FileNotFoundError, ValueError: a frame cannot be read, or is not of the masks' size; it is named.
        """
        for sample in data_samples:
            session = ClipSession(self, **self.test_cfg)
            sample.pred_masks = PixelData(data=torch.from_numpy(session.segment_clip(sample)))
        return data_samples

    def _clip_logits(self, inputs: Tensor, data_samples: list[BaseDataElement]) -> list[Tensor]:
        """Return the logits ``(O, 2, T, H, W)`` of each clip's objects, whose reference is the first frame."""
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
    """Return bool ``(O, *size)`` masks of the ids in ``(H, W)``, nothing where frames are padded to ``size``."""
    masks = mask == torch.tensor(list(ids), device=mask.device).view(-1, 1, 1)
    return F.pad(masks, (0, size[1] - mask.shape[1], 0, size[0] - mask.shape[0]))


def _checked(test_cfg: dict) -> dict:
    unknown = set(test_cfg) - {'scale', 'max_frames', 'sampling'}
    if unknown:
        raise ValueError(f'test_cfg takes scale, max_frames and sampling; got {sorted(unknown)}')
    if test_cfg.get('sampling', 'dense') not in SAMPLINGS:
        raise ValueError(f'test_cfg.sampling must be one of {SAMPLINGS}; got {test_cfg["sampling"]!r}')
    if test_cfg.get('max_frames') is not None and test_cfg['max_frames'] < 2:
        raise ValueError(
            f'test_cfg.max_frames must be at least 2, a reference frame and another; got {test_cfg["max_frames"]}'
        )
    return dict(test_cfg)
