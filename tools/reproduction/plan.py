"""The plan for a table: its methods and their configs, checked and written to the work dir."""

import difflib
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path
from pprint import pformat
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, init_default_scope

from analysis_tools.get_flops import count, input_channels
from mmattn.utils.component_type import dicts
from mmattn.utils.faults import shorten
from mmattn.utils.files import write_text

from .protocol import Protocol, adapt, choose, deviations, is_own, shipped
from .rows import Row
from .source import Difference, differences
from .task import NoTruthError, ProtocolError, find_metrics, input_size


class Method:
    """Rows of the paper for which the protocol yields the same configs; several such rows differ in their setting.

    Args:
        row (Row): the first row.
        configs (list[Config]): the configs of its stages, as they are run.
        deviations (list[str]): the differences from the paper's protocol, in words.
        members (list[Method]): the methods that an ensemble joins. Defaults to ().
    """

    def __init__(
        self, row: Row, configs: list[Config], deviations: list[str], members: Sequence['Method'] = ()
    ) -> None:
        self.rows = [row]
        self.configs = configs
        self.deviations = deviations
        self.members = members
        self.name = row.name
        self.baseline = row.baseline
        self.keys: list[str] = []  # in results.json; the last stage's has the result
        self.paths: list[Path] = []
        self.trainings: list[Path] = []  # the configs whose runs have the trainings of the stages

    def name_after_setting(self) -> None:
        """Add the setting to the name, to distinguish methods of the same name."""
        self.name = f'{self.name}, {"/".join(row.setting for row in self.rows)}'

    def counts(self) -> tuple[int, float]:
        """Return parameters and multiply-accumulates of the network in inference, for one input."""
        cfg = self.configs[-1]
        steps = dicts(cfg.train_dataloader.dataset)
        frames = next((step.num_frames for step in steps if 'num_frames' in step), 1)
        return count(cfg, (input_channels(cfg), *input_size(cfg)), frames)


def plan(
    rows: list[Row],
    protocol: Protocol,
    data: Config | None,
    names: list[str] | None = None,
    with_baselines: bool = True,
) -> list[Method]:
    """Return the methods of a table's rows, or only those with some names, and their baselines.

    A method whose baseline is left out, ``with_baselines=False``, has none.
    """
    methods: list[Method] = []
    chosen = select(choose(rows, protocol, data), names, with_baselines=with_baselines)
    baselines = {(row.name, row.setting) for row in chosen}
    for row in chosen:
        if row.compared not in baselines:
            row = row._replace(baseline=None)
        configs = adapt(row, protocol, data)
        content = [cfg.to_dict() for cfg in configs]
        named = (method for method in methods if method.rows[0].name == row.name)
        method = next((method for method in named if [cfg.to_dict() for cfg in method.configs] == content), None)
        if method is None:
            members = plan(row.members, protocol, data, with_baselines=False) if row.members else ()
            methods.append(Method(row, configs, deviations(row, protocol, configs, data), members))
        else:
            method.rows.append(row)
    if len({tuple(row.setting for row in method.rows) for method in methods}) > 1:
        for method in methods:
            method.name_after_setting()
    method_names = {(row.name, row.setting): method.name for method in methods for row in method.rows}
    for method in methods:
        if method.baseline is not None:
            method.baseline = method_names[method.baseline, method.rows[0].compared[1]]
    return methods


def follows_source(methods: list[Method], protocol: Protocol, data: Config | None) -> bool:
    """Whether rows run on the paper's data with the paper's network, so that the source states their settings."""
    rows = [row for method in methods for row in method.rows]
    if protocol.small or protocol.shrink is not None or protocol.scale != 1:
        return False
    return data is None or all(is_own(shipped(row.configs[-1]), data) for row in rows)


def words(methods: list[Method], protocol: Protocol, data: Config | None) -> list[str]:
    """Return the differences between the runs and the paper's protocol, in words; empty if there are none."""
    differences = [deviations(row, protocol, method.configs, data) for method in methods for row in method.rows]
    return list(dict.fromkeys(text for texts in differences for text in texts))


def source_words(rows: list[Row], options: Mapping[str, Any] = {}) -> tuple[list[str], list[str]]:
    """Return what the configs of rows have otherwise than the source states, and what it does not state, by place.

    If the table has other rows, too, a text ends with the names of its own. For an ensemble, its members are compared.
    ``options`` are further settings of all rows.
    """
    rows = [*{(part.name, part.setting): part for row in rows for part in row.members or [row]}.values()]
    names_by_difference: dict[Difference, list[str]] = {}
    for row in rows:
        with_options = row._replace(options={**row.options, **options})
        for difference in differences(with_options, map(shipped, row.configs)):
            name = f'{row.name}, {row.setting}' if row.setting else row.name
            names_by_difference.setdefault(difference, []).append(name)
    texts: dict[str | None, list[str]] = {}
    for difference, names in names_by_difference.items():
        own = '' if len(names) == len(rows) else f' [{"; ".join(shorten(names, 3))}]'
        texts.setdefault(difference.missing, []).append(difference.words + own)
    differing = texts.pop(None, [])
    return differing, [f'{place}: {"; ".join(words)}' for place, words in texts.items()]


def check_data(methods: list[Method]) -> None:
    """Check that the data of all methods exist and can be scored."""
    checked = []
    for method in methods:
        find_metrics(method.configs[-1])
        for cfg in method.configs:
            for loader in (cfg.train_dataloader, cfg.test_dataloader):
                if loader.dataset not in checked:
                    checked.append(loader.dataset)
                    _check(loader.dataset, cfg.default_scope)


