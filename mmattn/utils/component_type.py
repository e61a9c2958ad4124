"""The component that a part of a config builds: its name and its class."""

from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.registry import MODELS, Registry

TOOLS = 'tools/image_demo.py runs segmentors and detectors, tools/video_demo.py SST and LabelPropagation'


def type_name(cfg: Mapping, default: str = '') -> str:
    """Get the ``type`` of a component's config as a name without scope, or ``default`` if there is none.

    Example:
        >>> type_name(dict(type='mmattn.BiCCHead')), type_name(dict(type=dict))
        ('BiCCHead', 'dict')
    """
    kind = cfg.get('type', default)
    return kind.rpartition('.')[2] if isinstance(kind, str) else getattr(kind, '__name__', str(kind))


def component_class(cfg: Mapping, registry: Registry, scope: str | None = None) -> type | None:
    """Look up the class or function that the ``type`` of a component's config names. None if it is not registered.

    Args:
        cfg (Mapping): the config. In a pure-Python config, its ``type`` is a class.
        registry (Registry): one of mmengine's registries.
        scope (str, optional): where names without a scope are looked up. Defaults to None, the default scope.

    Example:
        >>> from mmattn.registry import MODELS
        >>> component_class(dict(type='mmattn.BAConv2d'), MODELS).__name__
        'BAConv2d'
    """
    kind = cfg.get('type')
    if not isinstance(kind, str):
        return kind
    with registry.switch_scope_and_registry(scope) as scoped:
        return scoped.get(kind)


def inner_data_sets(cfg: dict) -> list[Any]:
    """List the configs of the data sets inside wrappers, such as ``ConcatDataset``, or of the data set itself.

    Example:
        >>> inner_data_sets(dict(type='ConcatDataset', datasets=[dict(type='A'), dict(type='B')]))
        [{'type': 'A'}, {'type': 'B'}]
    """
    wrapped = [*cfg.get('datasets', ()), *([cfg['dataset']] if 'dataset' in cfg else [])]
    return [inner for part in wrapped for inner in inner_data_sets(part)] if wrapped else [cfg]


def model_scope(cfg: Mapping) -> str:
    """Get the scope in which a config's model is looked up: of its type, else the default one, '' if there is none.

    Of a class, it is the package, mmdet or mmseg, that it comes or derives from, else its own.

    Example:
        >>> model_scope(dict(default_scope='mmdet', model=dict(type='FasterRCNN')))
        'mmdet'
    """
    kind = cfg['model']['type']
    if not isinstance(kind, str):  # the class, in a pure-Python config; a user's own derives from one of these packages
        packages = [base.__module__.partition('.')[0] for base in getattr(kind, '__mro__', [kind])]
        return next((name for name in packages if name in ('mmdet', 'mmseg')), packages[0])
    return kind.rpartition('.')[0] or cfg.get('default_scope') or ''


def check_model(cfg: Mapping, base: type | tuple[type, ...], name: str) -> None:
    """Check that the model of a config derives from ``base``, without building it. The message calls it ``name``."""
    kind = component_class(cfg['model'], MODELS, cfg.get('default_scope'))
    if isinstance(kind, type) and not issubclass(kind, base):
        raise ValueError(f'the model must be {name}; the config has {cfg["model"]["type"]} ({TOOLS})')


def dicts(value: Any) -> Iterator[Any]:
    """Yield all dictionaries in a part of a config, outer before inner."""
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from dicts(part)
