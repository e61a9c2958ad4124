"""The model with which a checkpoint was trained, by the config that mmengine stores in it."""

import ast
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.logging import print_log

from .component_type import type_name

# Parts of a model's config that do not change what trained weights compute.
NOT_COMPARED = (
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
    """Return the config of the model with which a checkpoint was trained.

    The text of the config is read, not run: a checkpoint may come from anywhere.

    Args:
        meta (Mapping): the entry 'meta' of a checkpoint.

    Returns:
        dict or None: None if there is no config, or its model is not written in constants.

    Example:
        >>> trained_model(dict(cfg="a = 1\\nmodel = dict(type='SAN', layers=[dict(dropout=0.1)])"))
        {'type': 'SAN', 'layers': [{'dropout': 0.1}]}
    """
    try:
        for statement in ast.parse(str(meta.get('cfg', ''))).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == 'model':
                found = _value(statement.value)
                return found if isinstance(found, dict) else None
    except (SyntaxError, ValueError):
        pass
    return None


def model_differences(model: Mapping[str, Any], trained: Mapping[str, Any]) -> list[str]:
    """Compare a model's config with that of the training, but for what does not change the trained function.

    Returns:
        list[str]: one text per difference; empty for models of different types, whose weights differ in their names.

    Example:
        >>> attention = dict(type='mmattn.BilateralMultiheadAttention', window_size=5)
        >>> model_differences(
        ...     dict(type='mmattn.A', attention=dict(attention, smoothing='zscore')),
        ...     dict(type='mmattn.A', attention=attention, test_cfg=dict(beam=3)))
        ["model.attention.smoothing is 'zscore' (in training: not set)"]
    """
    return [*_differences('model', model, trained)] if type_name(model) == type_name(trained) else []


def warn_of_differences(path: str, meta: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    """Log a warning if a checkpoint was trained with another model than that of the config.

    Weights of another kind of attention may have the same names and shapes, and would load without a word.

    Args:
        path (str): the checkpoint, for the message.
        meta (Mapping): its entry 'meta'.
        model (Mapping): the config of the model that loads it.
    """
    if differences := model_differences(model, trained_model(meta) or {}):
        print_log(
            f'{path}: its weights were trained with another model: {"; ".join(differences)}', 'current', logging.WARNING
        )


def _differences(where: str, a: Any, b: Any) -> Iterator[str]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            if key not in NOT_COMPARED and not any(part in key for part in NOT_IN_USE):
                yield from _differences(f'{where}.{key}', a.get(key, ABSENT), b.get(key, ABSENT))
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for i, pair in enumerate(zip(a, b)):
            yield from _differences(f'{where}.{i}', *pair)
    elif a != b and not (where.endswith('.type') and _kind(a) == _kind(b)):
        x, y = (each if each is ABSENT else repr(each) for each in (a, b))
        yield f'{where} is {x} (in training: {y})'


def _kind(value: Any) -> str:
    """Return the name of a type; in use, SyncBN is BN."""
    return type_name(dict(type=value)).replace('SyncBN', 'BN')


def _value(node: ast.expr) -> Any:
    """Return the value of an expression of constants, lists, dicts and calls of ``dict``."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == 'dict' and not node.args:
        return {each.arg: _value(each.value) for each in node.keywords}
    if isinstance(node, ast.Dict):
        return {_value(key): _value(value) for key, value in zip(node.keys, node.values)}  # type: ignore[arg-type]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each) for each in node.elts]
    return ast.literal_eval(node)
