"""Helper variables of a config: top-level names that only the config itself reads, such as ``data_root``.

A setting takes the value of a helper when its file is evaluated. Where a later file or an option changes the helper,
the settings of earlier files keep the former value. To find them, the config is evaluated again as if the helper had
had the final value from the start. A config that a training has written has literals in its settings, beside helpers
that nothing reads any more: these are compared by their values.
"""

import inspect
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from mmengine.config import Config, ConfigDict
from mmengine.config.lazy import LazyAttr, LazyObject
from mmengine.fileio import load
from mmengine.logging import print_log
from mmengine.runner import FlexibleRunner, Runner

from mmattn._compat import lazy_dict, replaced_in_config
from mmattn.utils.faults import shorten

# The settings of a config: arguments of mmengine's Runners, and other keys that the Runners or the tools read.
SETTINGS = {
    *inspect.signature(Runner.__init__).parameters,
    *inspect.signature(FlexibleRunner.__init__).parameters,
    'activation_checkpointing',
    'custom_imports',
    'efficient_conv_bn_eval',
    'find_unused_parameters',
    'model_wrapper_cfg',
    'runner_type',
    'sync_bn',
    'tta_model',
    'tta_pipeline',
} - {'self', 'cfg'}
Values = dict[int, dict[str, Any]]  # number of a file → helper → value


class _File(NamedTuple):
    path: str
    first: int  # number of the first file among its bases and theirs
    changed: dict[str, Any]  # the helpers that the file itself leaves, as `_plain` values
    stores: Mapping[str, int]  # how often it stores them
    edited: set[str]  # helpers of its bases whose values it changes in place
    result: dict[str, Any]  # the config of the file and its bases


