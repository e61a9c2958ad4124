"""Every figure of our own runs on a page is recomputed from the small files in docs/results."""

import itertools
import json
import re
import statistics
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.fileio import load
from scipy import stats

from mmattn.utils import config_path
from reproduction.results import Measured, Result, compare, deviation, difference, unseal
from reproduction.store import Store

from ..requirements import requires

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / 'docs/results'
sys.path.insert(0, str(RESULTS))  # whose scripts are no package
import plot_evidence  # noqa: E402
import score_clothes  # noqa: E402
import score_faces  # noqa: E402
import score_translations as scorer  # noqa: E402

del sys.path[0]
pytestmark = pytest.mark.slow
NUMBER = r'[+−-]?\d+\.\d+'
INTERVAL = re.compile(rf'({NUMBER}) \[({NUMBER}), ({NUMBER})\]')
# One interval; the primary contrasts, the follow-up and question (h) of docs/evidence.md, and the pilot of (j).
LEVELS = 0.95, 1 - 0.05 / 6, 1 - 0.05 / 3, 1 - 0.05 / 4, 1 - 0.05 / 2

# Files whose runs are those of shipped configs.
OF_CONFIGS = 'coco-qa', 'daquar', 'easy-vqa', 'flickr8k', 'flickr8k-entities', 'multi30k'
SCALED = 'U-Net-BA, content logits times 1/√d'
# Page, text before and after its tables, or its numbers in a text, and result file.
SECTIONS = [
    ('docs/results/README.md', '## Table 3.2', '![mIoU', 'table_3.2'),
    ('docs/results/README.md', '## Table 4.2', '![mIoU', 'table_4.2'),
    ('configs/ban/README.md', '<!-- coco-qa -->', '<!-- end -->', 'coco-qa'),
    ('configs/ban/README.md', '**Do the orders of the paper show?**', 'Six questions', 'coco-qa'),
    ('configs/ban/README.md', '**DAQUAR**', 'BAN-2 has the higher', 'daquar'),
    ('configs/ban/README.md', '**easy-VQA**', '![Accuracy', 'easy-vqa'),
    ('configs/fusion/README.md', '<!-- coco-qa -->', 'On **easy-VQA**', 'coco-qa'),
    ('configs/ban_grounding/README.md', '<!-- entities -->', '<!-- end -->', 'flickr8k-entities'),
    ('configs/ng_san/README.md', '<!-- flickr8k -->', '<!-- end -->', 'flickr8k'),
    ('configs/ng_san/README.md', '| SAN, layers, seed 0 |', '\n\n', 'flickr8k'),
    ('configs/bi_sa/README.md', '<!-- multi30k -->', '![BLEU', 'multi30k'),
    ('configs/bi_sa/README.md', 'One seed, 600 updates', 'Every variant of Bi-SA', 'multi30k_600-updates'),
    ('configs/attention_terms_nmt/README.md', 'One seed, 600', 'Self-attention without the', 'multi30k_600-updates'),
    # The curve of (a), seed 0, was not stored. The first row of a section is not checked: here the row of another file.
    ('docs/evidence_protocol.md', '| NL | a |', '| SST (Grid), two folds', 'evidence_c'),
    ('docs/evidence_protocol.md', '| U-Net | c |', '* **(c).**', 'evidence_d_stock'),
    ('docs/results/runs.md', '* Means of overall F1', '* In the [short runs]', 'evidence_c'),
    ('docs/results/runs.md', '* The highest mean', 'Without content logits', 'evidence_c_exploratory'),
    ('docs/results/runs.md', '* In the follow-up', '## Runs of (d)', 'evidence_c'),
    ('docs/results/runs.md', '* Means of mIoU', '* A training crop', 'evidence_a'),
    ('docs/results/runs.md', '* Means: CC', '* This leaves', 'evidence_f'),
    ('docs/results/runs.md', '* *Copying start*', '**(h)**, seeds', 'evidence_h_exploratory'),
    ('docs/results/runs.md', 'its mean of', '* In (d) with the first', 'evidence_h'),
    ('docs/results/runs.md', '* In (d) with the first', 'Grid gains most', 'evidence_d_first-recipe'),
    ('docs/evidence.md', '| contrast, overall F1 | paper', 'The deficit', 'evidence_c'),
    ('docs/evidence.md', 'The deficit on upright', '### Streets', 'evidence_c'),
    ('docs/evidence.md', '| contrast | paper | here, 99.2 %', 'This setting', 'evidence_a'),
    ('docs/evidence.md', '| contrast, J&F | paper', 'The runs that were', 'evidence_d'),
    ('docs/evidence.md', 'The runs that were', 'Both kinds of SST', 'evidence_d_first-recipe'),
    ('docs/evidence.md', 'Both kinds of SST', 'With 493', 'evidence_d'),
    ('docs/results/runs.md', '## Runs of (d)', '* Trained on six', 'evidence_d'),
    ('docs/results/runs.md', 'which was registered, the', 'Neither recipe', 'evidence_d_first-recipe'),
    ('docs/results/runs.md', '* Exploratory, person 07', 'So the small', 'evidence_e_exploratory'),
    ('docs/evidence.md', '**New people.**', 'The narrow U-Net and', 'evidence_e'),
    ('docs/results/runs.md', '* Trained on person 01', '(98.3 %)', 'evidence_e_one-person'),
    ('docs/results/runs.md', '### Longer sentences', '* All rows', 'evidence_g'),
    ('docs/results/runs.md', 'five seeds, German and French', '* The gate', 'evidence_g'),
    ('docs/results/runs.md', 'Secondary rows, English', '## Runs of (h)', 'evidence_g'),
    ('docs/evidence.md', '**Two languages.**', 'With at most 16', 'evidence_g'),
    ('docs/evidence.md', '**Longer sentences.**', 'On the pairs of', 'evidence_g'),
    ('docs/evidence.md', '| contrast with photographs', 'SST (Grid) misses', 'evidence_h'),
    ('configs/sst/README.md', '| J&F | mean | to label', '\n\n', 'evidence_d'),
    ('docs/evidence.md', 'From a trained CC:', 'From a trained NL:', 'evidence_i_cc'),
    ('docs/evidence.md', 'From a trained NL:', 'The gain of Bi-CC', 'evidence_i_nl'),
    ('docs/results/runs.md', 'continued from CC:', '* Continued from NL', 'evidence_i_cc'),
    ('docs/results/runs.md', '* Continued from NL:', '* **At the start**', 'evidence_i_nl'),
    ('docs/results/runs.md', '| row | seed 100', 'So the number', 'evidence_j_pilot_0.003'),
    ('docs/results/runs.md', '* With the second rate', '* With the third', 'evidence_j_pilot_0.01'),
    ('docs/results/runs.md', '* With the third rate', '### CC and Bi-CC', 'evidence_j_pilot_0.001'),
    ('docs/results/runs.md', '### CC and Bi-CC', 'So positions help', 'evidence_j_cc'),
    ('docs/evidence.md', '### Clothes: Bi-CC', 'In the second row', 'evidence_j_cc'),
    ('docs/evidence.md', '**By class**', 'Trousers, legwear', 'evidence_j_cc'),
    ('docs/results/runs.md', '### NL and Bi-NL', 'So for NL, too', 'evidence_j_nl'),
    ('docs/evidence.md', '### Clothes: Bi-NL', 'In each of the 15 pairs', 'evidence_j_nl'),
    ('docs/evidence.md', '**By class**, outer', 'Upper, trousers', 'evidence_j_nl'),
    ('docs/evidence.md', 'From the CC of seed 0', 'From the CC of seed 1', 'evidence_j_trained_0'),
    ('docs/evidence.md', 'From the CC of seed 1', '* **No contrast', 'evidence_j_trained_1'),
    ('docs/results/runs.md', '### From a trained CC', 'From those of seed 1', 'evidence_j_trained_0'),
    ('docs/results/runs.md', 'From those of seed 1', 'The first four', 'evidence_j_trained_1'),
    ('docs/results/runs.md', '### Secondary rows of (j)', 'Upside down,', 'evidence_j_secondary'),
    ('docs/evidence.md', '### Clothes: attention', '* **Keep the', 'evidence_j_secondary'),
]
# What pages call a method of the result files.
ALIASES = {
    'T_v (ETA without attributes)': 'T_v',
    **{'1': 'SAN, 1 layer', '2': 'SAN', '4': 'SAN, 4 layers'},
    'Bi-SA, minimum outside the window': 'Bi-SA, minimum',
    'Bi-SA, 0': 'Bi-SA',
    'Bi-SA, 21 / 11, as "0" above': 'Bi-SA',
    **{f'Bi-SA, {sizes}': f'Bi-SA, {sizes.replace(" ", "")}' for sizes in ('11 / 6', '41 / 21')},
    'Bi-SA, entries 5 / 3': 'Bi-SA, 5/3',
    **{f'{name}; 1111': name for name in ('1111', '0111', '0110', '0100')},
    'dynamic convolution, n_k = 13; 1111': 'dynamic 13',
    '1111; 0111': '1111, encoder–decoder 0111',
    'U-Net-BA with 1/√d': SCALED,
    'label propagation, not trained': 'label propagation',
    'the first mask, repeated': 'first mask',
    'SST, grid': 'SST (Grid)',
    'SST (Grid), two folds': 'SST (Grid)',
    'SST, strided': 'SST (Strided)',
    'label propagation, `mmattn.LabelPropagation`': 'label propagation',
}
# Columns of other sources: the papers', and what needs more than these files (options of an evaluation that was not
# stored, the power of a test).
LEFT_OUT = re.compile(r'paper|thesis|union|detectable|config|seeds for|pairs for')


