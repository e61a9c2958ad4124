"""Names at the top of a config that only its own files read, such as ``data_root`` or ``train_pipeline``.

A setting takes the value of such a name when its file is executed. Where a child of the config or an option gives the
name another value, the settings of the bases keep the former one. mmengine says nothing, so a warning names them.
Another warning names what a child sets and nothing reads, such as ``batch_size``.
"""

import ast
import inspect
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.runner import FlexibleRunner, Runner

from mmattn.utils.faults import shorten

# The settings of a config: arguments of mmengine's Runners, and other keys that the Runners or the tools read.
SETTINGS = {
    *inspect.signature(Runner.__init__).parameters,
    *inspect.signature(FlexibleRunner.__init__).parameters,
    'activation_checkpointing',
    'check',
    'compile',
    'custom_imports',
    'efficient_conv_bn_eval',
    'find_unused_parameters',
    'model_wrapper_cfg',
    'runner_type',
    'sync_bn',
    'tta_model',
    'tta_pipeline',
} - {'self', 'cfg'}


def warn_of_former_values(cfg: Config, before: Mapping[str, Any]) -> None:
    """Warn of settings that hold the former value of a name which a child of the config or an option has changed.

    Args:
        cfg (Config): the config, as mmengine has read it, with its options.
        before (mapping): the values that options have changed, by name.
    """
    final = _plain(cfg.to_dict())
    settings = {name: value for name, value in final.items() if name in SETTINGS}
    former = _plain(_literals(cfg) | dict(before))
    for name in sorted(former.keys() & final.keys() - SETTINGS):
        follow = {*_holding(settings, name, final[name])}
        if keys := [key for key in _holding(settings, name, former[name]) if key not in follow]:
            text = f"{cfg.filename}: '{name}' has changed, but these settings hold its former value"
            print_log(f'{text}: {", ".join(shorten(keys, 6))}', 'current', logging.WARNING)


def warn_of_unread_names(cfg: Config) -> None:
    """Warn of names that a child of a config sets, and that neither the Runner nor any expression in its files reads.

    A file without bases is left out: it may be what a training has written, whose names have been read.
    """
    names = [(path, x) for path, tree in _files(cfg.text) for x in ast.walk(tree) if isinstance(x, ast.Name)]
    read = {x.id for _, x in names if isinstance(x.ctx, ast.Load)} | {*re.findall(r'_base_\.(\w+)', cfg.text)}
    for child in [path for path, x in names if x.id == '_base_' and isinstance(x.ctx, ast.Store)]:
        if unread := sorted({x.id for path, x in names if path == child} & cfg.keys() - read - SETTINGS):
            text = f'{child}: no setting reads {", ".join(unread)}; a child replaces a setting by its whole name, as in'
            print_log(f'{text} train_dataloader = dict(batch_size=8)', 'current', logging.WARNING)


def _files(text: str) -> Iterator[tuple[str, ast.Module]]:
    """Parse the files of a config, the child last, with their paths."""
    text = re.sub(r'\{\{\s*\$(\w+)\s*:\s*(\S*?)\s*\}\}', lambda match: os.environ.get(match[1], match[2]), text)
    _, *parts = re.split(r'(?m)^((?:/|\w:\\).*\.(?:py|json|ya?ml))$', text)
    for path, code in zip(parts[::2], parts[1::2]):
        with suppress(SyntaxError):  # of YAML
            yield path, ast.parse(code)


def _literals(cfg: Config) -> dict[str, Any]:
    """Read the values that the bases of a config give to names, as far as they are literals. Nothing is executed."""
    values: dict[str, Any] = {}
    for path, tree in _files(cfg.text):
        for node in tree.body:
            if isinstance(node, ast.Assign) and path != os.path.abspath(cfg.filename):
                values[ast.unparse(node.targets[0])] = _literal(node.value, values)
    return values


def _literal(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """Evaluate a literal, also in ``dict(a=1)`` or by its name. What is none stays an expression, equal to nothing."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == 'dict':
        return {item.arg: _literal(item.value, values) for item in node.keywords}
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item, values) for item in node.elts]
    if isinstance(node, ast.Name | ast.Attribute):
        return values.get(ast.unparse(node).removeprefix('_base_.'), node)
    with suppress(ValueError, TypeError):
        return ast.literal_eval(node)
    return node


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if key != '_scope_'}  # of a base of a package
    if isinstance(value, list | tuple):
        return [*map(_plain, value)]
    return value if isinstance(value, str | int | float | None) else repr(value)  # two arrays have no single equality


def _holding(value: Any, name: str, part: Any, key: tuple = ()) -> Iterator[str]:
    """List the keys of what is ``part``, or a path with it. A number counts only under the same name."""
    is_path = isinstance(value, str) and isinstance(part, str) and f'/{part.strip("/")}/' in f'/{value}/'
    if (value == part or is_path) and (name in key[-1:] or (part and not isinstance(part, int | float))):
        yield '.'.join(map(str, key))
    elif isinstance(value, dict | list):
        for index, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _holding(item, name, part, (*key, index))
