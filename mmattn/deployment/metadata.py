"""Metadata for a runtime without mmseg: how images become the input of a network, and what its labels mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from mmengine.config import Config

from mmattn.utils.component_type import inner_data_sets, type_name

if TYPE_CHECKING:
    from mmseg.models.segmentors import EncoderDecoder

KEY = 'mmattn'  # of the JSON text in the file's metadata
LOADERS = ('LoadImageFromFile', 'LoadAnnotations', 'PackSegInputs', 'Resize')


def describe_network(cfg: Config, segmentor: EncoderDecoder) -> dict[str, Any]:
    """Describe the preprocessing of the config's test images, and the classes, for the metadata of a file.

    Args:
        cfg (Config): a config of mmseg, with ``test_dataloader``; of several data sets, the first one counts. Its data
            preprocessor normalises three channels.
        segmentor (EncoderDecoder): the model, with ``dataset_meta``.

    Returns:
        dict: 'classes', and their 'palette' in RGB. 'threshold' of the sigmoid of a single logit, or None.
            'align_corners', for resizing logits. 'channel_order', 'RGB' or 'BGR', and 'mean' and 'std' in that order.
            'resize', None or a dict with 'scale' (width and height) or 'scale_factor', and 'keep_ratio'. 'size_divisor'
            of the sides after padding at the bottom and on the right, and 'pad_value' after normalisation. 'mode',
            'whole' or 'slide' as in the config, with 'slide' also 'crop_size' and 'stride', height and width.
            'not_described', all transforms of the pipeline that the other entries do not describe.
    """
    settings, preprocessor = cfg.model.data_preprocessor, segmentor.data_preprocessor
    mean, std = (getattr(preprocessor, name, torch.full((3,), value)) for name, value in (('mean', 0.0), ('std', 1.0)))
    if mean.numel() != 3:
        raise ValueError(f'model.data_preprocessor must normalise 3 channels; it normalises {mean.numel()}')
    pipeline = inner_data_sets(cfg.test_dataloader.dataset)[0].pipeline
    names = [*map(type_name, pipeline)]
    resizes = [transform for name, transform in zip(names, pipeline) if name == 'Resize']
    not_described = [name for name in names if name not in LOADERS]
    not_described += ['color_type' for transform in pipeline if transform.get('color_type', 'color') != 'color']
    not_described += ['Resize' for transform in resizes[1:]]
    not_described += ['interpolation' for resize in resizes if resize.get('interpolation', 'bilinear') != 'bilinear']
    padding = preprocessor.test_cfg or {}
    not_described += ['padding to test_cfg.size'] if padding.get('size') is not None else []
    resize = dict(resizes[0]) if resizes else {}
    scale, factor = (_pair(resize.get(key)) for key in ('scale', 'scale_factor'))
    swaps = settings.get('bgr_to_rgb') or settings.get('rgb_to_bgr')
    test_cfg = segmentor.test_cfg
    mode = test_cfg.get('mode', 'whole')
    window = {key: list(test_cfg[key]) for key in ('crop_size', 'stride')} if mode == 'slide' else {}
    return dict(
        classes=list(segmentor.dataset_meta['classes']),
        palette=[list(map(int, colour)) for colour in segmentor.dataset_meta['palette']],
        threshold=segmentor.decode_head.threshold if segmentor.out_channels == 1 else None,
        align_corners=bool(segmentor.align_corners),
        channel_order='RGB' if swaps else 'BGR',  # mmcv loads BGR
        mean=mean.flatten().float().tolist(),
        std=std.flatten().float().tolist(),
        resize=dict(scale=scale, scale_factor=factor, keep_ratio=resize.get('keep_ratio', False)) if resize else None,
        size_divisor=padding.get('size_divisor') or 1,
        pad_value=float(preprocessor.pad_val),
        mode=mode,
        not_described=not_described,
        **window,
    )


def _pair(value: Any) -> list | None:
    return None if value is None else [value, value] if isinstance(value, int | float) else list(value)