@cache
def read(name):
    """Return the rows of a file, and for cross-validations the result of each fold."""
    store = Store(RESULTS / f'{name}.json')
    runs = {config: {} for row in store.rows for config in row['configs']}
    for (config, seed), (_, result) in store._runs.items():
        runs[config][seed] = result
    methods, by_fold = {}, {}
    for row in store.rows:
        folds = [runs[config] for config in row['configs']]
        counts = row.get('parameters') or 0, row.get('macs') or 0.0
        whole = {seed: pool([fold[seed] for fold in folds]) for seed in folds[0]}
        columns = (row[key] for key in ('name', 'paper', 'baseline'))
        methods[row['name']] = Measured(*columns, row['configs'][0], *counts, whole)
        by_fold[row['name']] = [[fold[seed] for seed in folds[0]] for fold in folds]
    return methods, by_fold


def pool(folds):
    """Return the result of a seed over the folds of (d) and (h): means of metrics and curves, the clips of all."""
    if len(folds) == 1:
        return unseal(folds[0])
    samples = {name: score for fold in folds for name, score in fold.samples.items()}
    metrics = {name: statistics.mean(fold.metrics[name] for fold in folds) for name in folds[0].metrics}
    if samples:  # a fold may have more clips than another
        metrics[next(iter(metrics))] = statistics.mean(score / count for score, count in samples.values())
    curve = [(points[0][0], statistics.mean(y for _, y in points)) for points in zip(*(fold.curve for fold in folds))]
    times = [fold.seconds for fold in folds if fold.seconds is not None]
    return Result(metrics, statistics.mean(times) if times else None, None, curve, samples)


def mean_and_deviation(values):
    return [statistics.mean(values), deviation(values) or 0.0] if values else []


