"""The options of a component: the arguments of its constructor, and those that its ``**kwargs`` pass on."""

from functools import wraps
from inspect import Parameter, Signature, signature, unwrap
from typing import Any

from .checks import check_options


def parameters(component: type, start: type | None = None) -> dict[str, Parameter]:
    """List the arguments of a class by name: of its constructor and, if this has ``**kwargs``, of its next base.

    With ``start``, one of its bases, they are those of the constructor that this base has, in objects of the class.

    A class that passes ``**kwargs`` to something else lists those arguments in a class method ``passed_on``.

    Example:
        >>> class Conv:
        ...     def __init__(self, channels: int, size: int = 3) -> None: ...
        >>> class Norm(Conv):
        ...     def __init__(self, groups: int, **kwargs) -> None: ...
        >>> list(parameters(Norm))
        ['groups', 'channels', 'size']
    """
    start = start or component
    passed_on = getattr(component if hasattr(start, 'passed_on') else object, 'passed_on', dict)
    listed: dict[str, Parameter] = {}
    for base in component.__mro__[component.__mro__.index(start) :]:
        if passed_on is not dict and not hasattr(base, 'passed_on'):
            break  # what its subclass passes on may go elsewhere
        if '__init__' in vars(base) and not _inherits_constructor(base):
            _, *own = signature(vars(base)['__init__']).parameters.values()
            named = [x for x in own if x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD)]
            listed = listed | {x.name: x for x in named} | listed  # in the order of the first, with its values
            if not any(x.kind == x.VAR_KEYWORD for x in own):
                return listed
    return listed | passed_on() | listed


def _inherits_constructor(component: Any) -> bool:
    """Tell whether the constructor of a class calls that of the next class, and does nothing else."""
    return unwrap(component.__init__) is unwrap(super(component, component).__init__)


def checked_options(component: Any) -> Any:
    """Decorate a class, so that the error for an unknown option names the class and the nearest option.

    Example:
        >>> @checked_options
        ... class Dog:
        ...     def __init__(self, name='', legs=4): ...
        >>> Dog(leg=3)
        Traceback (most recent call last):
        TypeError: Dog has no option 'leg'; did you mean legs?
    """

    init = vars(component).get('__init__')

    @wraps(component.__init__)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        kind = type(self)
        # A class of the user's own may pass options to this constructor, and take none of them.
        check_options(kind, options, parameters(kind, component) | parameters(kind))
        if init:
            init(self, *args, **options)
        else:
            super(component, self).__init__(*args, **options)  # of a class of the user's own, if that is the next

    component.__init__ = checked
    return component


class ShownOptions:
    """Mix-in of classes with ``**kwargs``, whose options ``help`` and :func:`inspect.signature` then show."""

    __signature__: Signature

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _, *own = signature(cls.__init__).parameters
        options = [x if name in own else x.replace(kind=x.KEYWORD_ONLY) for name, x in parameters(cls).items()]
        cls.__signature__ = Signature(sorted(options, key=lambda x: x.kind))
