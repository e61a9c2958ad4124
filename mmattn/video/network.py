"""The network of sparse spatiotemporal transformers: features of frames, one stream per object, logits."""

from collections.abc import Sequence
from typing import Any

import torch
from mmcv.cnn import ConvModule
from mmengine.model import BaseModel
from torch import Tensor, nn
from torch.nn import functional as F

from mmattn.registry import MODELS

from .aggregation import AGGREGATIONS
from .expand_mask_project import AppearanceModel, ExpandMaskProject


def backbone_maps(backbone: nn.Module, frames: Tensor) -> Sequence[Tensor]:
    """Compute the maps of a backbone. Some, such as mmseg's MobileNetV2, return a single map without a tuple."""
    maps = backbone(frames)
    return (maps,) if isinstance(maps, Tensor) else maps


class SSTNetwork(BaseModel):
    """Compute the layers of :class:`~mmattn.video.SST`. Subclasses define ``forward``.

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
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor or dict(type='mmattn.ClipDataPreprocessor'), init_cfg)
        if query not in ('video', 'object'):
            raise ValueError(f"query must be 'video' or 'object'; got {query!r}")
        if aggregation not in AGGREGATIONS:
            raise ValueError(f'aggregation must be one of {AGGREGATIONS}; got {aggregation!r}')
        self.aggregation = aggregation
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
        """Follow objects through clips: all at once in training, one by one in inference to save memory.

        Args:
            features (Tensor): ``(B, T, h, w, C)``, from :meth:`extract_feat`.
            frame_numbers (Tensor): int64 ``(B, T)``, counted from the reference frame.
            reference (Tensor): ``(O, h, w, C)``, features of each object's reference frame.
            masks (Tensor): float ``(O, h, w)``, each object's mask in its reference frame, see :func:`shrink_masks`.
            clip (Tensor): int64 ``(O)``, index of each object's clip, 0 to B − 1.

        Returns:
            Tensor: ``(O, T, h, w, C)``, for :meth:`head`.
        """
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
        """Compute the logits of background and foreground, ``(N, 2, *size)``.

        Args:
            stream (Tensor): ``(N, h, w, C)``, an object's stream in N frames.
            fine (Tensor, optional): ``(N, C', H/4, W/4)``, the second result of :meth:`extract_feat` for these frames.
            size (sequence of int): height and width of the padded frames.
        """
        x = stream.permute(0, 3, 1, 2)
        if self.refinement is not None and fine is not None:
            x = F.interpolate(x, fine.shape[-2:], mode='bilinear', align_corners=False)
            x = self.refinement(torch.cat([x, fine.to(x.dtype)], 1))
        return F.interpolate(self.score(x), tuple(size), mode='bilinear', align_corners=False)
