"""Sparse spatiotemporal transformers (SST), chapter 5 of the thesis: all frames of a clip in one forward pass."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from mmcv.cnn import ConvModule
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.nn import functional as F

from mmattn.registry import MODELS
from mmattn.utils.checks import check_choice

from .aggregation import AGGREGATIONS
from .backbone_weights import backbone_maps
from .expand_mask_project import AppearanceModel, ExpandMaskProject, shrink_masks
from .masks import VOID
from .session import check_settings, segment_clips


@MODELS.register_module()
class SST(BaseModel):
    """Follow objects through a clip, given one mask per object: an encoder of the video, a decoder of objects.

    Source: *Attention and Fusion of Deep Representations for Computer Vision*, master's thesis, University of Guelph,
    2020, chapter 5.

    A 2-D backbone processes each frame separately. The self-attention of the encoder turns the features into the video
    stream. The stream of an object starts as the features of its reference frame after Expand-Mask-Project, repeated
    for every frame. The cross-attention of the decoder warps it to the other frames with the help of the video stream.
    A final convolution separates the object from its background.

    Args:
        backbone (dict): config of a 2-D backbone of any registry. Its last output, at stride 8, is used.
        in_channels (int): channels of the backbone's last output.
        embed_dims (int): C, channels of the streams. Defaults to 128.
        attention (dict): config of the attention layers. Defaults to ``mmattn.GridAttention3d`` with 8 heads.
        encoder_layers, decoder_layers (int): number of layers. Default to 3.
        query (str): which stream provides the queries of the decoder's cross-attention: 'video' (the signature in
            section 5.3, Eq. 5.5) or 'object' (the text below Eq. 5.1). Defaults to 'video'.
        feedforward_channels (int, optional): width of the feed-forward networks. Defaults to 4 · C.
        dropout (float): dropout probability. Defaults to 0.
        appearance (bool): add the log-probability of an appearance model (Eq. 5.8) as a channel of the video. Every
            object then has a video stream. Defaults to False.
        refine_channels (int, optional): channels of the backbone's first output, at stride 4, which refines the streams
            before the final convolution. Defaults to None: no refinement, logits at stride 8.
        norm_cfg (dict): norm of the refinement. Defaults to GroupNorm, which does not mix objects.
        aggregation (str): how probabilities are combined, see :func:`~mmattn.video.aggregate`. Defaults to 'soft'.
        data_preprocessor (dict, optional): config. Defaults to :class:`~mmattn.video.ClipDataPreprocessor`.
        init_cfg (dict, optional): as in mmengine.
        binary_masks (bool): reference masks are 1 in cells of which an object has half or more, else 0, as M in the
            thesis, and α of Eq. 5.8. Defaults to False: the object's shares in the cells.
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

    uses_previous = False  # see ClipNetwork

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
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
        dice_weight: float = 0.0,
        test_cfg: dict | None = None,
        binary_masks: bool = False,
    ) -> None:
        super().__init__(data_preprocessor or dict(type='mmattn.ClipDataPreprocessor'), init_cfg)
        check_choice('query', query, ('video', 'object'))
        check_choice('aggregation', aggregation, AGGREGATIONS)
        self.aggregation, self.dice_weight = aggregation, dice_weight
        self.binary_masks = binary_masks
        self.test_cfg = check_settings(test_cfg or {})
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

    def extract_feat(self, frames: Tensor) -> tuple[Tensor, Tensor | None]:
        """Extract features from normalised frames, float ``(N, 3, H, W)``.

        The results are ``(N, h, w, C)`` at stride 8, and ``(N, C', H/4, W/4)`` with refinement, otherwise None.
        """
        outs = backbone_maps(self.backbone, frames)
        features = self.projection(outs[-1]).permute(0, 2, 3, 1)
        return features, outs[0] if self.refinement is not None else None

    def object_streams(
        self, features: Tensor, frame_numbers: Tensor, reference: Tensor, masks: Tensor, clip: Tensor
    ) -> Tensor:
        """Follow objects through clips, ``(O, T, h, w, C)``. Arguments are as in ``ClipNetwork``.

        All at once in training, one by one in inference to save memory.
        """
        if self.binary_masks:
            masks = (masks >= 0.5).to(masks.dtype)
        video = self._encode(features, frame_numbers) if self.appearance is None else None
        streams = []
        for some in [slice(None)] if torch.is_grad_enabled() else range(len(clip)):
            x, m, b = (y[some].view(-1, *y.shape[1:]) for y in (reference, masks, clip))
            if self.appearance is not None:  # a video stream for each object
                with_appearance = torch.cat([features[b], self.appearance(features[b], x, m)], -1)
                memory = self._encode(self.appearance_projection(with_appearance), frame_numbers[b])
            else:
                memory = video[b]  # type: ignore[index]
            stream = self.expand_mask_project(x, m).unsqueeze(1).expand_as(memory)
            for layer in self.decoder:
                stream = layer(stream, memory, frame_numbers[b])
            streams.append(self.decoder_norm(stream))
        return torch.cat(streams)

    def _encode(self, features: Tensor, frame_numbers: Tensor) -> Tensor:
        for layer in self.encoder:
            features = layer(features, frame_numbers=frame_numbers)
        return self.encoder_norm(features)

    def head(self, stream: Tensor, fine: Tensor | None, size: Sequence[int]) -> Tensor:
        """Compute the logits of background and foreground, ``(N, 2, *size)``, of a stream ``(N, h, w, C)``.

        ``fine`` is the second result of :meth:`extract_feat` for these frames, and ``size`` that of the padded frames.
        """
        x = stream.permute(0, 3, 1, 2)
        if self.refinement is not None and fine is not None:
            x = F.interpolate(x, fine.shape[-2:], mode='bilinear', align_corners=False)
            x = self.refinement(torch.cat([x, fine.to(x.dtype)], 1))
        return F.interpolate(self.score(x), tuple(size), mode='bilinear', align_corners=False)

    def _clip_logits(self, inputs: Tensor, data_samples: list[BaseDataElement]) -> list[Tensor]:
        batch, frames = inputs.shape[:2]
        features, fine = self.extract_feat(inputs.flatten(0, 1))
        features = features.unflatten(0, (batch, frames))
        counts = [len(sample.first_frames) for sample in data_samples]
        # A tensor that is copied without `non_blocking`, or repeats whose number is on a GPU, would wait for its queue.
        clip = torch.arange(batch).repeat_interleave(torch.tensor(counts)).to(inputs.device, non_blocking=True)
        numbers = torch.tensor([sample.frame_numbers for sample in data_samples]).to(inputs.device, non_blocking=True)
        masks = torch.cat(
            [
                object_masks(
                    sample.given[0].to(inputs.device, non_blocking=True), sample.first_frames, inputs.shape[-2:]
                )
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
    masks = mask == torch.tensor(list(ids)).to(mask.device, non_blocking=True).view(-1, 1, 1)
    return F.pad(masks, (0, size[1] - mask.shape[1], 0, size[0] - mask.shape[0]))
