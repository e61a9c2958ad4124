"""Sparse spatiotemporal transformers (SST), chapter 5 of the thesis: all frames of a clip in one feed-forward pass."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from mmcv.cnn import ConvModule
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement, PixelData
from torch import Tensor, nn
from torch.nn import functional as F

from mmattn.registry import MODELS

from .aggregation import AGGREGATIONS
from .expand_mask_project import AppearanceModel, ExpandMaskProject, shrink_masks
from .masks import VOID
from .session import ClipSession

SAMPLINGS = ('dense', 'sparse')


@MODELS.register_module()
class SST(BaseModel):
    """Follow objects, given by a mask each, through a clip: an encoder of the video, a decoder of each object.

    A 2-D backbone sees each frame by itself. The encoder's self-attention makes of its features the video stream. Each
    object's stream is its reference frame's features after Expand-Mask-Project, repeated for every frame; the decoder's
    cross-attention with the video stream warps it, and a last convolution tells the object from its background.

    Args:
        backbone (dict): config of a 2-D backbone of any registry; its last output, of stride 8, is what is used.
        in_channels (int): channels of that output.
        embed_dims (int): C, channels of the streams. Defaults to 128.
        attention (dict): config of the attention layers. Defaults to ``mmattn.GridAttention3d`` with 8 heads.
        encoder_layers, decoder_layers (int): Default to 3.
        query (str): what asks in the decoder's cross-attention, 'video' (the signature of section 5.3, Eq. 5.5) or
            'object' (the text under Eq. 5.1). Defaults to 'video'.
        feedforward_channels (int, optional): width of the feed-forward networks. Defaults to 4 · C.
        dropout (float): Defaults to 0.
        appearance (bool): an appearance model's log-probability (Eq. 5.8) as one more channel of the video; each object
            has a video stream of its own then. Defaults to False.
        refine_channels (int, optional): channels of the backbone's first output, of stride 4, with which the last
            convolution refines. Defaults to None: it works at stride 8.
        norm_cfg (dict): norm of the refinement. Defaults to GroupNorm, which does not mix objects.
        aggregation (str): how objects share the pixels, see :func:`~mmattn.video.aggregation.aggregate`. Defaults to
            'soft'.
        dice_weight (float): of a second loss, 1 less the soft Dice coefficient of each object in each frame, which
            small objects feel as much as large ones. Defaults to 0: cross-entropy alone.
        test_cfg (dict, optional):

            * ``scale`` (tuple[int, int]): width and height of frames for the network, as in ``ClipResize``; those of
              the files by default;
            * ``max_frames`` (int): of a clip that attention sees at once, reference frames among them, at least 2; a
              longer clip goes through in parts. All by default ("dense evaluation", Table 5.4);
            * ``sampling`` (str): parts are 'dense', consecutive frames, or 'sparse', frames from all over the clip.
              Defaults to 'dense'.
        data_preprocessor (dict, optional): Defaults to :class:`~mmattn.video.ClipDataPreprocessor`.
        init_cfg (dict, optional): as in mmengine.

    Raises:
        ValueError: an unknown option.
    """

    def __init__(
        self,
        backbone: dict,
        in_channels: int,
        embed_dims: int = 128,
        attention: dict = dict(type='mmattn.GridAttention3d', num_heads=8),
        encoder_layers: int = 3,
        decoder_layers: int = 3,
        query: str = 'video',
        feedforward_channels: int | None = None,
        dropout: float = 0.0,
        appearance: bool = False,
        refine_channels: int | None = None,
        norm_cfg: dict = dict(type='GN', num_groups=32),
        aggregation: str = 'soft',
        dice_weight: float = 0.0,
        test_cfg: dict | None = None,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor or dict(type='mmattn.ClipDataPreprocessor'), init_cfg)
        if query not in ('video', 'object'):
            raise ValueError(f"query must be 'video' or 'object'; got {query!r}")
        if aggregation not in AGGREGATIONS:
            raise ValueError(f'aggregation must be one of {AGGREGATIONS}; got {aggregation!r}')
        self.aggregation = aggregation
        self.dice_weight = dice_weight
        self.test_cfg = _checked(test_cfg or {})
        self.backbone = MODELS.build(backbone)
        self.projection = nn.Conv2d(in_channels, embed_dims, 1)
        layer: dict[str, Any] = dict(
            type='mmattn.VideoTransformerLayer',
            embed_dims=embed_dims,
            attention=attention,
            dropout=dropout,
            feedforward_channels=feedforward_channels,
            query='memory' if query == 'video' else 'x',
        )
        self.encoder, self.decoder = (
            nn.ModuleList(MODELS.build(layer) for _ in range(count)) for count in (encoder_layers, decoder_layers)
        )
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(embed_dims), nn.LayerNorm(embed_dims)
        self.expand_mask_project = ExpandMaskProject(embed_dims)
        self.appearance: nn.Module | None = None
        if appearance:
            self.appearance = AppearanceModel(embed_dims)
            self.appearance_projection = nn.Linear(embed_dims + 1, embed_dims)
        self.refinement: nn.Module | None = None
        if refine_channels is not None:
            self.refinement = ConvModule(embed_dims + refine_channels, embed_dims, 3, padding=1, norm_cfg=norm_cfg)
        self.score = nn.Conv2d(embed_dims, 2, 1)  # background, foreground

    def forward(self, inputs: Any, data_samples: list[BaseDataElement], mode: str = 'tensor') -> Any:
        """Run the model.

        Args:
            inputs (Tensor, optional): float ``(B, T, 3, H, W)``; 'predict' reads the files itself.
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

        The frames are read from ``frame_paths`` as they are needed.

        Raises:
            FileNotFoundError, ValueError: a frame cannot be read, or is not of the masks' size; it is named.
        """
        for sample in data_samples:
            session = ClipSession(self, **self.test_cfg)
            sample.pred_masks = PixelData(data=torch.from_numpy(session.segment_files(sample)))
        return data_samples

    def extract_feat(self, frames: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the features of normalised frames.

        Args:
            frames (Tensor): float ``(N, 3, H, W)``.

        Returns:
            tuple[Tensor, Tensor | None]: ``(N, h, w, C)`` of stride 8; with refinement, ``(N, C', H/4, W/4)``.
        """
        outs = self.backbone(frames)
        features = self.projection(outs[-1]).permute(0, 2, 3, 1)
        return features, outs[0] if self.refinement is not None else None

    def object_streams(
        self, features: Tensor, frame_numbers: Tensor, reference: Tensor, masks: Tensor, clip: Tensor
    ) -> Tensor:
        """Follow objects through clips, at once in training, else one after the other, which takes less memory.

        Args:
            features (Tensor): ``(B, T, h, w, C)`` of :meth:`extract_feat`.
            frame_numbers (Tensor): int64 ``(B, T)``.
            reference (Tensor): ``(O, h, w, C)``, features of each object's reference frame.
            masks (Tensor): float ``(O, h, w)``, its mask there, see :func:`shrink_masks`.
            clip (Tensor): int64 ``(O)``, which of the B clips it is in.

        Returns:
            Tensor: ``(O, T, h, w, C)``, for :meth:`head`.
        """
        video = self._encode(features, frame_numbers) if self.appearance is None else None
        streams = []
        for some in [slice(None)] if torch.is_grad_enabled() else range(len(clip)):
            x, m, b = (y[some].view(-1, *y.shape[1:]) for y in (reference, masks, clip))
            if self.appearance is not None:  # a video stream for each object
                own = features[b]
                own = self.appearance_projection(torch.cat([own, self.appearance(own, x, m)], -1))
                memory = self._encode(own, frame_numbers[b])
            else:
                memory = video[b]  # type: ignore[index]
            stream = self.expand_mask_project(x, m).unsqueeze(1).expand_as(memory)
            for layer in self.decoder:
                stream = layer(stream, memory, frame_numbers[b])
            streams.append(self.decoder_norm(stream))
        return torch.cat(streams)

    def _encode(self, features: Tensor, frame_numbers: Tensor) -> Tensor:
        """Add temporal context: the video stream, ``(B, T, h, w, C)``."""
        for layer in self.encoder:
            features = layer(features, frame_numbers=frame_numbers)
        return self.encoder_norm(features)

    def head(self, stream: Tensor, fine: Tensor | None, size: Sequence[int]) -> Tensor:
        """Return the logits of background and foreground.

        Args:
            stream (Tensor): ``(N, h, w, C)``, the object's in N frames.
            fine (Tensor, optional): ``(N, C', H/4, W/4)``, those frames' of :meth:`extract_feat`.
            size (sequence of int): of the padded frames.

        Returns:
            Tensor: ``(N, 2, *size)``.
        """
        x = stream.permute(0, 3, 1, 2)
        if self.refinement is not None and fine is not None:
            x = F.interpolate(x, fine.shape[-2:], mode='bilinear', align_corners=False)
            x = self.refinement(torch.cat([x, fine.to(x.dtype)], 1))
        return F.interpolate(self.score(x), tuple(size), mode='bilinear', align_corners=False)

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
