"""Semi-supervised video object segmentation: follow objects, each given by one mask. Needs only mmengine and mmcv.

Configs name the components below, which load on first use. Imports ``engine``, ``visualization``, ``registry.py`` and
``utils``, and no other task. Start with ``session.py``, which follows objects through a clip, and ``sst.py``, the
network that it asks; ``datasets.py`` and ``loading.py`` feed the training, and ``inferencer.py`` reads clips for both.
"""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'aggregation': 'aggregate',
        'frame_files': 'read_frame',
        'clip_readers': 'write_frame',
        'data_preprocessor': 'ClipDataPreprocessor',
        'datasets': 'DAVISDataset VideoFolderDataset YouTubeVOSDataset',
        'expand_mask_project': 'AppearanceModel ExpandMaskProject shrink_masks',
        'inferencer': 'VOSInferencer',
        'label_propagation': 'LabelPropagation',
        'loading': 'LoadClipFrames LoadClipMasks LoadGivenMasks PackClip SampleClip',
        'masks': 'PALETTE draw_overlay object_ids read_mask write_mask',
        'metric': 'VOSMetric',
        'session': 'ClipSession Frame',
        'sst': 'SST',
        'transforms': 'ClipColorJitter ClipCopyPaste ClipRandomAffine ClipRandomCrop ClipRandomFlip ClipResize',
        'visualization_hook': 'VOSVisualizationHook',
    },
)
