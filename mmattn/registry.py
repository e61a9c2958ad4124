"""The registries of scope ``mmattn``, and which folder registers which name.

mmengine imports this module by itself when a config names ``mmattn.X``, so no ``custom_imports`` is needed. It imports
mmengine alone: mmengine takes an ImportError in here for "not in the registry" and hides the cause.
"""

from importlib import import_module
from importlib.util import find_spec

from mmengine import registry as mmengine_registry
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.registry import Registry

from ._compat import default_scopes

# mmengine's `get_config('mmattn::…')` and `_base_ = 'mmattn::…'` look up here where the package is. A module in place
# of the distribution's name has them ask Python, which finds an editable install, too; mmengine 0.10.7 would not.
MODULE2PACKAGE['mmattn'] = 'mmattn.registry'

# How to install the package behind an import name: the maintained continuation, the original.
DISTRIBUTIONS = {
    'mmcv': ('onedl-mmcv', 'mmcv'),
    'mmseg': ('onedl-mmsegmentation', 'mmsegmentation'),
    'mmdet': ('onedl-mmdetection', 'mmdet'),
}

# folder: (the packages that it needs in addition to mmengine and torch, the names that it registers)
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
FOLDER_OF = {name: folder for folder, (_, names) in FOLDERS.items() for name in names}


def _missing(folder: str) -> list[str]:
    """Return the packages that a folder needs and that are not installed."""
    return [package for package in FOLDERS[folder][0] if find_spec(package) is None]


class FolderRegistry(Registry):
    """A registry that imports the folder of a name when the name is first looked up.

    The other folders are not imported. A missing package affects the folders that need it and nothing else. A package
    that is installed but broken raises its own ImportError.

    Args:
        name (str): attribute of ``mmengine.registry`` that is the parent.
    """

    def __init__(self, name: str) -> None:
        parent = getattr(mmengine_registry, name)
        super().__init__(parent.name, parent=parent, scope='mmattn')

    def import_from_location(self) -> None:
        """Import every folder whose dependencies are installed, to list what is registered."""
        for folder in FOLDERS:
            if not _missing(folder):
                import_module(folder)

    def get(self, key: str) -> type | None:
        """Return the class registered as ``key``, here or in the scope that the config is written for.

        The latter is for configs with ``_base_ = 'mmattn::…'``: mmengine builds those in the scope ``mmattn``, but
        their ``default_scope`` is mmseg or mmdet, whose ``LoadAnnotations``, say, is not mmengine's.

        Raises:
            ImportError: ``key`` is of a folder whose dependency is not installed; the message has the command that
                installs it.
        """
        scope, _, name = key.rpartition('.')
        if scope in ('', 'mmattn'):
            if name not in self.module_dict and name in FOLDER_OF:
                _import_folder_of(name)
            if name in self.module_dict:
                return self.module_dict[name]
        if not scope:
            for sibling in dict.fromkeys([*default_scopes(), 'mmseg', 'mmdet']):
                if sibling not in ('mmattn', 'mmengine') and find_spec(sibling) is not None:
                    return self.parent.get(f'{sibling}.{name}')
        return self.parent.get(key)  # not super().get(key), which would import all folders


def _import_folder_of(name: str) -> None:
    """Import the folder that registers ``name``.

    Raises:
        ImportError: a package that it needs is not installed.
    """
    missing = _missing(FOLDER_OF[name])
    if missing:
        continued, original = (' '.join(names) for names in zip(*(DISTRIBUTIONS[p] for p in missing)))
        raise ImportError(
            f"'mmattn.{name}' needs {' and '.join(missing)}, not installed here: "
            f'pip install {continued} (maintained) or pip install {original} (original)'
        )
    import_module(FOLDER_OF[name])


DATASETS = FolderRegistry('DATASETS')
DATA_SAMPLERS = FolderRegistry('DATA_SAMPLERS')
HOOKS = FolderRegistry('HOOKS')
METRICS = FolderRegistry('METRICS')
MODELS = FolderRegistry('MODELS')
OPTIM_WRAPPERS = FolderRegistry('OPTIM_WRAPPERS')
TRANSFORMS = FolderRegistry('TRANSFORMS')
# Nothing of ours yet, but a config with `_base_ = 'mmattn::…'` is looked up in each of them.
EVALUATOR, LOOPS, MODEL_WRAPPERS, OPTIMIZERS, PARAM_SCHEDULERS, VISBACKENDS, VISUALIZERS = map(
    FolderRegistry,
    ('EVALUATOR', 'LOOPS', 'MODEL_WRAPPERS', 'OPTIMIZERS', 'PARAM_SCHEDULERS', 'VISBACKENDS', 'VISUALIZERS'),
)