def write_configs(methods: list[Method], folder: Path, comments: list[str]) -> None:
    """Write the configs to a folder, from which they are run; existing ones must be the same.

    A file has the name of the shipped config and the values of a row's options, its key in results.json. Where methods
    differ in their tests alone, the first one's training is of all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    changed: list[str] = []
    named: dict[str, Config] = {}
    trainings: dict[tuple[str, ...], Path] = {}
    for method in methods + [member for ensemble in methods for member in ensemble.members]:
        shipped = method.rows[0].configs[: len(method.configs)]
        # Rows that differ in their options share a config; encoder and decoder may have other values of one setting.
        options: defaultdict[str, list[str]] = defaultdict(list)
        for key, value in method.rows[0].options.items():
            options[key.rpartition('.')[2]].append(_short(value))
        varied = ''.join(f'_{key}-{"-".join(dict.fromkeys(values))}' for key, values in options.items())
        method.keys = [f'{Path(name).stem}{varied}' for name in shipped]
        if any(named.get(key, cfg).to_dict() != cfg.to_dict() for key, cfg in zip(method.keys, method.configs)):
            varied += f'_{_digest(method.rows[0].options)}'  # one value of two settings with the same last part
            method.keys = [f'{Path(name).stem}{varied}' for name in shipped]
        named.update(zip(method.keys, method.configs))
        method.paths = [folder / f'{key}.py' for key in method.keys]
        parts = [pformat(_training(cfg)) for cfg in method.configs]
        method.trainings = [trainings.setdefault((*parts[: i + 1],), path) for i, path in enumerate(method.paths)]
        for name, cfg, path in zip(shipped, method.configs, method.paths):
            if not path.exists():
                head = (f'# {line}\n' for line in (f'{method.name}: configs/{name}', *comments))
                write_text(path, ''.join(head) + _text(cfg))
                continue
            before = Config.fromfile(path)
            if before.to_dict() != cfg.to_dict():
                then, now = (_text(config).splitlines() for config in (before, cfg))
                changed += difflib.unified_diff(then, now, str(path), 'requested now', n=0, lineterm='')
    if changed:
        advice = f'{folder.parent} has runs with other settings; choose another --work-dir, or the same settings.'
        raise ProtocolError('\n'.join([f'{advice} The differences:', *changed[:40]]))


def _training(cfg: Config) -> dict[str, Any]:
    """Return what decides a training and the checkpoint that is tested: all but the settings of the test.

    ``model.test_cfg`` belongs to the validation, too, which may choose the checkpoint.
    """
    settings = {key: value for key, value in cfg.to_dict().items() if not key.startswith(('test_', 'tta_'))}
    if cfg.get('val_evaluator') is not None and cfg.default_hooks.checkpoint.get('save_best'):
        return settings
    return {**settings, 'model': {key: value for key, value in settings['model'].items() if key != 'test_cfg'}}


def _short(value: object) -> str:
    """Return a plain value for the name of a file, or a digest of one with parts, or of a long or special text."""
    plain = re.fullmatch(r'[\w.+-]{1,40}', value) if isinstance(value, str) else isinstance(value, bool | int | float)
    return str(value) if value is None or plain else _digest(value)


def _digest(value: object) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def _text(cfg: Config) -> str:
    """Return the text of a config file; mmengine's formatter takes a second per config."""
    lines = (
        f'{key} = ' + pformat(value, width=116 - len(key)).replace('\n', '\n' + ' ' * (len(key) + 3))
        for key, value in cfg.to_dict().items()
    )
    return '\n'.join(lines) + '\n'


def select(rows: list[Row], names: list[str] | None, *, with_baselines: bool) -> list[Row]:
    """Return the rows with some names, in which * matches any text, and their baselines."""
    for name in names or ():
        if not any(fnmatch(row.name, name) for row in rows):
            row_names = '; '.join(dict.fromkeys(row.name for row in rows))
            raise ProtocolError(f"--rows must be one of {row_names}; got '{name}'")
    chosen = [row for row in rows if names is None or any(fnmatch(row.name, name) for name in names)]
    if not with_baselines:
        return chosen
    needed: set[tuple[str | None, str]] = {(row.name, row.setting) for row in chosen}
    while missing := {row.compared for row in rows if (row.name, row.setting) in needed} - needed:
        needed |= missing  # a baseline may have one, too
    return [row for row in rows if (row.name, row.setting) in needed]


def _check(dataset: ConfigDict, scope: str) -> None:
    roots = dict.fromkeys(part.data_root for part in dicts(dataset) if 'data_root' in part)
    advice = '(set the folder by --data-root or an environment variable)'
    where = f'{" and ".join(roots)} {advice}'
    for root in roots:
        if not Path(root).is_dir():
            raise ProtocolError(f'there is no folder {root} {advice}')
    init_default_scope(scope)
    try:
        built = DATASETS.build(dataset)
        count = len(built)
    except (OSError, ValueError, KeyError) as error:
        raise ProtocolError(f'the data are not in {where}: {error}') from None
    if count == 0:
        raise ProtocolError(f'nothing to train on or to test in {where}')
    if getattr(built, 'published', True) is False:
        raise NoTruthError(f'the answers of {dataset.ann_file} are not published')
