"""Write the figures of our own runs into the pages, from docs/results and the metafiles.

A comment before a paragraph or a list names the sources of its decimal numbers, in order::

    <!-- figures evidence_g
    BLEU, de and fr | Bi-SA − SA
    BLEU, de and fr | Bi-SA − SA-RPE | 98.75 %
    kept
    -->

A line has a label of the file, one row or the difference of two, and an option: the level of an interval, the key
of one run, or ``each`` for all runs. A number before a % is left alone, and so is one whose line is ``kept``. Another
file stands before the label: ``evidence_e; F1, 30° | U-Net``.

Before a table, a line fills a column: ``mean = mIoU | {0}``. ``{0}`` is the first cell of a row, ``{pair[0]}`` the
first part of its "A − B", ``{to}`` what follows "to" in the cell, and `` & `` joins figures. A line with the text of a
first cell says what ``{0}`` is there.

Numbers keep their decimals, and whether they have a sign. Where one would become negative without having a sign, the
sentence around it is wrong, and nothing is written.
"""

import argparse
import itertools
import json
import re
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from mmengine.fileio import load

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / 'tools'))
from reproduction.costs import measured_table  # noqa: E402
from reproduction.results import Result, deviation, difference, sampled_difference  # noqa: E402
from reproduction.source import deviation_text  # noqa: E402

BLOCK = re.compile(r'(?<=<!-- figures)(.*)\n((?:.+\n)*?)-->\n((?:.+\n)+)')
WRITTEN = re.compile(r'<!-- (deviations|costs) -->\n(.*?)(?=<!-- end -->)', re.S)
DECIMAL = re.compile(r'(?<![\w.−+-])(?<!Table )[+−-]?\d+\.\d+(?!\.?\d|\s%)')
NUMBER = re.compile(r'(?<![\w.−+-])[+−-]?\d+(?:\.\d+)?(?!\.?\d|\w)')
VERDICTS = {'++': 'confirmed', '-+': 'undecided', '--': 'refuted'}


@cache
def read(source: str) -> dict[str, Any]:
    """Return a part of a file: rows with scores by label and by seed, fold or clip; units; intervals."""
    file, _, part = source.partition(': ')
    if file == 'metafiles':
        models = [model for path in sorted(ROOT.glob('configs/*/metafile.yml')) for model in load(path)['Models']]
        measured = [(model, entry) for model in models for entry in model.get('Measured', ())]
        return {'rows': {entry['Title']: measured_row(model, entry) for model, entry in measured}}
    record = json.loads((ROOT / f'docs/results/{file}.json').read_text(encoding='utf-8'))
    return {'rows': gpu_rows(record[part])} if file == 'gpu_h200' else record[part or 'main']


