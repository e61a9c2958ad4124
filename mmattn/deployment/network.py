"""The part of a segmentor that is exported: from the normalised image to logits of its size."""

from mmengine.config import Config
from mmseg.models.segmentors import EncoderDecoder
from mmseg.models.utils import resize
from mmseg.registry import MODELS
from torch import Tensor, nn

from mmattn.utils.component_type import component_class


class LogitsNetwork(nn.Module):
    """The network of a segmentor, with its logits resized to the size of the image.

    mmseg runs it on a whole image or on one window, between the data preprocessor and the removal of padding. It maps
    normalised images, float32 ``(B, 3, H, W)``, to logits ``(B, classes, H, W)``, before softmax or sigmoid.

    Args:
        segmentor (EncoderDecoder): a segmentor of mmseg. Its auxiliary heads are not used.

    Example:
        >>> from mmseg.registry import MODELS
        >>> backbone = dict(type='mmseg.ResNet', depth=18, base_channels=8, stem_channels=8)
        >>> head = dict(type='mmattn.BiCCHead', in_channels=64, in_index=3, channels=8, num_classes=3, window_size=5)
        >>> segmentor = MODELS.build(dict(type='mmseg.EncoderDecoder', backbone=backbone, decode_head=head))
        >>> LogitsNetwork(segmentor).eval()(torch.zeros(1, 3, 64, 96)).shape
        torch.Size([1, 3, 64, 96])
    """

    def __init__(self, segmentor: EncoderDecoder) -> None:
        super().__init__()
        self.segmentor = segmentor

    def forward(self, image: Tensor) -> Tensor:
        """Compute the logits of normalised images."""
        logits = self.segmentor(image, mode='tensor')
        logits = logits[0] if isinstance(logits, tuple) else logits  # DANet's and EncNet's add what losses need
        corners = self.segmentor.align_corners
        return resize(logits, size=image.shape[2:], mode='bilinear', align_corners=corners, warning=False)


def load_segmentor(cfg: Config, checkpoint: str) -> EncoderDecoder:
    """Build the segmentor of a config on the CPU, and load its weights, classes and palette.

    Args:
        cfg (Config): a config of mmseg, whose model is an ``EncoderDecoder``.
        checkpoint (str): path or URL of the checkpoint. It raises the errors of ``SegmentationInferencer``.

    Returns:
        EncoderDecoder: in evaluation mode, with ``dataset_meta``.
    """
    from mmattn.segmentation.inferencer import SegmentationInferencer

    kind = component_class(cfg.model, MODELS)
    if not (isinstance(kind, type) and issubclass(kind, EncoderDecoder)):
        raise ValueError(
            f'only segmentors (EncoderDecoder of mmseg) can be exported; model.type is {cfg.model.type!r}. '
            'docs/deployment.md describes what works for detectors and for video'
        )
    return SegmentationInferencer(cfg, checkpoint, device='cpu', show_progress=False).model
