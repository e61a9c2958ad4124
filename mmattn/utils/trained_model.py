"""The model with which a checkpoint was trained, by the config that mmengine stores in it."""

import ast
import logging
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from mmengine.logging import print_log

from .component_type import type_name

# Parts of a model's config that do not change what trained weights compute.
NOT_COMPARED = (
    '_scope_',
    'test_cfg',
    'train_cfg',
    'init_cfg',
    'pretrained',
    'data_preprocessor',
    'label_smoothing',
    'self_critical',
    'sampler',
)
NOT_IN_USE = ('dropout', 'loss')  # parts of names of settings of the training alone
ABSENT = 'not set'


def trained_model(meta: Mapping[str, Any]) -> dict | None:
    """Parse the config of the model from a checkpoint's ``meta``. None if there is none, or it is not all constants.

    The text of the config is read, not run: a checkpoint may come from anywhere.

    Example:
        >>> trained_model(dict(cfg="a = 1\\nmodel = dict(type='SAN', layers=[dict(dropout=0.1)])"))
        {'type': 'SAN', 'layers': [{'dropout': 0.1}]}
    """
    model = trained_settings(meta).get('model')
    return model if isinstance(model, dict) else None


def trained_settings(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Parse those settings of the config in a checkpoint's ``meta`` that are constants. The text is read, not run."""
    settings: dict[str, Any] = {}
    # Of a text that is no config, or a nested one that exceeds the parser, the settings before the fault remain.
    with suppress(SyntaxError, ValueError, MemoryError, RecursionError):
        for statement in ast.parse(str(meta.get('cfg', ''))).body:
            if isinstance(statement, ast.Assign):
                with suppress(ValueError):
                    settings[ast.unparse(statement.targets[0])] = _value(statement.value)
    return settings


def model_differences(model: Mapping[str, Any], trained: Mapping[str, Any]) -> list[str]:
    """Compare a model's config with its training config, except settings that do not change what weights compute.

    Returns one text per difference. Models of different types, whose weights have different names, are not compared.

    Example:
        >>> attention = dict(type='mmattn.BilateralMultiheadAttention', window_size=5)
        >>> model_differences(
        ...     dict(type='mmattn.A', attention=dict(attention, smoothing='zscore')),
        ...     dict(type='mmattn.A', attention=attention, test_cfg=dict(beam=3)))
        ["model.attention.smoothing is 'zscore' (in training: not set)"]
        >>> model_differences(dict(type='mmattn.TiledEncoderDecoder', neck=1), dict(type='EncoderDecoder'))
        ['model.neck is 1 (in training: not set)']
    """
    same = _kind(model.get('type')) == _kind(trained.get('type'))
    return [*differences('model', model, trained, _is_compared)] if same else []


def warn_of_differences(path: str, meta: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    """Log a warning if the checkpoint ``path`` with this ``meta`` was trained with another model than ``model``.

    Weights of another kind of attention may have the same names and shapes, and would load without a word.
    """
    if differences := model_differences(model, trained_model(meta) or {}):
        print_log(
            f'{path}: its weights were trained with another model: {"; ".join(differences)}', 'current', logging.WARNING
        )


def _is_compared(key: str) -> bool:
    return key not in NOT_COMPARED and not any(part in key for part in NOT_IN_USE)


def differences(where: str, a: Any, b: Any, is_compared: Callable[[str], bool] = lambda key: True) -> Iterator[str]:
    """Yield one text per difference of a setting ``where`` and its value in training, ``b``."""
    for place, *values in differing_values(where, a, b, is_compared):
        x, y = map(value_text, values)
        yield f'{place} is {x} (in training: {y})'


def differing_values(
    where: str, a: Any, b: Any, is_compared: Callable[[str], bool] = lambda key: True
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the place below ``where`` and both values of each setting that differs; ABSENT for one that is not set."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            if is_compared(key):
                place = f'{where}.{key}' if where else key
                yield from differing_values(place, a.get(key, ABSENT), b.get(key, ABSENT), is_compared)
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for i, pair in enumerate(zip(a, b)):
            yield from differing_values(f'{where}.{i}', *pair, is_compared)
    elif a != b and not (where.endswith('.type') and _kind(a) == _kind(b)):
        yield where, a, b


def value_text(value: Any) -> str:
    """Format a value of :func:`differing_values`, shortened."""
    return value if value is ABSENT else textwrap.shorten(repr(value), 200)


def _kind(value: Any) -> str:
    # These compute the same in inference.
    return type_name(dict(type=value)).replace('SyncBN', 'BN').replace('TiledEncoderDecoder', 'EncoderDecoder')


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and ast.unparse(node.func) == 'dict' and not node.args:
        return {keyword.arg: _value(keyword.value) for keyword in node.keywords}
    if isinstance(node, ast.Dict):
        return {_value(key): _value(value) for key, value in zip(node.keys, node.values)}  # type: ignore[arg-type]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(element) for element in node.elts]
    return ast.literal_eval(node)
