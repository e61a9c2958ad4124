"""results.json: the finished runs of a table, their settings and the comparison of its rows, in one file."""

import json
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from mmattn.utils.files import write_text

from .results import Result, Score


class Store:
    """The finished runs in a results.json, read when it is opened and written after each further run.

    The file has ``setup`` and ``rows`` of the last report, and the ``runs`` by name of the config and seed. The
    ``samples`` of all runs are listed once; a run has their scores in this order, or null. If all scores are 0 or 100,
    as of questions, they are a text of the digits 0 and 1.

    Unlike a :class:`mmattn.utils.resumable.Resumable`, which belongs to one run, it is a document that is published and
    copied, to which runs of other settings are added, so each run has its own, and the file is replaced as a whole.

    Args:
        path (Path): the file; it need not exist.

    Raises:
        ValueError: the file is not JSON.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        content = _read(path) if path.exists() else {}
        self.setup: Mapping[str, Any] = content.get('setup', {})
        self.rows: list[dict[str, Any]] = content.get('rows', [])
        names = content.get('samples', [])
        self._runs: dict[tuple[str, str], tuple[int, Result]] = {
            (config, seed): (run.pop('steps'), _result(run, names))
            for config, runs in content.get('runs', {}).items()
            for seed, run in runs.items()
        }

    def get(self, config: str, seed: int, steps: int, units: str, deviations: list[str] | None = None) -> Result | None:
        """Return the result of a run, or None.

        Args:
            config (str): name of the config, without suffix.
            seed (int): seed of the training.
            steps (int): its iterations or epochs.
            units (str): their name, for the message.
            deviations (list[str], optional): the requested differences from the paper's protocol. Defaults to None:
                any.
        """
        stored = self._runs.get((config, str(seed)))
        if stored is None:
            return None
        if stored[0] != steps:
            raise ValueError(
                f'{self.path}: {config}, seed {seed}, is of a training of another length than {steps} {units}'
            )
        before = stored[1].deviations
        if None not in (before, deviations) and before != deviations:
            then, now = ('; '.join(words or ['none']) for words in (before, deviations))
            raise ValueError(
                f'{self.path}: {config}, seed {seed}, was trained with other settings: {then}; requested now: {now}'
            )
        return stored[1]

    def add(self, config: str, seed: int, steps: int, result: Result) -> Result:
        """Add a run, write the file, and return the result with rounded figures, as :meth:`get` of a new store does."""
        result = _round(result)
        with self._lock:
            self._runs[config, str(seed)] = steps, result
            self._write()
        return result

    def report(self, setup: Mapping[str, Any], rows: list[dict[str, Any]]) -> None:
        with self._lock:
            self.setup, self.rows = setup, rows
            self._write()

    def _write(self) -> None:
        """Write one run a line: the scores of samples, indented, would fill pages."""
        names = list(dict.fromkeys(name for _, result in self._runs.values() for name in result.samples))
        runs: dict[str, list[str]] = {}
        for (config, seed), (steps, result) in sorted(self._runs.items(), key=lambda item: _order(*item[0])):
            runs.setdefault(config, []).append(f'{_json(seed)}: {_json(_content(steps, result, names))}')
        parts = [
            f'"setup": {_json(self.setup)}',
            f'"rows": [\n{_lines(map(_json, self.rows))}\n]',
            f'"samples": {_json(names)}',
            '"runs": {\n' + _lines(f'{_json(name)}: {{\n{_lines(lines)}\n}}' for name, lines in runs.items()) + '\n}',
        ]
        write_text(self.path, '{\n' + ',\n'.join(parts) + '\n}\n')


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding='utf-8'))
    except ValueError as error:
        raise ValueError(f'{path} is not JSON: {error}') from None


def _order(config: str, seed: str) -> tuple[str, int]:
    return config, int(seed) if seed.isdecimal() else -1  # earlier versions had rows without training


def _lines(lines: Any) -> str:
    return ',\n'.join(lines)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(',', ':'))


def _content(steps: int, result: Result, names: list[str]) -> dict[str, Any]:
    content = dict(steps=steps, metrics=result.metrics, seconds=result.seconds, memory=result.memory)
    if result.curve:
        content['curve'] = result.curve
    if result.samples:
        content['statistic'] = result.statistic
        scores = [result.samples.get(name) for name in names]
        are_digits = all(score in (0, 100) for score in scores)
        content['scores'] = ''.join('1' if score else '0' for score in scores) if are_digits else scores
    if result.deviations is not None:
        content['deviations'] = result.deviations
    return content


def _round(result: Result) -> Result:
    samples = {name: _rounded(score) for name, score in result.samples.items()}
    return result._replace(samples=samples, curve=[[step, round(value, 4)] for step, value in result.curve])


def _rounded(score: Score) -> Any:
    if isinstance(score, list | tuple):
        return [_rounded(part) for part in score]
    return int(score) if float(score).is_integer() else round(score, 3)  # type: ignore[arg-type]


def _result(run: Mapping[str, Any], names: list[str]) -> Result:
    scores = run.get('scores', ())
    if isinstance(scores, str):
        scores = [100 * int(digit) for digit in scores]
    samples = {name: score for name, score in zip(names, scores) if score is not None}
    return Result(
        run['metrics'],
        run['seconds'],
        run['memory'],
        run.get('curve', ()),
        samples,
        run.get('statistic', 'mean'),
        run.get('deviations'),
    )