class Runs:
    """Rows of tools/reproduce.py."""

    def __init__(self, file):
        self.file = file
        self.methods, self.folds = read(file)
        self.parts = {name: [run for fold in folds for run in fold] for name, folds in self.folds.items()}

    def figures(self, name):
        """Every figure that a table may print about a method."""
        method, parts = self.methods[name], self.parts[name]
        results = [*method.results.values()]
        by_metric = [method.values(metric) for metric in method.metrics]
        last = method.last_validations()
        longest = max(len(result.curve) for result in results)  # of the runs that chose the size, if there were any
        curves = [result.curve for result in results if result.curve and len(result.curve) == longest]
        means = [statistics.mean(value for _, value in points) for points in zip(*curves)]
        folds = [[run.curve[-1][1] for run in fold if run.curve] for fold in self.folds[name]]
        folds = folds if len(folds) > 1 else [[curve[-1][1] for curve in curves]]
        scores = [(clip, score) for part in parts for clip, score in part.samples.items() if isinstance(score, list)]
        scores = [(clip, score) for clip, score in scores if len(score) == 2]  # a ratio, not pixels by class
        clips = [[score[0] for other, score in scores if other == clip] for clip in dict(scores)]
        halves = [[sum(pair) / 2 for pair in zip(last, by_metric[0])]] if last else []
        figures = [value for values in (*by_metric, last, means, *curves) for value in np.ravel(values)]
        figures += [figure for values in (*by_metric, last, *halves) for figure in mean_and_deviation(values)]
        figures += [*map(statistics.mean, (*zip(*by_metric), *clips)), *(score[0] / score[1] for _, score in scores)]
        figures += [next(iter(part.metrics.values())) for part in parts if part.metrics]  # or they are sealed
        figures += [b - a for a, b in itertools.combinations(means, 2)]
        figures += [2**0.5 * statistics.mean((deviation(values) or 0.0) ** 2 for values in folds) ** 0.5]
        figures += [method.parameters / 1e6, method.macs / 1e9]
        return figures + ([statistics.median(r.seconds for r in results if r.seconds)] if results[0].seconds else [])

    def differences(self, ours, baseline):
        """Every difference with interval that a page may print about two methods: of common seeds, folds and clips."""
        seeds = [self.methods[name] for name in (ours, baseline)]
        common = [seed for seed in seeds[0].results if seed in seeds[1].results]
        seeds = [method._replace(results={seed: method.results[seed] for seed in common}) for method in seeds]
        for level in LEVELS if self.file.startswith('evidence') else LEVELS[:1]:
            if common:
                yield compare(*seeds, level)
                yield difference(*(method.values(method.metrics[0]) for method in seeds), level)
                if all(last := [method.last_validations() for method in seeds]):
                    yield difference(*last, level)
            yield from folds_and_clips(self.parts[ours], self.parts[baseline], level)


def folds_and_clips(ours, baseline, level):
    """Student's t over pairs of a fold and a seed, and over clips, of which a row without training has one seed."""
    if not ours[0].samples or not isinstance(next(iter(ours[0].samples.values())), list):
        return
    if len(ours) == len(baseline):
        yield difference(*([next(iter(r.metrics.values())) for r in parts] for parts in (ours, baseline)), level)
    names = list(dict.fromkeys(name for part in ours for name in part.samples))
    means = [
        [statistics.mean(part.samples[name][0] for part in parts if name in part.samples) for name in names]
        for parts in (ours, baseline)
    ]
    yield difference(*means, level)


class Faces:
    """Question (e): numerators and denominators of F1 by person and angle."""

    level = score_faces.LEVEL

    def __init__(self, file):
        self.methods = json.loads((RESULTS / f'{file}.json').read_text(encoding='utf-8'))

    def f1(self, name, people, angle):
        units = [f'{person:02}, {turn}' for person in people for turn in {angle, -angle}]
        runs = [run for _, run in sorted(self.methods[name].items()) if units[0] in run]
        sums = [[run[unit] for unit in units] for run in runs]
        return [100 * sum(part for part, _ in run) / sum(whole for _, whole in run) for run in sums]

    def figures(self, name):
        for people in (NEW_PEOPLE, *([person] for person in range(7, 16))):
            for angle in ANGLES:
                values = self.f1(name, people, angle)
                yield from (*values, *mean_and_deviation(values))

    def differences(self, ours, baseline):
        return (score_faces.compare(self.methods, ours, baseline, angle) for angle in ANGLES)

    def pairs(self, ours, baseline):
        return [[a - b for a, b in zip(*(self.f1(name, NEW_PEOPLE, 30) for name in (ours, baseline)))]]


class Translations:
    """Question (g): matches and lengths of sentences, whose sums give BLEU."""

    level = scorer.LEVEL

    def __init__(self, file):
        self.tests = scorer.read(RESULTS / f'{file}.json')
        self.methods = [name for test in self.tests.values() for name in test['runs'] if 'first' not in name]

    def figures(self, name):
        """Of all seeds, and of those of the secondary rows."""
        for test in self.tests.values():
            for chosen in LENGTHS:
                bleu = {seed: x.metrics['BLEU'] for seed, x in scorer.results(test, name, chosen).items()}
                secondary = [value for seed, value in bleu.items() if seed in '234']
                yield from (*bleu.values(), *mean_and_deviation([*bleu.values()]), *mean_and_deviation(secondary))

    def differences(self, ours, baseline):
        for names, chosen in CONTRASTS:
            if all(self.tests[name]['runs'].get(row) for name in names for row in (ours, baseline)):
                yield scorer.compare(self.tests, names, ours, baseline, chosen)

    def pairs(self, ours, baseline):
        for names, chosen in CONTRASTS[:2]:
            ours_runs, other = (
                [x.metrics['BLEU'] for n in names for x in scorer.results(self.tests[n], row, chosen).values()]
                for row in (ours, baseline)
            )
            yield [a - b for a, b in zip(ours_runs, other)]


@cache
def all_figures(source, name):
    return [*source.figures(name)]


@cache
def all_differences(source, ours, baseline):
    return [*source.differences(ours, baseline)]


class Clothes(Runs):
    """Question (j): pixels by class of each photograph, whose sums give mIoU, or the IoU of a class."""

    level = score_clothes.LEVEL

    def __init__(self, file):
        super().__init__(file)
        self.rows = score_clothes.read(RESULTS / f'{file}.json')

    def differences(self, ours, baseline):
        for seeds in (None, 5):
            yield score_clothes.compare(self.rows, ours, baseline, seeds=seeds, level=self.level)
        for name in score_clothes.CLASSES:
            yield score_clothes.compare(self.rows, ours, baseline, name, level=0.95)
        yield difference(*(self.methods[name].values('mIoU') for name in (ours, baseline)), self.level)

    def pairs(self, ours, baseline):
        return [score_clothes.pairs(self.rows, ours, baseline)]


