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
from .former_names import FORMER_NAMES
from .utils.optional import requires

# `get_config('mmattn::…')` and `_base_ = 'mmattn::…'` of mmengine locate the package by this table, as a registry is
# found by its scope. With a module name instead of a distribution name, Python locates it, including editable installs,
# which mmengine 0.10.7 does not find.
MODULE2PACKAGE['mmattn'] = 'mmattn.registry'

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
if find_spec('mmattn.check') is not None:  # the one folder that may be removed
    FOLDERS['mmattn.check'] = ()


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


def import_registered(name: str) -> None:
    """Import the module that registers ``name``, and no other. Do nothing for an unknown name.

    If a package that the folder of ``name`` requires is missing, the ImportError gives the command that installs it. A
    package that is installed but broken raises its own ImportError.
    """
    folder = find_folder(name)
    if folder is None:
        return
    missing = _missing(folder)
    if missing:
        raise ImportError(requires(f'mmattn.{name}', missing))
    getattr(import_module(folder), name)


def config_scope() -> str:
    """Find the scope of a name without one in a config with ``_base_ = 'mmattn::…'``: its default scope, '' if none.

    mmengine builds such a config in the scope ``mmattn``, although its ``default_scope`` is mmseg or mmdet, whose
    ``LoadAnnotations``, for example, differs from mmengine's.
    """
    scopes = (scope for scope in (*default_scopes(), 'mmseg', 'mmdet') if scope not in ('mmattn', 'mmengine'))
    return next((scope for scope in scopes if find_spec(scope) is not None), '')


class FolderRegistry(Registry):
    """The child of scope ``mmattn`` of a registry of mmengine, with modules that are imported when a name is looked up.

    mmengine's ``locations`` would import all of mmattn for one name, and call a name whose package is missing unknown.
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
        """Look up ``Name`` or ``mmattn.Name`` here, and every other key in mmengine's registry, the parent."""
        scope, _, name = key.rpartition('.')
        if scope in ('', 'mmattn'):
            if name not in self.module_dict:
                import_registered(name)
            if name in self.module_dict:
                return self.module_dict[name]
        elsewhere = scope or config_scope()
        found = self.parent.get(f'{elsewhere}.{name}' if elsewhere else name)
        if found is None and scope in ('', 'mmattn') and name in FORMER_NAMES:
            raise KeyError(f'mmattn.{name} is gone: {FORMER_NAMES[name]}')
        return found


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
EVALUATOR, LOG_PROCESSORS, LOOPS, MODEL_WRAPPERS = map(
    FolderRegistry, ('EVALUATOR', 'LOG_PROCESSORS', 'LOOPS', 'MODEL_WRAPPERS')
)
OPTIMIZERS, TASK_UTILS, VISBACKENDS, VISUALIZERS = map(
    FolderRegistry, ('OPTIMIZERS', 'TASK_UTILS', 'VISBACKENDS', 'VISUALIZERS')
)
