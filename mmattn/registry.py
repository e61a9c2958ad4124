"""The registries of scope ``mmattn``, and the folder in which each name is registered.

mmengine imports this module when a config names ``mmattn.X``, so ``custom_imports`` is not needed. The module imports
only mmengine: mmengine interprets an ImportError in this module as "not in the registry" and hides the cause.
"""

from importlib import import_module
from importlib.util import find_spec

from mmengine import registry as mmengine_registry
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.registry import Registry

from ._compat import default_scopes

# `get_config('mmattn::…')` and `_base_ = 'mmattn::…'` of mmengine locate the package by this table. With a module name
# instead of a distribution name, Python locates it, including editable installs, which mmengine 0.10.7 does not find.
MODULE2PACKAGE['mmattn'] = 'mmattn.registry'

# Distributions by import name: the maintained continuation, the original.
DISTRIBUTIONS = {
    'mmcv': ('onedl-mmcv', 'mmcv'),
    'mmseg': ('onedl-mmsegmentation', 'mmsegmentation'),
    'mmdet': ('onedl-mmdetection', 'mmdet'),
}

# Folders with registered names, and the packages that they require in addition to mmengine and torch. A folder's
# `__init__` lists its names. Folders are searched in this order, so language is read for names of language alone.
FOLDERS: dict[str, tuple[str, ...]] = {
    'mmattn.layers': ('mmcv',),
    'mmattn.segmentation': ('mmcv', 'mmseg'),
    'mmattn.segmentation.face_parsing': ('mmcv', 'mmseg'),
    'mmattn.detection': ('mmcv', 'mmdet'),
    'mmattn.video': ('mmcv',),
    'mmattn.engine': (),
    'mmattn.visualization': (),
    'mmattn.language': ('mmcv',),
    'mmattn.language.layers': (),
    'mmattn.language.captioning': ('mmcv',),
    'mmattn.language.translation': ('mmcv',),
    'mmattn.language.vqa': ('mmcv',),
    'mmattn.language.grounding': ('mmcv',),
}


def find_folder(name: str) -> str | None:
    """Find the folder whose ``__init__`` lists a name. A broken folder raises only if no other folder lists it."""
    broken = None
    for folder in FOLDERS:
        try:
            if name in import_module(folder).__all__:
                return folder
        except ImportError as error:
            broken = error
    if broken is not None:
        raise broken
    return None


def _missing(folder: str) -> list[str]:
    return [package for package in FOLDERS[folder] if find_spec(package) is None]


class FolderRegistry(Registry):
    """A registry that imports the module of a name when the name is first looked up.

    Other modules are not imported. A missing package affects only the folders that require it. A package that is
    installed but broken raises its own ImportError. The parent is ``name`` of ``mmengine.registry``.
    """

    def __init__(self, name: str) -> None:
        parent = getattr(mmengine_registry, name)
        super().__init__(parent.name, parent=parent, scope='mmattn')

    def import_from_location(self) -> None:
        """Import every folder whose dependencies are installed, to list the registered names."""
        for folder in FOLDERS:
            if not _missing(folder):
                module = import_module(folder)
                for name in module.__all__:
                    getattr(module, name)

    def get(self, key: str) -> type | None:
        """Look up the class that is registered as ``key`` here or in the scope of the config.

        The second lookup is for configs with ``_base_ = 'mmattn::…'``: mmengine builds these in the scope ``mmattn``,
        but their ``default_scope`` is mmseg or mmdet, whose ``LoadAnnotations``, for example, differs from mmengine's.

        If a package that the folder of ``key`` requires is missing, the ImportError gives the command that installs it.
        """
        scope, _, name = key.rpartition('.')
        if scope in ('', 'mmattn'):
            if name not in self.module_dict and (folder := find_folder(name)):
                _import_from(folder, name)
            if name in self.module_dict:
                return self.module_dict[name]
        if not scope:
            for sibling in dict.fromkeys([*default_scopes(), 'mmseg', 'mmdet']):
                if sibling not in ('mmattn', 'mmengine') and find_spec(sibling) is not None:
                    return self.parent.get(f'{sibling}.{name}')
        return self.parent.get(key)  # super().get(key) would import all folders


def _import_from(folder: str, name: str) -> None:
    missing = _missing(folder)
    if missing:
        continued, original = (' '.join(names) for names in zip(*(DISTRIBUTIONS[p] for p in missing)))
        raise ImportError(
            f"'mmattn.{name}' requires {' and '.join(missing)}, not installed here: "
            f'pip install {continued} (maintained) or pip install {original} (original)'
        )
    getattr(import_module(folder), name)


DATASETS = FolderRegistry('DATASETS')
DATA_SAMPLERS = FolderRegistry('DATA_SAMPLERS')
FUNCTIONS = FolderRegistry('FUNCTIONS')
HOOKS = FolderRegistry('HOOKS')
METRICS = FolderRegistry('METRICS')
MODELS = FolderRegistry('MODELS')
OPTIM_WRAPPERS = FolderRegistry('OPTIM_WRAPPERS')
PARAM_SCHEDULERS = FolderRegistry('PARAM_SCHEDULERS')
TRANSFORMS = FolderRegistry('TRANSFORMS')
# These have no names, but a config with `_base_ = 'mmattn::…'` is looked up in each of them.
EVALUATOR, LOOPS, MODEL_WRAPPERS, OPTIMIZERS, VISBACKENDS, VISUALIZERS = map(
    FolderRegistry, ('EVALUATOR', 'LOOPS', 'MODEL_WRAPPERS', 'OPTIMIZERS', 'VISBACKENDS', 'VISUALIZERS')
)