class TrainedClothes(Clothes):
    """The rows that continue from one checkpoint."""

    level = 0.95


class SecondaryClothes(TrainedClothes):
    """The secondary rows, with the primary runs of the same seeds."""

    def __init__(self, file):
        super().__init__(file)
        self.rows = score_clothes.read_all(RESULTS)
        for primary in map(Runs, ('evidence_j_cc', 'evidence_j_nl')):
            for name, method in primary.methods.items():
                results = {seed: method.results[seed] for seed in self.rows[name]}
                self.methods[name] = method._replace(results=results)
                self.parts[name] = [*results.values()]
                self.folds[name] = [self.parts[name]]


SOURCES = {
    'evidence_e': cache(Faces),
    'evidence_g': cache(Translations),
    'evidence_j_cc': cache(Clothes),
    'evidence_j_nl': cache(Clothes),
    'evidence_j_secondary': cache(SecondaryClothes),
    'evidence_j_trained': cache(TrainedClothes),
    '': cache(Runs),
}
ANGLES = 0, 15, 30, 45
NEW_PEOPLE = range(8, 16)
LENGTHS = bool, scorer.is_longer, lambda symbols: symbols > 20
CONTRASTS = [(scorer.BOTH, bool), (scorer.LONGER, scorer.is_longer), (('fr',), bool)]
CONTRASTS += [((name,), LENGTHS[-1]) for name in scorer.BOTH]


def is_printed(text, value):
    """Whether a number as printed is a value, rounded to its decimals; files have four decimals of validations."""
    decimals = len(text.partition('.')[2])
    return abs(float(text.replace('−', '-')) - value) <= 0.5 * 10**-decimals + 1e-4


def methods_of(row, methods):
    """Return the names of the methods that a row of a table is about."""
    name = re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', row)
    for suffix in (', upright', ', turned by 30°', ', turned', ', with sinusoids'):
        name = name.removesuffix(suffix)
    if ' − ' in name:
        return [side for part in name.split(' − ') for side in methods_of(part, methods)]
    for known in (name, ALIASES.get(name), name.partition(': ')[0]):
        if known in methods:
            return [known]
    return [method for method in methods if method.startswith(f'{name}, ') or method.endswith(f', {name} questions')]


def rows_of(text):
    """Yield the heads and the cells of each row of the tables in a text."""
    heads = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip('|').split(' |')]
        if not line.startswith('|'):
            heads = []
        elif not heads:
            heads = cells
        elif not set(line) <= set('| -'):
            yield heads, cells


