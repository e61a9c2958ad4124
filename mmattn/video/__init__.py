"""Semi-supervised video object segmentation: follow objects, each given by one mask, through a clip.

Requires only mmengine and mmcv.
"""

from .aggregation import aggregate
from .clip_files import read_frame
from .data_preprocessor import ClipDataPreprocessor
from .datasets import DAVISDataset, VideoFolderDataset, YouTubeVOSDataset
from .expand_mask_project import AppearanceModel, ExpandMaskProject, shrink_masks
from .inferencer import VOSInferencer
from .label_propagation import LabelPropagation
from .loading import LoadClipFrames, LoadClipMasks, LoadGivenMasks, PackClip, SampleClip
from .masks import PALETTE, object_ids, read_mask, write_mask
from .metric import VOSMetric
from .overlay import draw_overlay
from .session import ClipSession, Frame
from .sst import SST
from .transforms import ClipColorJitter, ClipCopyPaste, ClipRandomAffine, ClipRandomCrop, ClipRandomFlip, ClipResize
from .visualization_hook import VOSVisualizationHook

__all__ = [
    'PALETTE',
    'SST',
    'AppearanceModel',
    'ClipColorJitter',
    'ClipCopyPaste',
    'ClipDataPreprocessor',
    'ClipRandomAffine',
    'ClipRandomCrop',
    'ClipRandomFlip',
    'ClipResize',
    'ClipSession',
    'DAVISDataset',
    'ExpandMaskProject',
    'Frame',
    'LabelPropagation',
    'LoadClipFrames',
    'LoadClipMasks',
    'LoadGivenMasks',
    'PackClip',
    'SampleClip',
    'VOSInferencer',
    'VOSMetric',
    'VOSVisualizationHook',
    'VideoFolderDataset',
    'YouTubeVOSDataset',
    'aggregate',
    'draw_overlay',
    'object_ids',
    'read_frame',
    'read_mask',
    'shrink_masks',
    'write_mask',
]
