"""The name of the component that a part of a config builds."""

from collections.abc import Mapping


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