@pytest.mark.parametrize('section', SECTIONS, ids=lambda section: f'{section[3]}-{section[1].strip("#|*<!- ")[:18]}')
def test_a_section_has_the_figures_of_its_runs(section):
    """Numbers are figures of the row's method, or of the column's; intervals are of differences; verdicts follow."""
    page, before, after, file = section
    source = next(kind for start, kind in SOURCES.items() if file.startswith(start))(file)
    text = (ROOT / page).read_text(encoding='utf-8')
    assert text.count(before) >= 1
    text = before + text.partition(before)[2]
    text = text[: text.index(after, len(before))]
    checked, wrong, contrasts = 0, [], []

    def check_intervals(where, cell, pairs):
        nonlocal checked
        for printed in INTERVAL.findall(cell):
            checked += 1
            differences = (d for a, b in pairs() if a != b for d in all_differences(source, a, b))
            if not any(all(map(is_printed, printed, d)) for d in differences if d.low is not None):
                wrong.append((*where, printed))

    for heads, cells in rows_of(text):
        about = methods_of(cells[0], source.methods)
        assert about or methods_of(heads[-1], source.methods), cells[0]

        def pairs(about=about, name=cells[0]):
            if ' − ' in name:
                return [*itertools.product(about[: len(about) // 2], about[len(about) // 2 :])]
            one_way = [*itertools.product(about, source.methods)]
            return [*one_way, *((b, a) for a, b in one_way)]

        contrasts += pairs() if ' − ' in cells[0] else []
        for head, cell in zip(heads[1:], cells[1:]):
            if 'detectable' in head and hasattr(source, 'pairs'):
                assert any(has_power(float(cell), x, source.level) for x in source.pairs(*about)), cells
            if LEFT_OUT.search(head):
                continue
            check_intervals((cells[0], head), cell, pairs)
            figures = [x for name in about or methods_of(head, source.methods) for x in all_figures(source, name)]
            for number in re.findall(NUMBER, INTERVAL.sub('', cell)):
                checked += 1
                if not any(is_printed(number, figure) for figure in figures):
                    wrong.append((cells[0], head, number))
        if cells[-1] in ('confirmed', 'refuted', 'undecided'):
            _, low, high = INTERVAL.search(' '.join(cells[1:])).groups()
            expected = 'confirmed' if low[0] == '+' else 'refuted' if high[0] in '-−' else 'undecided'
            assert cells[-1] == expected, cells[0]
    prose = ' '.join(line.strip() for line in text.splitlines() if not line.startswith('|'))
    if not checked:  # a text without a table
        figures = [figure for name in source.methods for figure in all_figures(source, name)]
        for number in re.findall(NUMBER, INTERVAL.sub('', prose)):
            checked += 1
            if not any(is_printed(number, figure) for figure in figures):
                wrong.append(('text', '', number))
    check_intervals(('text', ''), prose, lambda: [*contrasts, *itertools.permutations(source.methods, 2)])
    assert not wrong
    assert checked  # a table of one contrast has one figure


def test_the_prose_of_the_evidence():
    """Its sentences with figures are recomputed, and it has no other decimals but those of intervals."""

    def gap(file, ours, baseline):
        source = Runs(file)
        return next(source.differences(ours, baseline))  # of common seeds, 95 %

    def means(file):
        methods = Runs(file).methods
        return {name: statistics.mean(method.values(method.metrics[0])) for name, method in methods.items()}

    def turned(name, angle, file='evidence_e'):
        return statistics.mean(Faces(file).f1(name, NEW_PEOPLE, angle))

    def bleu(test, name, chosen):
        return statistics.mean(x.metrics['BLEU'] for x in scorer.results(tests[test], name, chosen).values())

    def ahead(test, baseline, chosen):
        return bleu(test, 'Bi-SA', chosen) - bleu(test, baseline, chosen)

    translations = Translations('evidence_g')
    tests, ours, alone = translations.tests, 'U-Net-BA, 1/√d', 'evidence_e_one-person'
    sinusoids = next(translations.pairs('Bi-SA', scorer.BASELINES[0]))
    pairs = next(translations.pairs('Bi-SA', scorer.BASELINES[1]))
    student = difference(pairs, [0.0] * len(pairs), translations.level)
    millions = {name: method.parameters / 1e6 for name, method in Runs('evidence_c').methods.items()}
    clips, pictures, first = map(means, ('evidence_d', 'evidence_h', 'evidence_d_first-recipe'))
    person, context = means('evidence_c'), means('evidence_f')
    above = gap('evidence_a', 'CC', 'no attention')
    vqa = gap('easy-vqa', 'BAN-2, 2,410 questions', 'Concat, 2,410 questions')
    copied = means('evidence_i_cc')
    clothes = score_clothes.read(RESULTS / 'evidence_j_cc.json')
    positions = statistics.mean(score_clothes.pairs(clothes, *score_clothes.CONTRASTS[0]))
    of_class = [
        score_clothes.compare(clothes, *score_clothes.CONTRASTS[0], name).mean
        for name in ('trousers', 'legwear', 'shoes', 'bag', 'hair')
    ]
    sizes = [Runs('evidence_j_cc').methods[name].parameters for name in score_clothes.CONTRASTS[0]]
    by_gain = score_clothes.by_mean_gain(clothes, *score_clothes.CONTRASTS[0])
    drawn = [
        statistics.mean(score_clothes.gain(clothes, *score_clothes.CONTRASTS[0], name, str(seed)) for seed in range(15))
        for name in (by_gain[0], by_gain[len(by_gain) // 2], by_gain[-1])
    ]
    nl, nl_rows = score_clothes.CONTRASTS[2], score_clothes.read(RESULTS / 'evidence_j_nl.json')
    of_nl = statistics.mean(score_clothes.pairs(nl_rows, *nl))
    nl_sizes = [Runs('evidence_j_nl').methods[name].parameters for name in nl]
    of_nl_class = [
        score_clothes.compare(nl_rows, *nl, name).mean for name in ('upper', 'trousers', 'bag', 'shoes', 'hair')
    ]
    assert all(abs(ahead(test, 'SA-RPE', lambda n: n <= 16)) < 0.5 for test in scorer.BOTH)
    sentences = [
        f'Bi-SA is {statistics.mean(sinusoids):.1f} BLEU ahead of sinusoids',
        'On longer sentences, it is '
        + ', and '.join(
            f'{ahead("long", row, scorer.is_longer):.1f} {of}'
            for row, of in zip(scorer.BASELINES, ('ahead of sinusoids', 'of relative positions'), strict=True)
        ),
        f'it is {turned(ours, 30) - turned("U-Net", 30):.1f} points ahead of U-Net on eight new people, and '
        f'{person[SCALED] - person["U-Net"]:.1f} on another person',
        f'about {turned("U-Net", 0) - turned(ours, 0):.1f} points behind on the eight people',
        f'Bi-CC gains {copied["Bi-CC, default"] - copied["CC"]:.1f} points',
        f'Bi-NL is [{of_nl:.1f} points](#clothes-bi-nl) ahead of NL, and Bi-CC [{positions:.1f}](#clothes-bi-cc) of CC',
        f'Bi-NL is ahead, with {100 * nl_sizes[0] / nl_sizes[1] - 100:.1f} % more parameters',
        f'gain {min(of_nl_class):.1f} to {max(of_nl_class):.1f} points',
        f'with {100 * sizes[0] / sizes[1] - 100:.1f} % more parameters',
        f'gain {min(of_class):.1f} to {max(of_class):.1f} points',
        '{:+.1f}, {:+.1f} and {:+.1f}'.format(*drawn).replace('-', '−'),
        f"label propagation in SST's backbone {clips['label propagation']:.1f}",
        f'SST (Grid), first recipe, {first["SST (Grid)"]:.1f} on six clips, and '
        f'{pictures["SST (Grid)"]:.1f} with photographs',
        f'U-Net-BA has {millions["U-Net-BA"]:.2f} million parameters, U-Net {millions["U-Net"]:.2f} million',
        'behind on upright faces, too (by '
        + ' and '.join(f'{turned(ours, 0) - turned(name, 0):.1f}' for name in ('narrow U-Net', 'equal weights')),
        f'{turned(ours, 30, alone) - turned("U-Net", 30, alone):.1f} points ahead of U-Net on the same eight people',
        f'CC is only {above.mean:.2f} points above the same head without attention (three seeds, 95 % interval '
        f'{above.low:.2f} to {above.high:+.2f})',
        f'attention adds {context["CC"] - context["no attention"]:.2f} points (CC) and '
        f'{context["NL"] - context["no attention"]:.2f} (NL)',
        'the means differ by less than 0.5',
        'the means differ by '
        + ' and '.join(f'{ahead("long", row, lambda n: n <= 12):.1f} ({row})' for row in scorer.BASELINES),
        f"Student's t over the pairs alone is [{student.low:+.2f}, {student.high:+.2f}]",
        f'({clips["SST (Grid)"]:.1f} and {clips["SST (Strided)"]:.1f}) than two methods without training: label '
        f'propagation ({clips["label propagation"]:.1f}), and the first mask repeated ({clips["first mask"]:.1f})',
        f'SST (Grid) has {pictures["SST (Grid)"]:.1f}, and SST (Strided) {pictures["SST (Strided)"]:.1f}',
        f'above label propagation, by {clips["label propagation"] - pictures["SST (Grid)"]:.1f} points',
        f'accuracy {vqa.mean:+.2f} [{vqa.low:+.2f}, {vqa.high:+.2f}]',
    ]
    lines = (ROOT / 'docs/evidence.md').read_text(encoding='utf-8').splitlines()
    text = ' '.join(
        line.strip() for line in lines if not INTERVAL.search(line) or not line.startswith('|') or 'VQA' in line
    )
    assert not [sentence for sentence in sentences if sentence not in text]
    for sentence in sentences:
        text = text.replace(sentence, '')
    assert not re.findall(rf'{NUMBER}(?! (?:%|seconds))(?!\d)', INTERVAL.sub('', text))


def test_the_results_are_small():
    """Each run is in one file, and together they are less than 3.6 MB: of clothes, every photograph has its pixels."""
    assert sum(path.stat().st_size for path in RESULTS.glob('*.[jn][sp]*')) < 3_600_000
    assert {path.stem for path in RESULTS.glob('*.json')} == {
        'gpu_h200',
        *(section[3] for section in SECTIONS),
    }


def test_results_of_the_metafiles_are_those_of_their_logs():
    """Means over the seeds, of the runs of a config without options, or in one row of a page's table."""
    logs = {path: json.loads((RESULTS / f'{path}.json').read_text(encoding='utf-8')) for path in OF_CONFIGS}
    stored = {config: (name, runs) for name, log in logs.items() for config, runs in log['runs'].items()}
    assert not [log['setup'] for log in logs.values() if {*log['setup']['deviations']} - {'mixed precision'}]
    models = [model for path in ROOT.glob('configs/*/metafile.yml') for model in load(path)['Models']]
    missing = {model['Name'] for model in models if 'Results' not in model}
    assert not missing & stored.keys()
    wrong = []
    for model in models:
        for result in model.get('Results', ()):
            assert result['Dataset'] == model['Metadata']['Training Data']
            metrics = result['Metrics']
            if model['Name'] in stored:
                name, runs = stored[model['Name']]
                expected = {
                    key: round(statistics.mean(run['metrics'][key] for run in runs.values()), 2) for key in metrics
                }
                if (f'docs/results/{name}.json', len(runs), expected) != (result['Log'], result['Seeds'], metrics):
                    wrong.append((model['Name'], expected))
                continue
            page, _, anchor = result['Log'].partition('#')
            text = (ROOT / page).read_text(encoding='utf-8')
            (title,) = (x for x in re.findall('^## (.+)$', text, re.M) if x.lower().replace(' ', '-') == anchor)
            rows = [*rows_of(text.partition(f'## {title}\n')[2].partition('\n## ')[0])]
            found = [
                (heads, cells)
                for heads, cells in rows
                if {f'{value:.2f}' for value in metrics.values()} <= {cell.split(' ')[0] for cell in cells}
            ]
            if len(found) != 1:
                wrong.append((model['Name'], metrics))
                continue
            ((heads, cells),) = found
            (first,) = [*metrics.values()][:1]
            seeds = [cell for head, cell in zip(heads, cells) if re.fullmatch(r'(mAP, )?(seed )?\d', head)]
            if seeds:
                assert (len(seeds), first) == (
                    result['Seeds'],
                    pytest.approx(statistics.mean(map(float, seeds)), abs=0.1),
                )
    assert not wrong


def test_the_table_of_the_gpu():
    """Each cell of docs/performance.md: ms and MiB of the forward pass, and of both passes."""
    record = json.loads((RESULTS / 'gpu_h200.json').read_text(encoding='utf-8'))
    page = (RESULTS.parent / 'performance.md').read_text(encoding='utf-8')
    names = {'P6, offset logits': 'P6, positions'}
    columns = {2: 'composition', 3: 'native', 4: 'triton'}
    compared = 0
    for line in page.partition('## GPUs')[2].partition('Training with AMP')[0].splitlines():
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        if len(cells) != 5 or not re.fullmatch(r'P\d.*', cells[0]):
            continue
        for column, title in columns.items():
            numbers = re.findall(r'\d+(?:\.\d+)?', re.sub('[¹²³]', '', cells[column]))
            measured = {
                x['pass']: (x['ms'], x['mib'])
                for x in record['ops']
                if (x['workload'], x['dtype'], x.get('title')) == (names.get(cells[0], cells[0]), cells[1], title)
                and 'ms' in x
            }
            expected = [number for pass_ in ('forward', 'forward + backward') for number in measured.get(pass_, ())]
            assert len(numbers) == len(expected), (cells[:2], title)
            for x, y in zip(numbers, expected):
                assert abs(float(x) - y) <= 0.501 * 10 ** -len(x.partition('.')[2]), (cells[:2], title)
            compared += len(numbers)
    assert compared > 60


def test_what_a_training_needs():
    """Times and memory in metafiles are those of the GPU's file, of the config's samples."""
    record = json.loads((RESULTS / 'gpu_h200.json').read_text(encoding='utf-8'))['train']
    models = [model for path in sorted(config_path().glob('*/metafile.yml')) for model in load(path)['Models']]
    measured = [(model, entry) for model in models for entry in model.get('Measured', ())]
    assert len(measured) == 4
    hours = []
    for model, entry in measured:
        [run] = [
            run
            for run in record
            if (run['title'], run['kernels'], run['amp'])
            == (entry['Title'], entry['Kernels'], '--amp' in entry['Precision'])
        ]
        assert (entry['ms'], entry['Peak (MiB)'], entry['Samples']) == (run['ms'], run['peak_mib'], run['batch'])
        cfg = Config.fromfile(config_path(model['Config'].removeprefix('configs/')))
        assert (*cfg.model.data_preprocessor.size, cfg.train_dataloader.batch_size) == (*run['size'], run['batch'])
        hours.append(f'{cfg.train_cfg.max_iters * run["ms"] / 3.6e6:.1f}')
    page = (RESULTS.parent / 'questions.md').read_text(encoding='utf-8').partition('| ms per step |')[2]
    assert sorted(re.findall(r'^\|.*\| ([\d.]+) \|$', page, re.M)) == sorted(hours)


def test_the_text_on_values_of_the_gpu():
    """The number of unusual calls that were right by kernel, and every operator whose comparison did not end well."""
    record = json.loads((RESULTS / 'gpu_h200.json').read_text(encoding='utf-8'))
    page = (RESULTS.parent / 'performance.md').read_text(encoding='utf-8')
    text = ' '.join(page.partition('* **Values**')[2].partition('\n* ')[0].split())
    right = Counter(case['group'] for case in record['edge'] if 'group' in case and case.get('ok'))
    of_kernel = {
        kernel: sum(right[f'{kernel}:{x}'] for x in ('float32', 'float16', 'bfloat16'))
        for kernel in ('composition', 'native')
    }
    for count in (*of_kernel.values(), right['triton:float16']):
        assert f'in {count} unusual calls' in text
    assert f'in {right["triton:bfloat16"]} in bfloat16' in text
    for failed in record['compare']:
        if not failed.get('ok'):
            operator = failed.get('operator') or re.search(r'\w+', failed['task']).group()
            assert f'`{operator}`' in text, failed
    codes = {x['error'].removeprefix('exit code ') for x in record['compare'] if 'exit code' in x.get('error', '')}
    assert codes == {code.replace('−', '-') for code in re.findall(r'exit code ([−-]?\d+)', text)}


def test_the_table_of_training_on_a_gpu():
    """Every run with AMP of the record is on the page, in the column of its kernels: ms and MiB."""
    record = json.loads((RESULTS / 'gpu_h200.json').read_text(encoding='utf-8'))
    page = (RESULTS.parent / 'performance.md').read_text(encoding='utf-8').partition('Training with AMP')[2]
    printed = {}
    for heads, cells in rows_of(page.partition('On a CPU')[0]):
        stock, ours = cells[0].partition(',')[0].split(' → ')
        printed[stock, 'composition'] = cells[1]
        printed |= {(ours, head.partition(' ')[0]): cell for head, cell in zip(heads[2:], cells[2:])}
    printed['Bi-NL', 'formulas'] = page.partition('\n⁴ ')[2].partition(' with formulas')[0]
    columns = {'native': 'CUDA', 'triton': 'Triton'}
    measured = {
        (run['title'], columns.get(run['kernels'], run['kernels'])): (run['ms'], run['peak_mib'])
        for run in record['train']
        if run['amp']
    }
    assert measured.keys() == {key for key, cell in printed.items() if cell}
    for key, (ms, mib) in measured.items():
        first, second = re.sub('[*⁴⁵]', '', printed[key]).split(', ')
        assert is_printed(first, ms), key
        assert int(second) == mib, key


def test_rows_are_added_to_the_file_of_others(tmp_path):
    """Those of the primary file are left out, also where its work dir has all runs; rows of an earlier call stay."""
    primary, target = RESULTS / 'evidence_j_nl.json', tmp_path / 'secondary.json'
    content = json.loads(primary.read_text(encoding='utf-8'))
    run = {'0': next(iter(content['runs'].values()))['0']}
    runs = dict(content['runs'], first=run, second=run)
    for name in ('first', 'second'):
        row = dict(content['rows'][0], name=name, configs=[name])
        (tmp_path / 'results.json').write_text(
            json.dumps(dict(content, rows=[*content['rows'], row], runs=runs)), encoding='utf-8'
        )
        score_clothes.add_runs(tmp_path / 'results.json', primary, target)
    found = json.loads(target.read_text(encoding='utf-8'))
    assert [row['name'] for row in found['rows']] == [*found['runs']] == ['first', 'second']
    assert found['samples'] == content['samples']
    assert found['runs']['first'] == found['runs']['second'] == run


def test_a_wrong_figure_would_be_seen():
    figures = Runs('daquar').figures('BAN-2')
    assert [any(is_printed(number, figure) for figure in figures) for number in ('24.0', '24.1')] == [True, False]


def has_power(difference, pairs, level):
    """Whether this true difference would be found with a power of 80 %, if pairs deviate as these do."""
    noncentrality, freedom = difference / statistics.stdev(pairs) * len(pairs) ** 0.5, len(pairs) - 1
    limit = stats.t.ppf(1 - (1 - level) / 2, freedom)
    return 1 - stats.nct.cdf(limit, freedom, noncentrality) == pytest.approx(0.8, abs=0.005)


def test_texts_on_translations():
    """What several pages say of Bi-SA; whole test sets have the figure of the test tool."""
    source = Translations('evidence_g')
    for test in source.tests.values():
        for name, runs in test['runs'].items():
            for seed, result in scorer.results(test, name, bool).items():
                assert result.metrics['BLEU'] == pytest.approx(runs[seed]['metrics']['BLEU'])
    names = 'docs/evidence.md', 'docs/translation.md', 'configs/bi_sa/README.md', 'README.md'
    pages = [' '.join((ROOT / name).read_text(encoding='utf-8').split()) for name in names]
    ahead, relative = (scorer.compare(source.tests, scorer.BOTH, 'Bi-SA', row) for row in scorer.BASELINES)
    assert all(f'{ahead.mean:.1f} BLEU ahead of' in text for text in pages)
    assert str(relative).removesuffix(' *').replace('-', '−') in pages[2]


def test_texts_on_clothes():
    """What README and the pages of the methods say."""
    by_head = {head: score_clothes.read(RESULTS / f'evidence_j_{head.lower()}.json') for head in ('CC', 'NL')}
    contrasts = {ours[3:5]: (ours, baseline) for ours, baseline in score_clothes.CONTRASTS if '/' not in baseline}
    pairs = {head: score_clothes.pairs(rows, *contrasts[head]) for head, rows in by_head.items()}
    assert {len(gaps) for gaps in pairs.values()} == {15}
    assert min(map(min, pairs.values())) > 0
    gains = {head: f'{statistics.mean(gaps):.1f}' for head, gaps in pairs.items()}
    photographs = len(next(iter(by_head['CC']['stock CC'].values())).samples)
    skirts = score_clothes.compare(by_head['CC'], *contrasts['CC'], 'skirt').mean
    row = (
        f'{gains["NL"]} mIoU above NL and {gains["CC"]} above CC on {photographs} photographs, each in 15 of 15 pairs '
        f'of runs. With Bi-CC, skirts lose {-skirts:.1f}'
    )
    window = score_clothes.compare(score_clothes.read_all(RESULTS), 'Bi-CC', 'Bi-CC, 15').mean
    texts = {name: (ROOT / name).read_text(encoding='utf-8') for name in ('README.md', 'configs/bi_cc/README.md')}
    assert f'{row}. This is with a window of 15; the shipped one of 31 adds {window:.1f} to Bi-CC' in texts['README.md']
    assert f'the shipped one of 31 was [{window:.1f} points better' in texts['configs/bi_cc/README.md']
    for head, gain in gains.items():
        page = ' '.join((ROOT / f'configs/bi_{head.lower()}/README.md').read_text(encoding='utf-8').split())
        assert f'it is {gain} points ahead on [clothes]' in page


def test_photographs_of_clothes_that_are_there_twice_change_little():
    """The differences without photographs that are in a training, too."""
    text = (RESULTS / 'runs.md').read_text(encoding='utf-8').partition('### Photographs that are there twice')[2]
    printed = dict(itertools.islice(((cells[0], cells[1:]) for _, cells in rows_of(text)), 3))
    for head, contrasts in dict(CC=score_clothes.CONTRASTS[:2], NL=score_clothes.CONTRASTS[2:]).items():
        rows = score_clothes.read(RESULTS / f'evidence_j_{head.lower()}.json')
        for ours, baseline in contrasts:
            for without, cell in enumerate(printed[f'{ours} − {baseline}'], 1):
                left_out = ('0183', '0594', '0616')[:without]
                some = {
                    name: {
                        seed: run._replace(samples={key: x for key, x in run.samples.items() if key not in left_out})
                        for seed, run in rows[name].items()
                    }
                    for name in (ours, baseline)
                }
                (interval,) = INTERVAL.findall(cell)
                assert all(map(is_printed, interval, score_clothes.compare(some, ours, baseline)))


def test_the_picture_of_the_evidence_has_the_intervals_of_the_pages():
    """Each row has its interval on a line that names both sides, or in the text."""
    panels = plot_evidence.contrasts()
    pages = 'docs/evidence.md', 'docs/results/runs.md', 'configs/bi_sa/README.md'
    lines = [line for page in pages for line in (ROOT / page).read_text(encoding='utf-8').splitlines()]
    for row in itertools.chain(*panels.values()):
        sides = row.name.rpartition(': ')[2].replace(', 1/√d', '').split(' − ')
        named = [line for line in lines if line.startswith('|') and sides[1] in line] + [
            line for line in lines if not line.startswith('|')
        ]
        printed = INTERVAL.findall(' '.join(named))
        assert any(all(map(is_printed, numbers, row.interval)) for numbers in printed), row.name
        assert statistics.mean(row.pairs) == pytest.approx(row.interval.mean)


def test_rows_of_faces_are_compared_on_the_people_of_the_test():
    """F1 of the pixels of persons 08 and above, both ways turned, pooled by seed; one person alone would differ."""
    rng = np.random.default_rng(0)
    units = [f'{person:02}, {angle}' for person in (7, 8, 9, 10) for angle in (0, -30, 30, 45)]
    tested = [f'{person:02}, {angle}' for person in (8, 9, 10) for angle in (-30, 30)]
    scores = {
        row: {seed: {unit: [int(rng.integers(50, 90)), int(rng.integers(90, 120))] for unit in units} for seed in '012'}
        for row in ('ours', 'other')
    }
    f1 = {
        row: [
            100 * sum(run[unit][0] for unit in tested) / sum(run[unit][1] for unit in tested) for run in runs.values()
        ]
        for row, runs in scores.items()
    }
    pairs = [a - b for a, b in zip(f1['ours'], f1['other'])]
    mean, low, high = score_faces.compare(scores, 'ours', 'other', 30)
    assert mean == pytest.approx(statistics.mean(pairs))
    assert [score_faces.f1(run, 30) for run in scores['ours'].values()] == pytest.approx(f1['ours'])
    assert high - low >= 2 * 7.64 * statistics.stdev(pairs) / 3**0.5  # Student's t, 98.3 %, two degrees of freedom


@requires('sacrebleu')
def test_translations_are_compared_over_languages_and_seeds():
    """BLEU is sacreBLEU's of the chosen sentences; a pair is a language and a seed."""
    import sacrebleu

    rng = np.random.default_rng(0)
    words = [*'abcdefgh']

    def bleu(hypotheses, references):
        return sacrebleu.corpus_bleu(
            hypotheses, [references], tokenize='none', smooth_method='none', force=True, use_effective_order=False
        )

    def sentence(length):
        return ' '.join(rng.choice(words, length))

    symbols = [int(n) for n in rng.integers(4, 30, 40)]
    tests, found = {}, {}
    for name in ('de', 'fr'):
        references = [sentence(length) for length in symbols]
        tests[name] = dict(symbols=symbols, runs={})
        for row, kept in (('ours', 0.9), ('other', 0.6)):
            for seed in '012':
                hypotheses = [
                    ' '.join(word if rng.random() < kept else 'x' for word in text.split()[: rng.integers(1, 40)])
                    for text in references
                ]
                single = [bleu([a], [b]) for a, b in zip(hypotheses, references)]
                scores = [[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in single]
                tests[name]['runs'].setdefault(row, {})[seed] = dict(sentences=scores)
                longer = [pair for pair, length in zip(zip(hypotheses, references), symbols) if length > 12]
                found[name, row, seed] = bleu(*zip(*longer)).score
    for (name, row, seed), bleu_of_longer in found.items():
        results = scorer.results(tests[name], row, scorer.is_longer)
        assert results[seed].metrics['BLEU'] == pytest.approx(bleu_of_longer)
    pairs = [found[name, 'ours', seed] - found[name, 'other', seed] for name in ('de', 'fr') for seed in '012']
    mean, low, high = scorer.compare(tests, ('de', 'fr'), 'ours', 'other', scorer.is_longer)
    assert mean == pytest.approx(statistics.mean(pairs))
    student = difference(pairs, [0.0] * 6, scorer.LEVEL)
    assert high - low >= student.high - student.low - 1e-9