def measured_row(model: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    hours = model['Metadata']['Iterations'] * entry['ms'] / 3.6e6
    return {'scores': {'ms': {'': entry['ms']}, 'hours': {'': hours}}}


def gpu_rows(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return calls of operators by workload and dtype, or trainings with AMP by network; labels are kernels."""
    rows: dict[str, Any] = {}
    for run in runs:
        if 'workload' in run and 'ms' in run:
            row = rows.setdefault(f'{run["workload"]}, {run["dtype"]}', {'scores': {}})['scores']
            row.setdefault(run.get('title'), {}).update({(run['pass'], x): run[x] for x in ('ms', 'mib')})
        elif run.get('amp'):
            row = rows.setdefault(run['title'], {'scores': {}})['scores']
            row[run['kernels']] = {'ms': run['ms'], 'mib': run['peak_mib']}
    return rows


def figures(expression: str, source: str) -> list[float]:
    """Return the figures of a line: mean and deviation of a row, all runs and their mean, or the difference of two."""
    *other, expression = expression.split('; ')
    label, names, *option = expression.split(' | ')
    part = read(other[0] if other else source)
    rows = [part['rows'][name] for name in names.split(' − ')]
    if label in ('parameters', 'macs', 'seconds'):
        return [rows[0][label] / {'parameters': 1e6, 'macs': 1e9, 'seconds': 1}[label]]
    scores = [row['scores'][label] for row in rows]
    key = option[0] if option else ''
    if key == 'each':
        return [*scores[0].values(), statistics.mean(scores[0].values())]
    if key and '%' not in key:
        return [scores[0][key] - sum(score[key] for score in scores[1:])]
    if len(scores) == 1:
        return [statistics.mean(scores[0].values()), deviation([*scores[0].values()]) or 0.0]
    if not key:
        return [statistics.mean(scores[0].values()) - statistics.mean(scores[1].values())]
    return interval(part, names.split(' − '), label, level(key))


def level(text: str) -> float:
    """Return 1 − 0.05/n, which texts round: an interval that is corrected for n contrasts."""
    return 1 - 0.05 / round(0.05 / (1 - float(text.rstrip(' %')) / 100))


def interval(part: dict[str, Any], names: list[str], label: str, confidence: float) -> list[float]:
    """Return a difference and its limits: as recorded (a bootstrap of pixels or words), of units, or Student's t."""
    for entry in part.get('intervals', ()):
        if [entry['ours'], entry['baseline'], entry['of']] == [*names, label]:
            return entry['interval']
    rows = [part['rows'][name] for name in names]
    if all('sums' in row for row in rows):
        seeds = [seed for seed in rows[0]['sums'] if seed in rows[1]['sums']]
        return [*sampled_difference(*([of_units(part, row['sums'][seed]) for seed in seeds] for row in rows))]
    ours, baseline = (row['scores'][label] for row in rows)
    keys = [key for key in ours if key in baseline]
    return [*difference(*([score[key] for key in keys] for score in (ours, baseline)), confidence)]


def of_units(part: dict[str, Any], sums: list[float]) -> Result:
    """Return the samples of a run: a unit's sum of scores, and the number of its samples."""
    samples = {unit: [part['scale'] * total, count] for (unit, count), total in zip(part['units'].items(), sums)}
    return Result({}, samples=samples)


def fill(text: str, numbers: list[float | None], pattern: re.Pattern[str]) -> str:
    """Replace the numbers in a text, in order; None keeps one."""
    values = iter(numbers)

    def write(match: re.Match[str]) -> str:
        old, value = match[0], next(values)
        if value is None:
            return old
        new = f'{value:.{len(old.partition(".")[2])}f}'
        if float(new) < 0 and old[0].isdigit():
            raise ValueError(f'{old} would become {new}: {" ".join(text.split())}')
        sign = ('−' if re.search(r'−\d', text) else '-') if float(new) < 0 else '+'
        return new.lstrip('-') if old[0].isdigit() else sign + new.lstrip('-')

    found = len(pattern.findall(text))
    if found != len(numbers):
        raise ValueError(f'{found} numbers, but {len(numbers)} sources: {" ".join(text.split())}')
    return pattern.sub(write, text)


def paragraph(source: str, lines: list[str], text: str) -> str:
    numbers: list[float | None] = []
    for line in lines:
        numbers += [None] if line == 'kept' else figures(line, source)[: 3 if line.endswith('%') else 1]
    return fill(text, numbers, DECIMAL)


def table(source: str, lines: list[str], text: str) -> str:
    heads, rule, *rows = text.splitlines()
    columns = dict(line.rsplit(' = ', 1) for line in lines)
    titles = [head.strip() for head in heads[1:-1].split(' |')]
    written = [heads, rule]
    for row in rows:
        cells = [cell.strip() for cell in row[1:-1].split(' |')]
        names = [re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', cell) for cell in cells]
        names[0] = columns.get(names[0], names[0])
        for i, title in enumerate(titles):
            count = len(NUMBER.findall(cells[i]))
            if title not in columns or not count or not i:
                continue
            fields = dict(pair=names[0].split(' − '), to=cells[i].partition(' to ')[2])
            expressions = columns[title].format(*names, **fields).split(' & ')
            found = [figures(expression, source) for expression in expressions]
            known = found[0] if len(found) == 1 else [x for numbers in found for x in numbers[:1]]
            cells[i] = fill(cells[i], [*known[:count]], NUMBER)
        if cells[-1] in VERDICTS.values() and (
            limits := re.search(r'\[([+-])\d[^]]*, ([+-])', ' '.join(cells).replace('−', '-'))
        ):
            cells[-1] = VERDICTS[''.join(limits.groups())]
        written.append(''.join(f'| {cell} ' if cell else '| ' for cell in cells) + '|')
    return ''.join(f'{line}\n' for line in written)


def deviations(page: Path) -> Iterator[str]:
    for collection in load(page.with_name('metafile.yml'))['Collections']:
        for entry in collection.get('Deviations', ()):
            yield '\n  '.join(textwrap.wrap(f'* {deviation_text(entry)}.', 140, break_on_hyphens=False))


def costs(page: Path) -> Iterator[str]:
    yield from measured_table(sorted(ROOT.glob('configs/*/metafile.yml')))


def rewrite(page: Path, text: str) -> str:
    """Return the text of a page with its figures."""

    def block(match: re.Match[str]) -> str:
        lines = match[2].splitlines()
        written = (table if ' = ' in match[2] else paragraph)(match[1].strip(), lines, match[3])
        return match[0].removesuffix(match[3]) + written

    def whole(match: re.Match[str]) -> str:
        write: Callable[[Path], Iterator[str]] = {'deviations': deviations, 'costs': costs}[match[1]]
        return f'<!-- {match[1]} -->\n' + ''.join(f'{line}\n' for line in write(page))

    return WRITTEN.sub(whole, BLOCK.sub(block, text))


def pages() -> list[Path]:
    return [ROOT / 'README.md', *sorted(itertools.chain(ROOT.glob('docs/**/*.md'), ROOT.glob('configs/*/README.md')))]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--check', action='store_true', help='write nothing, name the pages whose figures are stale')
    check = parser.parse_args(arguments).check
    written = {}
    for page in pages():
        text = page.read_text(encoding='utf-8')
        try:
            new = rewrite(page, text)
        except (KeyError, ValueError) as error:
            raise SystemExit(f'{page.relative_to(ROOT)}: {type(error).__name__}: {error}') from error
        if new != text:
            written[page] = new
    for page, text in written.items():
        print(f'{page.relative_to(ROOT)}: {"stale, run tools/misc/write_figures.py" if check else "written"}')
        if not check:
            page.write_text(text, encoding='utf-8')
    return 1 if check and written else 0


if __name__ == '__main__':
    sys.exit(main())
