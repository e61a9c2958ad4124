"""Print the names that a user of a checkout may write, as JSON: ``python tests/frozen/names.py``, in its folder.

Components by registry with their options, files of configs, keys in them, and options of the tools, or only the parts
that are named: ``python tests/frozen/names.py components tools``.
"""

import argparse
import contextlib
import inspect
import io
import json
import os
import re
import runpy
import sys
from importlib import import_module
from pathlib import Path

from mmengine.config import Config
from torch.nn import Module


def options(component):
    """The arguments of a constructor, and of the bases that get its ``**kwargs``; ``**`` if others get them."""
    if not inspect.isclass(component):
        return sorted(inspect.signature(component).parameters)
    found = {*signature(component)[0]}
    if isinstance(layer := getattr(component, 'layer', None), type):  # a head has the options of its layer
        found |= {*options(layer)} - {'**'}
    for base in [base for base in component.__mro__ if '__init__' in vars(base) and base not in (Module, object)]:
        named, rest = signature(base.__init__)
        found |= {*named} - {'self'}
        if rest is None:
            return sorted(found)
        if keys := getattr(rest.annotation, '__args__', ()):  # Unpack[Options]
            return sorted(found | {*keys[0].__annotations__})
    return [*sorted(found), '**']


def signature(function):
    """The named arguments, and ``**kwargs`` or None."""
    arguments = inspect.signature(function).parameters.values()
    rest = next((x for x in arguments if x.kind == x.VAR_KEYWORD), None)
    return [x.name for x in arguments if x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD)], rest


def components():
    registry = import_module('mmattn.registry')
    for folder in registry.FOLDERS:
        for name in import_module(folder).__all__:
            getattr(import_module(folder), name)
    found = {key: value for key, value in vars(registry).items() if isinstance(value, registry.FolderRegistry)}
    return {key: {name: options(x) for name, x in sorted(value.module_dict.items())} for key, value in found.items()}


def keys(settings, depth=3, prefix=''):
    """``model``, ``model.decode_head``, and so on."""
    for key, value in settings.items():
        yield f'{prefix}{key}'
        if isinstance(value, dict) and depth > 1:
            yield from keys(value, depth - 1, f'{prefix}{key}.')


class Parsing(BaseException):
    pass


def parsed(parser, *_, **__):
    raise Parsing({option for x in parsers(parser) for action in x._actions for option in action.option_strings})


def parsers(parser):
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for part in action.choices.values():
                yield from parsers(part)


def tool_options(path):
    """The options of a script, which runs up to the reading of its command line. Of a shell script, by its text."""
    text = path.read_text(encoding='utf-8')
    if path.suffix == '.sh':
        patterns = re.findall(r'^ *((?:-[\w=*-]+ *\|? *)+)\)', text, re.M)
        return {option for pattern in patterns for option in re.findall(r'--[a-z][a-z-]+', pattern)}
    sys.argv[:] = [str(path)]
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        if path.parts[0] == 'mmattn':
            runpy.run_module('.'.join(path.with_suffix('').parts), run_name='__main__')
        else:
            runpy.run_path(str(path), run_name='__main__')
    except Parsing as found:
        return found.args[0]
    finally:
        del sys.path[0]
    return set()  # it reads no command line


def tools():
    argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_known_args = parsed
    paths = [*Path('tools').rglob('*.sh'), *Path('tools').rglob('*.py'), *Path('mmattn').rglob('*.py')]
    scripts = [path for path in paths if path.suffix == '.sh' or '\nif __name__ ==' in path.read_text(encoding='utf-8')]
    return {path.as_posix(): sorted(tool_options(path) - {'-h', '--help'}) for path in sorted(scripts)}


def configs():
    return sorted(path.relative_to('configs').as_posix() for path in Path('configs').glob('[!_]*/*.py'))


def config_keys():
    return sorted({key for name in configs() for key in keys(Config.fromfile(f'configs/{name}').to_dict())})


PARTS = dict(components=components, configs=configs, keys=config_keys, tools=tools)

if __name__ == '__main__':
    parts = sys.argv[1:] or [*PARTS]
    sys.path.insert(0, os.getcwd())
    with contextlib.redirect_stdout(io.StringIO()):  # some libraries print when they are imported
        found = {part: PARTS[part]() for part in parts}
    print(json.dumps(found, indent=0))
