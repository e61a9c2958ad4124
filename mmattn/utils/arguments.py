"""Command lines from signatures: a tool is a function, and its docstring is the help."""

import argparse
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from functools import wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar('T')
ARGUMENT = re.compile(r'^ {4}(\w+)(?: \((.+?)\))?: (.+(?:\n {5,}.+)*)', re.MULTILINE)


class UsageError(Exception):
    """Arguments that do not fit together. A command prints the message after its usage, and exits with code 2."""


def command(function: Callable[..., T]) -> Callable[[Sequence[str] | None], T]:
    """Let a function read its arguments from the command line, or from the words that the result is called with.

    An argument without a default is positional. What follows ``*`` is an option, which is required if it has no
    default. The annotation says the rest:

    =======================  ================================
    ``int``, ``Path``        what converts a word
    ``list``, ``tuple``      one or more words, or as many as the tuple has types
    ``Literal``              choices
    ``bool``                 a flag; with ``| None``, ``--name`` and ``--no-name``
    a dataclass              the arguments of its constructor, which several commands share
    ``Annotated[T, 'text']`` the help, if the docstring has none
    ``Annotated[T, {…}]``    arguments of ``ArgumentParser.add_argument``, which take precedence
    =======================  ================================

    The docstring is the help: that of the function, or else of its script. Its ``Args:`` describe the arguments, and
    name a value in parentheses: ``out_dir (DIR): folder to create``.

    Example:
        >>> @command
        ... def main(paths: list[str], *, scale: float = 1.0) -> None:
        ...     print(paths, scale)
        >>> main(['a.png', 'b.png', '--scale', '2'])
        ['a.png', 'b.png'] 2.0
    """

    @wraps(function)
    def main(argv: Sequence[str] | None = None) -> T:
        text = inspect.cleandoc(function.__doc__ or inspect.unwrap(function).__globals__.get('__doc__') or '')
        description = text.partition('\nArgs:\n')[0].replace('``', '').replace('::\n', ':\n').strip()
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        texts = _texts(text)
        _add_arguments(parser, function, texts)
        if others := sorted(texts.keys() - {*_names(function)}):
            raise TypeError(f'the docstring describes arguments that {function.__name__} does not have: {others}')
        try:
            return _call(function, vars(parser.parse_args(argv)))
        except UsageError as error:
            parser.error(str(error))

    return main


def _texts(docstring: str) -> dict[str, tuple[str, str]]:
    """Read from the arguments of a docstring what their values are called, and what they mean."""
    entries = ARGUMENT.findall(docstring.partition('Args:\n')[2].partition('\n\n')[0])
    return {name: (value, ' '.join(text.replace('``', '').split()).removesuffix('.')) for name, value, text in entries}


def _parameters(function: Callable) -> list[tuple[inspect.Parameter, Any]]:
    hints = get_type_hints(function, include_extras=True)
    return [(parameter, hints[name]) for name, parameter in inspect.signature(function).parameters.items()]


def _is_group(hint: Any) -> bool:
    return isinstance(hint, type) and is_dataclass(hint)


def _names(function: Callable) -> Iterator[str]:
    for parameter, hint in _parameters(function):
        yield from _names(hint) if _is_group(hint) else [parameter.name]


def _call(function: Callable[..., T], values: dict[str, Any]) -> T:
    arguments = {
        parameter.name: _call(hint, values) if _is_group(hint) else values[parameter.name]
        for parameter, hint in _parameters(function)
    }
    return function(**arguments)


def _add_arguments(parser: argparse.ArgumentParser, function: Callable, texts: dict[str, tuple[str, str]]) -> None:
    for parameter, hint in _parameters(function):
        if _is_group(hint):
            inherited: dict[str, tuple[str, str]] = {}
            for base in reversed(hint.__mro__):
                inherited |= _texts(inspect.getdoc(base) or '')
            _add_arguments(parser, hint, {**inherited, **texts})
            continue
        options, name = _options(hint), parameter.name
        default = options.get('default', parameter.default)
        value, text = texts.get(name, ('', options.get('help', '')))
        if value:
            options['metavar'] = value
        if default is not parameter.empty:
            options['default'] = default
            shown = ' '.join(map(str, default)) if isinstance(default, list | tuple) else str(default)
            if shown not in ('', 'None', 'False') and 'default' not in text.lower():
                text += f'{"; " if text else ""}default: {shown}'
        options['help'] = text.replace('%', '%%') or None
        if parameter.kind is parameter.KEYWORD_ONLY:
            options['required'] = default is parameter.empty
            name = f'--{name.replace("_", "-")}'
        elif default is not parameter.empty:
            options.setdefault('nargs', '?')
        parser.add_argument(name, **options)


def _options(hint: Any) -> dict[str, Any]:
    """Return what an annotation says about an argument."""
    if get_origin(hint) is Annotated:
        hint, *more = get_args(hint)
        options = _options(hint)
        for extra in more:
            options |= {'help': extra} if isinstance(extra, str) else extra
        return options
    if get_origin(hint) in (Union, UnionType):
        (kind,) = (part for part in get_args(hint) if part is not NoneType)
        return {'action': argparse.BooleanOptionalAction} if kind is bool else _options(kind)
    if hint is bool:
        return {'action': 'store_true'}
    if get_origin(hint) is Literal:
        return {'choices': list(get_args(hint))}
    if get_origin(hint) in (list, tuple):
        kinds = get_args(hint)
        return {**_options(kinds[0]), 'nargs': '+' if get_origin(hint) is list else len(kinds)}
    return {} if hint in (str, Any) else {'type': hint}