class EvaluatedConfig:
    """A config, and what each file of its chain of bases adds.

    ``values`` take the place of those that the files left in an ``earlier`` evaluation, and ``inherited`` of those that
    they read from their bases.
    """

    def __init__(
        self,
        path: str | Path,
        values: Values | None = None,
        inherited: Values | None = None,
        earlier: Sequence[_File] = (),
    ) -> None:
        self._path, self._values, self._inherited, self._earlier = path, values or {}, inherited or {}, earlier
        self._own: list[tuple] = []
        self._files: list[_File] = []
        with replaced_in_config(self._run, self._load, self._evaluate):
            self.config = Config.fromfile(path, import_custom_modules=not earlier)

    def _evaluate(self, evaluate: Any, filename: str, *args, **kwargs) -> Any:
        first = len(self._files)
        result = evaluate(filename, *args, **kwargs)  # calls `_run` or `_load` after the bases of the file
        changed, stores, edited = self._own[-1]
        config = lazy_dict(Config(result[0]))
        self._files.append(_File(os.path.normpath(filename), first, changed, stores, edited, config))
        return result

    def _run(self, code: Any, names: dict[str, Any]) -> None:
        number = len(self._files)
        values = self._values.get(number, {})
        bases = names.get('_base_', names)
        bases.update(_copy(self._inherited.get(number, {})))
        inherited, before = dict(dict.items(bases)), _helpers(bases)
        variables = _Variables(names, values, self._earlier[number:])
        exec(code, variables, variables)
        for name in values:
            variables.get(name)
        after = _helpers(bases) | _helpers(variables)
        changed = {k: v for k, v in after.items() if k in variables.stores or before.get(k) != v}
        edited = {name for name, value in before.items() if _plain(inherited[name]) != value}
        self._own.append((changed, variables.stores, edited))
        names.clear()
        names.update(variables)

    def _load(self, path: str) -> dict:
        values = self._values.get(len(self._files), {})
        config = load(path)
        self._own.append((_helpers(config), {}, set()))
        return config | values if path.endswith('.json') or not values else _load_yaml(path, values)

    def sets(self, name: str) -> bool:
        """Tell whether the config itself sets a helper, and not only one of its bases."""
        return name in self._files[-1].changed

    def reads(self, *names: str) -> bool:
        """Tell whether a setting of the config depends on one of some helpers."""
        return self._differs(
            {i: {name: 'another' for name in names if name in x.changed} for i, x in enumerate(self._files)}
        )

    def _differs(self, values: Values) -> bool:
        """Tell whether a setting of the config depends on values."""
        try:
            changed = self._evaluated(values, {}, {})
        except Exception:  # by the code that reads it
            return True
        return changed != _settings(lazy_dict(self.config))

    def stale_helpers(self, cfg: Config, options: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
        """Yield the file that changes a helper, a text that lists the settings that keep the former value, and a mark.

        It says whether some settings take the new value. Then, others may keep theirs on purpose.

        Where nothing reads the helper, as in a config that a training has written, these are the settings that hold it.

        ``cfg`` is the config with ``options``, which count as the last file.
        """
        self._final, self._options = lazy_dict(cfg), options
        by_option = {key.partition('.')[0]: None for key in options}
        files = [*self._files, _File('--cfg-options', 0, by_option, {}, set(), {})]
        self._setters: dict[str, list[int]] = {}  # by helper: the numbers of the files that set it
        for name in _helpers(self._final):
            numbers = [i for i, file in enumerate(files) if name in file.changed]
            # a file that does not inherit the helper sets another one of this name
            numbers = [i for i in numbers if i >= files[numbers[-1]].first]
            if len(numbers) > 1:
                self._setters[name] = numbers
        changed = [
            name
            for name, numbers in self._setters.items()
            if any(_plain(files[i].result[name]) != _plain(self._final[name]) for i in numbers[:-1])
        ]
        stale = {name: self._stale([name], changed) for name in changed}
        if len(changed) > 1 and not any(stale.values()):  # some settings change only with all
            stale = dict.fromkeys(changed, self._stale(changed, changed))
        for name, keys in stale.items():
            origins: dict[str, list[str]] = {}
            for key in keys:
                origins.setdefault(self._origin(name, key), []).append(_dotted(key))
            listed = '; '.join(f'{", ".join(shorten(texts, 6))} (of {file})' for file, texts in origins.items())
            last = self._setters[name][-1]
            path = files[last].path
            if origins:
                yield (
                    path,
                    f"{path}: '{name}' is a helper, and the change has no effect on settings that have already read "
                    f'it. Set them, too: {listed}',
                    last < len(self._files) and self._differs({last: {name: 'another'}}),
                )
        for name in changed:
            *_, before, last = self._setters[name]
            base, new = self._files[before], _plain(self._final[name])
            helpers = _helpers(base.result)
            held = [*_holding(_settings(self._final), name, helpers[name], new)]
            is_word = isinstance(helpers[name], str) and '/' not in helpers[name]
            if is_word and all(key[-1] != name for key in held):  # such as 'train', which others may hold by chance
                continue
            equal = [other for other, value in helpers.items() if value == helpers[name]]  # may be what is read
            # Only in a config that a training has written, no setting depends on any helper.
            if held and not self.reads(*equal) and not EvaluatedConfig(base.path).reads(*helpers):
                yield (
                    files[last].path,
                    f"{files[last].path}: nothing in {self._path} reads '{name}', so the change has no effect. Set "
                    f'what holds its former value, instead: {", ".join(shorten(map(_dotted, held), 6))}',
                    False,
                )

    def _stale(self, names: list[str], changed: list[str]) -> list[tuple]:
        """List the settings that would differ if ``names`` had their final values from the start, but do not change."""
        first: Values = {}
        edited: Values = {}  # what the file that changes a value in place must find
        former: Values = {}
        for name, (*numbers, last) in self._setters.items():
            if name in names or name not in changed:  # what a file sets to the same value again is meant to stay
                for i in numbers:
                    first.setdefault(i, {})[name] = self._final[name]
            if name in names:
                before = self._files[numbers[-1]].result[name]
                former.setdefault(last, {})[name] = before
                if last < len(self._files) and name in self._files[last].edited:
                    edited.setdefault(last, {})[name] = before
        now = _settings(self._final)
        others = {key: value for key, value in self._options.items() if key.partition('.')[0] not in names}
        try:
            wanted = self._evaluated(first, edited, self._options)
            return [] if now == wanted else [*_unmoved(now, wanted, self._evaluated(former, {}, others))]
        except Exception as error:  # of the code of a config
            reason = f'is not known: {type(error).__name__} {error}'
            print_log(f'{self._path}: whether settings follow {", ".join(names)} {reason}', 'current', logging.WARNING)
            return []

    def _evaluated(self, values: Values, inherited: Values, options: Mapping[str, Any]) -> Any:
        config = EvaluatedConfig(self._path, values, inherited, self._files).config
        config.merge_from_dict(deepcopy(dict(options)))
        return _settings(lazy_dict(config))

    def _origin(self, name: str, key: tuple) -> str:
        value = _at(_plain(self._final), key)
        has_value = (file.path for file in self._files if value and _at(_plain(file.result), key) == value)
        return next(has_value, self._files[self._setters[name][0]].path)


class _Variables(dict):
    """The variables of a Python config while it runs, with new values in place of those that the file left earlier.

    A value is replaced at the last store of its name, or when it is read and equals the earlier one, which it may have
    become in another way.
    """

    def __init__(self, names: dict[str, Any], values: dict[str, Any], earlier: Sequence[_File]) -> None:
        super().__init__(names)
        self._new, self._earlier = values, earlier
        self.stores: Counter[str] = Counter()

    def __setitem__(self, name: str, value: Any) -> None:
        self.stores[name] += 1
        is_last = name in self._new and self.stores[name] >= self._earlier[0].stores.get(name, 0)
        super().__setitem__(name, _copy(self._new)[name] if is_last else value)

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if name in self._new and _plain(value) == self._earlier[0].changed[name]:
            new = _copy(self._new)[name]
            if isinstance(value, list) and isinstance(new, list):  # others may hold the same list
                value[:] = new
            elif isinstance(value, dict) and isinstance(new, dict):
                value.clear()
                value.update(new)
            else:
                super().__setitem__(name, new)
                return new
        return value

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 (dict.get does not call __getitem__)


def _load_yaml(path: str, values: dict[str, Any]) -> dict:
    """Read a YAML config with other values for some of its keys, also where aliases repeat them."""
    with open(path, encoding='utf-8') as file:
        loader = yaml.FullLoader(file)
        root = loader.get_single_node()
        for i, (key, node) in enumerate(root.value):
            if key.value in values:
                new = yaml.representer.SafeRepresenter().represent_data(values[key.value])
                if node.start_mark.index > key.start_mark.index:  # its aliases are the same node
                    node.__class__, node.tag, node.value = type(new), new.tag, new.value
                else:  # is an alias
                    root.value[i] = key, new
        return loader.construct_document(root)


def _helpers(config: dict[str, Any]) -> dict[str, Any]:
    names = [name for name in config if name not in SETTINGS and name != '_base_' and not name.startswith('__')]
    return {name: _plain(dict.__getitem__(config, name)) for name in names}


def _copy(values: dict[str, Any]) -> dict[str, Any]:
    return ConfigDict(deepcopy(values))  # as in a base: its values have attributes


def _settings(config: dict[str, Any]) -> Any:
    return _plain({name: value for name, value in config.items() if name in SETTINGS})


def _plain(value: Any) -> Any:
    """Copy a part of a config for comparison: numbers and classes as texts, lists for tuples, no scopes."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in dict.items(value) if key != '_scope_'}
    if isinstance(value, list | tuple):
        return [*map(_plain, value)]
    return f'{value.module}.{value}' if isinstance(value, LazyObject | LazyAttr) else repr(value)


def _dotted(key: tuple) -> str:
    return '.'.join(map(str, key))


def _at(value: Any, key: tuple) -> Any:
    for part in key:
        value = dict(enumerate(value) if isinstance(value, list) else value).get(part) if value else None
    return value


def _holding(now: Any, name: str, former: Any, new: Any, key: tuple = ()) -> Iterator[tuple]:
    """Yield the keys of settings ``now`` that hold what changes in a helper: its ``former`` value, or a path below it.

    A number or an empty value may be equal by chance, so it counts only under the name of the helper.
    """
    if now == former != new and (key[-1:] == (name,) or (former and not isinstance(former, str))):
        yield from _unmoved(now, new, former, key)
    elif isinstance(now, dict | list):
        for part, value in now.items() if isinstance(now, dict) else enumerate(now):
            yield from _holding(value, name, former, new, (*key, part))
    elif _is_below(now, former) and not _is_below(now, new):
        yield key


def _is_below(value: Any, place: Any) -> bool:
    """Tell whether a `_plain` value is the text ``place``, or a path below it."""
    are_texts = all(isinstance(text, str) and text[0] in '\'"' and len(text) > 2 for text in (value, place))
    return are_texts and f'{value[:-1]}/'.startswith(f'{place[:-1].rstrip("/")}/')


def _unmoved(now: Any, wanted: Any, former: Any, key: tuple = ()) -> Iterator[tuple]:
    """Yield the keys where ``now`` is not as ``wanted``, but as ``former``."""
    if all(isinstance(value, dict) for value in (now, wanted)):
        for name in {**now, **wanted}:
            before = former.get(name) if isinstance(former, dict) else None
            yield from _unmoved(now.get(name), wanted.get(name), before, (*key, name))
    elif all(
        isinstance(value, list) and any(isinstance(part, dict | list) for part in value)
        for value in (now, wanted, former)
    ) and len(now) == len(wanted) == len(former):
        for i, parts in enumerate(zip(now, wanted, former)):
            yield from _unmoved(*parts, (*key, i))
    elif now != wanted and now == former:
        yield key
