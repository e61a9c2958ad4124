"""A segmentor that tests large images in tiles, with memory for one row of tiles."""

from collections.abc import Iterator

import torch
from mmengine.structures import PixelData
from mmseg.models.segmentors import EncoderDecoder
from mmseg.structures import SegDataSample
from torch import Tensor

from mmattn.registry import MODELS

from .tiles import join_tiles, resize_rows


@MODELS.register_module()
class TiledEncoderDecoder(EncoderDecoder):
    """mmseg's ``EncoderDecoder``, whose ``mode='slide'`` takes time and memory for large images as for small ones.

    mmseg pads the logits of each window to the size of the image, and holds several maps of all classes: time grows
    with the square of the number of pixels. Here, a window costs the same in any image, and the labels are computed
    row by row. They are the same. Samples have ``pred_sem_seg``, int16 ``(1, H, W)``, and no ``seg_logits``. With
    flips, as test-time augmentation needs them here, samples are those of ``EncoderDecoder``. For an augmentation
    without flips, set ``model.type='EncoderDecoder'``, which has the same weights.

    Args:
        test_cfg (dict): ``mode='slide'``, ``crop_size`` and ``stride``, each height and width, as in mmseg.
        **kwargs: arguments of ``EncoderDecoder``.

    Example:
        >>> from mmattn.registry import MODELS
        >>> windows = dict(mode='slide', crop_size=(512, 512), stride=(341, 341))
        >>> model = dict(type='mmattn.TiledEncoderDecoder', test_cfg=windows)  # in a config
    """

    def slide_inference(self, inputs: Tensor, batch_img_metas: list[dict]) -> Tensor:
        """Return the logits of whole images, ``(N, classes, H, W)``."""
        return torch.stack([torch.cat([*self._rows(image, batch_img_metas)], 1) for image in inputs])

    def predict(self, inputs: Tensor, data_samples: list[SegDataSample] | None = None) -> list[SegDataSample]:
        """Segment a batch, see mmseg's ``BaseSegmentor``."""
        kept = {'flip', 'padding_size', 'img_padding_size'}  # mmseg undoes them on the logits
        whole = self.test_cfg.get('mode') != 'slide'
        if whole or data_samples is None or any(kept & {*sample.metainfo} for sample in data_samples):
            return super().predict(inputs, data_samples)
        for image, sample in zip(inputs, data_samples):
            shape = sample.ori_shape
            labels = torch.empty(1, *shape, dtype=torch.int16, device=inputs.device)  # metrics also write -1 there
            rows, top = self._rows(image, [sample.metainfo]), 0
            for logits in resize_rows(rows, image.shape[1:], shape, self.align_corners, self.test_cfg.crop_size[0]):
                labels[0, top : top + logits.shape[1]] = (
                    logits.argmax(0) if len(logits) > 1 else logits[0].sigmoid() > self.decode_head.threshold
                )
                top += logits.shape[1]
            sample.pred_sem_seg = PixelData(data=labels)
        return data_samples

    def _rows(self, image: Tensor, metas: list[dict]) -> Iterator[Tensor]:
        size, stride = self.test_cfg.crop_size, self.test_cfg.stride

        def forward(tiles: list[Tensor]) -> Tensor:
            return self.encode_decode(tiles[0][None], [dict(metas[0], img_shape=tiles[0].shape[1:])])

        return join_tiles(forward, image, self.out_channels, image.device, size, stride)
