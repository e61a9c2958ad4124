"""The registries of scope ``mmattn``, and which folder registers what.

mmengine imports this module by itself when a config names ``mmattn.X``, so no ``custom_imports`` is needed. It imports
mmengine alone: mmengine takes an ImportError in here for "not in the registry" and hides the cause.
"""

from importlib.util import find_spec

from mmengine import registry as mmengine_registry
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.registry import DefaultScope, Registry

# mmengine's `get_config('mmattn::…')` and `_base_ = 'mmattn::…'` look up here where the package is. A module in place
# of the distribution's name has them ask Python, which finds an editable install, too; mmengine 0.10.7 would not.
MODULE2PACKAGE['mmattn'] = 'mmattn.registry'

# How to install the package behind an import name: the maintained continuation, the original.
DISTRIBUTIONS = {
    'mmcv': ('onedl-mmcv', 'mmcv'),
    'mmseg': ('onedl-mmsegmentation', 'mmsegmentation'),
    'mmdet': ('onedl-mmdetection', 'mmdet'),
}

# folder: (the packages it needs beside mmengine and torch, the names that it registers)
FOLDERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    'mmattn.engine': (
        (),
        (
            'CPUAmpOptimWrapper',
            'InvalidLossHook',
            'CheckpointKeysHook',
            'CheckpointHook',
            'PreemptionHook',
            'InfiniteSampler',
            'DefaultSampler',
            'SeedAugmentation',
        ),
    ),
    'mmattn.layers': (
        ('mmcv',),
        (
            'BilateralNonLocal2d',
            'BilateralCrissCrossAttention',
            'BilateralMultiheadAttention',
            'LocalBilateralAttention',
            'BAConv2d',
            'DynamicConv2d',
            'TransformerAttention2d',
            'AttendedResidual',
            'GridAttention3d',
            'StridedAttention3d',
            'VideoTransformerLayer',
        ),
    ),
    'mmattn.segmentation': (
        ('mmcv', 'mmseg'),
        (
            'BiNLHead',
            'BiCCHead',
            'AttentionHead',
            'DeepLabV3PlusBAHead',
            'UNetBAHead',
            'ResNetStem',
            'SegDataCheckHook',
        ),
    ),
    'mmattn.detection': (('mmcv', 'mmdet'), ('DetDataCheckHook',)),
    'mmattn.segmentation.face_parsing': (('mmcv', 'mmseg'), ('HELENDataset', 'LFWPLDataset', 'FaceParsingMetric')),
    'mmattn.video': (
        ('mmcv',),
        (
            'SST',
            'ClipDataPreprocessor',
            'VideoFolderDataset',
            'DAVISDataset',
            'YouTubeVOSDataset',
            'SampleClip',
            'LoadClipFrames',
            'LoadClipMasks',
            'LoadGivenMasks',
            'PackClip',
            'ClipResize',
            'ClipRandomAffine',
            'ClipRandomCrop',
            'ClipRandomFlip',
            'ClipColorJitter',
            'ClipCopyPaste',
            'VOSMetric',
            'VOSVisualizationHook',
        ),
    ),
    'mmattn.visualization': ((), ('AttentionMapHook',)),
}


class FolderRegistry(Registry):
    """A registry filled by the folders of this package whose dependencies are installed.

    A missing package costs its own folder and nothing else; one that is installed but broken raises its own
    ImportError.

    Args:
        name (str): attribute of ``mmengine.registry`` that is the parent.
        *folders (str): keys of ``FOLDERS`` whose import registers modules here.
    """

    def __init__(self, name: str, *folders: str) -> None:
        parent = getattr(mmengine_registry, name)
        self._missing = {folder: [p for p in FOLDERS[folder][0] if find_spec(p) is None] for folder in folders}
        locations = [folder for folder, missing in self._missing.items() if not missing]
        super().__init__(parent.name, parent=parent, scope='mmattn', locations=locations)
        self._imported = not locations  # else mmengine looks for `mmattn.utils.register_all_modules`

    def get(self, key: str) -> type | None:
        """Return the class registered as ``key``, here or in the scope that the config is written for.

        The latter is for configs with ``_base_ = 'mmattn::…'``: mmengine builds those in the scope ``mmattn``, but
        their ``default_scope`` is mmseg or mmdet, whose ``LoadAnnotations``, say, is not mmengine's.

        Raises:
            ImportError: ``key`` lives in a folder whose dependency is not installed; the message tells how to get it.
        """
        scope, _, name = key.rpartition('.')
        for folder, missing in self._missing.items():
            if missing and scope in ('', 'mmattn') and name in FOLDERS[folder][1]:
                continued, original = (' '.join(names) for names in zip(*(DISTRIBUTIONS[p] for p in missing)))
                raise ImportError(
                    f"'mmattn.{name}' needs {' and '.join(missing)}, not installed here: "
                    f'pip install {continued} (maintained) or pip install {original} (original)'
                )
        self.import_from_location()
        if not scope and name not in self.module_dict:
            configured = [scope.scope_name for scope in reversed(DefaultScope._instance_dict.values())]
            for sibling in dict.fromkeys([*configured, 'mmseg', 'mmdet']):
                if sibling not in ('mmattn', 'mmengine') and find_spec(sibling) is not None:
                    return self.parent.get(f'{sibling}.{name}')
        return super().get(key)


MODELS = FolderRegistry('MODELS', 'mmattn.layers', 'mmattn.segmentation', 'mmattn.video')
OPTIM_WRAPPERS = FolderRegistry('OPTIM_WRAPPERS', 'mmattn.engine')
HOOKS = FolderRegistry(
    'HOOKS', 'mmattn.engine', 'mmattn.segmentation', 'mmattn.detection', 'mmattn.video', 'mmattn.visualization'
)
DATA_SAMPLERS = FolderRegistry('DATA_SAMPLERS', 'mmattn.engine')
TRANSFORMS = FolderRegistry('TRANSFORMS', 'mmattn.engine', 'mmattn.video')
DATASETS = FolderRegistry('DATASETS', 'mmattn.segmentation.face_parsing', 'mmattn.video')
METRICS = FolderRegistry('METRICS', 'mmattn.segmentation.face_parsing', 'mmattn.video')
# Nothing of ours yet, but a config with `_base_ = 'mmattn::…'` is looked up in each of them.
EVALUATOR, LOOPS, MODEL_WRAPPERS, OPTIMIZERS, PARAM_SCHEDULERS, VISBACKENDS, VISUALIZERS = map(
    FolderRegistry,
    ('EVALUATOR', 'LOOPS', 'MODEL_WRAPPERS', 'OPTIMIZERS', 'PARAM_SCHEDULERS', 'VISBACKENDS', 'VISUALIZERS'),
)
