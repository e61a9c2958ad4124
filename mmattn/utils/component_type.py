"""The component that a part of a config builds: its name and its class."""

from collections.abc import Mapping

from mmengine.registry import MODELS, Registry

TOOLS = 'tools/image_demo.py runs segmentors, tools/video_demo.py SST, and mmdet.apis.DetInferencer detectors'


def type_name(cfg: Mapping, default: str = '') -> str:
    """Return the name of the ``type`` of a config, without its scope.

    Args:
        cfg (Mapping): the config of a component. In a pure-Python config, its ``type`` is a class.
        default (str): the name if there is no ``type``. Defaults to ''.

    Example:
        >>> type_name(dict(type='mmattn.BiCCHead')), type_name(dict(type=dict))
        ('BiCCHead', 'dict')
    """
    kind = cfg.get('type', default)
    return kind.rpartition('.')[2] if isinstance(kind, str) else getattr(kind, '__name__', str(kind))


def component_class(cfg: Mapping, registry: Registry, scope: str | None = None) -> type | None:
    """Return the class, or the function, that the ``type`` of a config names; None if the registry does not have it.

    Args:
        cfg (Mapping): the config of a component.
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
    with registry.switch_scope_and_registry(scope) as found:
        return found.get(kind)


def check_model(cfg: Mapping, base: type, name: str) -> None:
    """Check the class of a config's model before it is built.

    Args:
        cfg (Mapping): the whole config.
        base (type): class from which the model must derive.
        name (str): what such a model is called, for the message.

    Raises:
        ValueError: the model is of another class.
    """
    kind = component_class(cfg['model'], MODELS, cfg.get('default_scope'))
    if isinstance(kind, type) and not issubclass(kind, base):
        raise ValueError(f'the model must be {name}; the config has {cfg["model"]["type"]} ({TOOLS})')
