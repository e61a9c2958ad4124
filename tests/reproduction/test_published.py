"""Every figure of our own runs on a page is recomputed from the small files in docs/results."""

import importlib
import itertools
import json
import re
import statistics
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from reproduction.results import Measured, Result, compare, deviation, difference, pool
from reproduction.store import Store

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / 'docs/results'
NUMBER = r'[+−-]?\d+\.\d+'
INTERVAL = re.compile(rf'({NUMBER}) \[({NUMBER}), ({NUMBER})\]')
# One interval; the primary contrasts, the follow-up and question (h) of docs/evidence.md.
LEVELS = 0.95, 1 - 0.05 / 6, 1 - 0.05 / 3, 1 - 0.05 / 4

TURNED, SCALED = 'U-Net-BA', 'U-Net-BA, content logits times 1/√d'
MASK = 'the first mask, repeated'
# Page, text before and after its tables, or its numbers in a text, result file, and methods by the name of a row where
# it has another name there.
# An empty tuple: the row has no figure of ours.
SECTIONS = [
    ('docs/results/README.md', '## Table 3.2', '![mIoU', 'table_3.2', {}),
    ('docs/results/README.md', '## Table 4.2', '![mIoU', 'table_4.2', {}),
    ('configs/ban/README.md', '<!-- coco-qa -->', '<!-- end -->', 'coco-qa', {}),
    ('configs/ban/README.md', '**Do the orders of the paper show?**', 'Six questions', 'coco-qa', {}),
    ('configs/ban/README.md', '**DAQUAR**', 'BAN-2 has the higher', 'daquar', {}),
    ('configs/ban/README.md', '**easy-VQA**', '![Accuracy', 'easy-vqa', {}),
    ('configs/fusion/README.md', '<!-- coco-qa -->', 'On **easy-VQA**', 'coco-qa', {}),
    ('configs/ban_grounding/README.md', '<!-- entities -->', '<!-- end -->', 'flickr8k-entities', {}),
    (
        'configs/ng_san/README.md',
        '<!-- flickr8k -->',
        '<!-- end -->',
        'flickr8k',
        {'T_v (ETA without attributes)': ('T_v',)},
    ),
    (
        'configs/ng_san/README.md',
        '| SAN, layers, seed 0 |',
        '\n\n',
        'flickr8k',
        {'1': ('SAN, 1 layer',), '2': ('SAN',), '4': ('SAN, 4 layers',)},
    ),
    ('configs/bi_sa/README.md', '<!-- multi30k -->', '![BLEU', 'multi30k', {}),
    (
        'configs/bi_sa/README.md',
        'One seed, 600 updates',
        'Every variant of Bi-SA',
        'multi30k_600-updates',
        {
            'Bi-SA, minimum outside the window': ('Bi-SA, minimum',),
            'Bi-SA, 0': ('Bi-SA',),
            'Bi-SA, entries 5 / 3': ('Bi-SA, 5/3',),
            'Bi-SA, 11 / 6': ('Bi-SA, 11/6',),
            'Bi-SA, 21 / 11, as "0" above': ('Bi-SA',),
            'Bi-SA, 41 / 21': ('Bi-SA, 41/21',),
        },
    ),
    (
        'configs/attention_terms_nmt/README.md',
        'One seed, 600 updates',
        'Self-attention without the product',
        'multi30k_600-updates',
        {
            '1111; 1111': ('1111',),
            '0111; 1111': ('0111',),
            '0110; 1111': ('0110',),
            '0100; 1111': ('0100',),
            'dynamic convolution, n_k = 13; 1111': ('dynamic 13',),
            '1111; 0111': ('1111, encoder–decoder 0111',),
        },
    ),
    # The curve of (a), seed 0, was not stored.
    ('docs/evidence_protocol.md', '(c): the curve', 'The last fifth', 'evidence_c', {}),
    ('docs/evidence_protocol.md', '(d): J&F of grid', '59 pairs', 'evidence_d_stock', {}),
    ('docs/evidence_protocol.md', '* Means of overall F1', '* In the [short runs]', 'evidence_c', {}),
    ('docs/evidence_protocol.md', '* The highest mean', '* In the follow-up', 'evidence_c_exploratory', {}),
    ('docs/evidence_protocol.md', '* In the follow-up', '### Runs of (d)', 'evidence_c', {}),
    ('docs/evidence_protocol.md', '* Means of mIoU', '* Attention itself', 'evidence_a', {}),
    ('docs/evidence_protocol.md', '* Means: CC', '* A receptive field', 'evidence_f', {}),
    ('docs/evidence_protocol.md', '* *Copying start*', '**(h)**, seeds', 'evidence_h_exploratory', {}),
    ('docs/evidence_protocol.md', 'its mean of', '* In (d), the means', 'evidence_h', {}),
    ('docs/evidence_protocol.md', '* In (d), the means', 'Grid gains most', 'evidence_d', {}),
    ('docs/evidence.md', '| contrast, overall F1 | paper', 'The deficit', 'evidence_c', {}),
    (
        'docs/evidence.md',
        'The deficit on upright',
        '### Streets',
        'evidence_c',
        {'U-Net-BA with 1/√d': (SCALED,)},
    ),
    ('docs/evidence.md', '| contrast | paper | here, 99.2 %', 'This setting', 'evidence_a', {}),
    ('docs/evidence.md', '| contrast, J&F | paper', 'Trained on six', 'evidence_d', {}),
    (
        'docs/evidence_protocol.md',
        '## Runs of (d)',
        '* Trained on six',
        'evidence_d',
        {'label propagation, not trained': ('label propagation',)},
    ),
    (
        'docs/evidence.md',
        '| contrast with photographs',
        'SST (Grid) [misses',
        'evidence_h',
        {'the first mask, repeated': ('first mask',)},
    ),
    (
        'configs/sst/README.md',
        '| J&F | mean | to label',
        '\n\n',
        'evidence_d',
        {
            'SST, grid': ('SST (Grid)',),
            'SST, strided': ('SST (Strided)',),
            'label propagation, `mmattn.LabelPropagation`': ('label propagation',),
        },
    ),
]
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
    methods, parts = {}, {}
    for row in store.rows:
        folds = [runs[config] for config in row['configs']]
        methods[row['name']] = Measured(
            row['name'],
            row['paper'],
            row['baseline'],
            row['configs'],
            row.get('parameters') or 0,
            row.get('macs') or 0.0,
            {seed: pool([fold[seed] for fold in folds]) for seed in folds[0]},
        )
        parts[row['name']] = [result for seed in folds[0] for fold in folds for result in [fold[seed]]]
    return methods, parts


def all_figures(method, parts):
    """Every figure that a table may print about a method."""
    results = [*method.results.values()]
    by_metric = [method.values(metric) for metric in method.metrics]
    last = method.last_validations()
    longest = max(len(result.curve) for result in results)  # of the runs that chose the size, if there were any
    curves = [result.curve for result in results if result.curve and len(result.curve) == longest]
    means = [statistics.mean(value for _, value in points) for points in zip(*curves)]
    ends = [curve[-1][1] for curve in curves]
    folds = [
        [part.curve[-1][1] for part in parts[k :: len(method.configs)] if part.curve]
        for k in range(len(method.configs))
    ]
    spread = (
        statistics.mean(deviation(values) or 0.0 for values in [ends])
        if len(folds) == 1
        else (statistics.mean((deviation(values) or 0.0) ** 2 for values in folds) ** 0.5)
    )
    by_clip = [score[0] / score[1] for part in parts for score in part.samples.values() if isinstance(score, list)]
    clips = {
        name: [part.samples[name][0] for part in parts if isinstance(part.samples.get(name), list)]
        for part in parts
        for name in part.samples
    }
    lists = [*by_metric, last, means, *(map(statistics.mean, zip(*by_metric))), by_clip]
    figures = [value for values in lists if isinstance(values, list) for value in values]
    for values in [*by_metric, last, *([[sum(pair) / 2 for pair in zip(last, by_metric[0])]] if last else [])]:
        if values:
            figures += [statistics.mean(values), deviation(values) or 0.0]
    figures += [value for curve in curves for _, value in curve]
    figures += [statistics.mean(values) for values in clips.values() if values]
    figures += [next(iter(part.metrics.values())) for part in parts]
    figures += [b - a for a, b in itertools.combinations(means, 2)]
    figures += [2**0.5 * spread]
    figures += [method.parameters / 1e6, method.macs / 1e9]
    figures += [statistics.median(result.seconds for result in results if result.seconds)] if results[0].seconds else []
    return figures


@cache
def all_differences(file, name, baseline_name):
    """Every difference with interval that a page may print about two methods."""
    methods, parts = read(file)
    ours, baseline = methods[name], methods[baseline_name]
    levels = LEVELS if file.startswith('evidence') else LEVELS[:1]
    if ours.results.keys() == baseline.results.keys():
        seeds = ours, baseline
    else:  # some seeds
        common = [seed for seed in ours.results if seed in baseline.results]
        seeds = [m._replace(results={seed: m.results[seed] for seed in common}) for m in (ours, baseline)]
    differences = []
    if seeds[0].results:
        for level in levels:
            differences.append(compare(*seeds, level))
            differences.append(difference(*(m.values(m.metrics[0]) for m in seeds), level))
            last = [m.last_validations() for m in seeds]
            if all(last):
                differences.append(difference(*last, level))
    return differences + [d for level in levels for d in folds_and_clips(parts[ours.name], parts[baseline.name], level)]


def folds_and_clips(ours, baseline, level):
    """Student's t over pairs of a fold and a seed, and over clips, of which a row without training has one seed."""
    if not ours[0].samples or not isinstance(next(iter(ours[0].samples.values())), list):
        return
    if len(ours) == len(baseline):
        yield difference(*([next(iter(r.metrics.values())) for r in parts] for parts in (ours, baseline)), level)
    names = [name for part in ours for name in part.samples]
    names = list(dict.fromkeys(names))
    means = [
        [statistics.mean(part.samples[name][0] for part in parts if name in part.samples) for name in names]
        for parts in (ours, baseline)
    ]
    yield difference(*means, level)


def is_printed(text, value):
    """Whether a number as printed is a value, rounded to its decimals; files have four decimals of validations."""
    decimals = len(text.partition('.')[2])
    return abs(float(text.replace('−', '-')) - value) <= 0.5 * 10**-decimals + 1e-4


def methods_of(row, names, methods):
    """Return the names of the methods that a row of a table is about."""
    name = re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', row)
    for suffix in (', upright', ', turned by 30°', ', turned', ', with sinusoids'):
        name = name.removesuffix(suffix)
    if ' − ' in name:
        return [side for part in name.split(' − ') for side in methods_of(part, names, methods)]
    if name in names:
        return names[name]
    if name in methods:
        return [name]
    exact = [method for method in methods if method.startswith(f'{name}, ') or method.endswith(f', {name} questions')]
    return exact or ([TURNED] if name.startswith(f'{TURNED}:') else [])


@pytest.mark.parametrize('section', SECTIONS, ids=lambda section: f'{section[3]}-{section[1].strip("#|*<!- ")[:18]}')
def test_a_table_has_the_figures_of_its_runs(section):
    page, before, after, file, names = section
    methods, parts = read(file)
    text = (ROOT / page).read_text(encoding='utf-8')
    assert text.count(before) >= 1
    text = before + text.partition(before)[2]
    text = text[: text.index(after, len(before))]
    checked, wrong, heads = 0, [], []
    for line in text.splitlines():
        if not line.startswith('|'):
            heads = []
            continue
        cells = [cell.strip() for cell in line.strip('|').split(' |')]
        if not heads or set(line) <= set('| -'):
            heads = heads or cells
            continue
        about = methods_of(cells[0], names, methods)
        assert about, cells[0]
        figures = [figure for name in about for figure in all_figures(methods[name], parts[name])]
        pairs = itertools.product(about, methods)
        if ' − ' in cells[0]:
            pairs = itertools.product(about[: len(about) // 2], about[len(about) // 2 :])
        differences = [d for a, b in pairs if a != b for d in all_differences(file, a, b)]
        for head, cell in zip(heads[1:], cells[1:]):
            if LEFT_OUT.search(head):
                continue
            for printed in INTERVAL.findall(cell):
                checked += 1
                if not any(all(map(is_printed, printed, d)) for d in differences if d.low is not None):
                    wrong.append((cells[0], head, printed))
            for number in re.findall(NUMBER, INTERVAL.sub('', cell)):
                checked += 1
                if not any(is_printed(number, figure) for figure in figures):
                    wrong.append((cells[0], head, number))
    prose = ' '.join(line.strip() for line in text.splitlines() if not line.startswith('|'))
    if not checked:  # a text without a table
        figures = [figure for name in methods for figure in all_figures(methods[name], parts[name])]
        for number in re.findall(NUMBER, INTERVAL.sub('', prose)):
            checked += 1
            if not any(is_printed(number, figure) for figure in figures):
                wrong.append(('text', '', number))
    for printed in INTERVAL.findall(prose):
        checked += 1
        differences = (d for a, b in itertools.permutations(methods, 2) for d in all_differences(file, a, b))
        if not any(all(map(is_printed, printed, d)) for d in differences if d.low is not None):
            wrong.append(('text', '', printed))
    assert not wrong
    assert checked  # a table of one contrast has one figure


def test_the_results_are_small():
    """Each run is in one file, and together they are less than 1 MB."""
    assert sum(path.stat().st_size for path in RESULTS.glob('*.[jn][sp]*')) < 1_000_000
    assert {path.stem for path in RESULTS.glob('*.json')} == {
        'gpu_h200',
        *(section[3] for section in SECTIONS),
        'evidence_e',
        'evidence_e_exploratory',
        'evidence_e_one-person',
        'evidence_g',
    }


def test_the_table_of_the_gpu():
    """Each cell of docs/performance.md: ms and MiB of the forward pass, and of both passes."""
    record = json.loads((RESULTS / 'gpu_h200.json').read_text(encoding='utf-8'))
    page = (RESULTS.parent / 'performance.md').read_text(encoding='utf-8')
    names = {'P6, offset logits': 'P6, positions'}
    columns = {2: 'composition', 3: 'native', 4: 'triton'}
    compared = 0
    for line in page.partition('## GPUs')[2].partition('Training with AMP')[0].splitlines():
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        if len(cells) != 6 or not re.fullmatch(r'P\d.*', cells[0]):
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


def test_a_wrong_figure_would_be_seen():
    methods, parts = read('daquar')
    assert any(is_printed('24.0', figure) for figure in all_figures(methods['BAN-2'], parts['BAN-2']))
    assert not any(is_printed('24.1', figure) for figure in all_figures(methods['BAN-2'], parts['BAN-2']))
    assert isinstance(methods['BAN-2'].results['0'], Result)


def script(name, monkeypatch):
    """A script of docs/results, which are no package."""
    monkeypatch.syspath_prepend(RESULTS)
    return importlib.import_module(name)


def table_after(text, heading):
    """The first table after a heading: cells by the name of a row."""
    lines = itertools.dropwhile(lambda line: not line.startswith('|'), text.partition(heading)[2].splitlines())
    rows = [line.strip('|').split(' |') for line in itertools.takewhile(lambda line: line.startswith('|'), lines)]
    return {name.strip(): [cell.strip() for cell in cells] for name, *cells in rows[2:]}


def scores_of_faces(name):
    return json.loads((RESULTS / f'{name}.json').read_text(encoding='utf-8'))


def f1_of(run, people, angles):
    sums = [run[f'{person:02}, {angle}'] for person in people for angle in angles]
    return 100 * sum(part for part, _ in sums) / sum(whole for _, whole in sums)


ANGLES = (0,), (-15, 15), (-30, 30), (-45, 45)
NEW_PEOPLE = range(8, 16)


def test_faces_by_angle():
    """The exploratory figures on question (e), from numerators and denominators by person and angle."""
    page = (ROOT / 'docs/evidence_protocol.md').read_text(encoding='utf-8')
    _, _, text = page.partition('### Runs of (e)')
    scores = scores_of_faces('evidence_e_exploratory')
    rows = 'U-Net-BA', 'U-Net-BA, 1/√d', 'U-Net-BA, small start'
    expected = [f'{f1_of(run, [7], ANGLES[2]):.2f}' for row in rows for run in scores[row].values()]
    assert re.findall(NUMBER, text.partition('This suggests')[0]) == expected


def test_faces_of_new_people(monkeypatch):
    """Question (e): the intervals of 32 runs with their verdicts, and the best row for each person."""
    faces = script('score_faces', monkeypatch)
    compare, ours = faces.compare, faces.OURS
    page = (ROOT / 'docs/evidence_protocol.md').read_text(encoding='utf-8')
    page = page[page.index('**(e), main**') :]
    scores = scores_of_faces('evidence_e')
    assert all([*map(int, sorted(runs))] == [*range(8)] for runs in scores.values())
    differences = table_after(page, '**(e), main**')
    assert {*differences} == {*scores} - {ours}
    for name, cells in differences.items():
        for cell, angles in zip(cells, ANGLES, strict=True):
            assert cell == str(compare(scores, ours, name, angles[-1])).removesuffix(' *')
    for person in NEW_PEOPLE:  # "the highest"
        means = {
            row: statistics.mean(f1_of(run, [person], ANGLES[2]) for run in scores[row].values()) for row in scores
        }
        assert max(means, key=means.__getitem__) == ours
    evidence = table_after((ROOT / 'docs/evidence.md').read_text(encoding='utf-8'), '**New people.**')
    assert len(evidence) == 3
    for name, (cell, pairs, detectable, verdict) in evidence.items():
        baseline = name.partition(':')[0].removeprefix(f'{ours} − ')
        interval = compare(scores, ours, baseline, 30)
        assert (cell, pairs, verdict) == (str(interval).removesuffix(' *'), '8', 'confirmed')
        assert interval.low > 0
        f1 = [[f1_of(scores[row][str(seed)], NEW_PEOPLE, ANGLES[2]) for seed in range(8)] for row in (ours, baseline)]
        assert_detectable(float(detectable), [a - b for a, b in zip(*f1)], faces.LEVEL)


def test_faces_with_one_person_in_the_training(monkeypatch):
    """The difference of two rows that were trained on person 01 alone."""
    faces = script('score_faces', monkeypatch)
    page = (ROOT / 'docs/evidence_protocol.md').read_text(encoding='utf-8')
    scores = scores_of_faces('evidence_e_one-person')
    assert all([*runs] == [*'012'] for runs in scores.values())
    ((_, differences),) = table_after(page, '**(e), one person**').items()
    for printed, angles in zip(differences, ANGLES, strict=True):
        assert printed == str(faces.compare(scores, faces.OURS, 'U-Net', angles[-1])).removesuffix(' *')
    evidence = ' '.join((ROOT / 'docs/evidence.md').read_text(encoding='utf-8').split())
    upright, _, turned, _ = differences
    assert f'U-Net-BA with 1/√d − U-Net is {turned} turned by 30°, and {upright} upright' in evidence


def means(scorer, test, chosen=bool):
    """Mean BLEU over seeds, by row."""
    return {
        row: statistics.mean(result.metrics['BLEU'] for result in scorer.results(test, row, chosen).values())
        for row in scorer.ROWS
    }


def test_translations_of_longer_sentences(monkeypatch):
    """Question (g): mean BLEU of the pairs beyond the limit of the training, and verdicts."""
    scorer = script('score_translations', monkeypatch)
    tests = scorer.read(RESULTS / 'evidence_g.json')
    page = (ROOT / 'docs/evidence_protocol.md').read_text(encoding='utf-8')
    longer = ', '.join(f'{row} {mean:.2f}' for row, mean in means(scorer, tests['long'], scorer.is_longer).items())
    assert f'{longer} BLEU' in page
    for test in tests.values():  # whole test sets: the figure of the test tool
        for name, runs in test['runs'].items():
            for seed, result in scorer.results(test, name, bool).items():
                assert result.metrics['BLEU'] == pytest.approx(runs[seed]['metrics']['BLEU'])
    check_contrasts(scorer, tests, '**Longer sentences.**', scorer.LONGER, scorer.is_longer)


def test_translations_into_two_languages(monkeypatch):
    """Question (g), all lengths: mean BLEU, means by length, and verdicts."""
    scorer = script('score_translations', monkeypatch)
    tests = scorer.read(RESULTS / 'evidence_g.json')
    page = (ROOT / 'docs/evidence_protocol.md').read_text(encoding='utf-8')
    page = page[page.index('#### All lengths') :]
    german, french = (means(scorer, tests[name]) for name in scorer.BOTH)
    assert ', '.join(f'{row} {german[row]:.2f} and {french[row]:.2f}' for row in scorer.ROWS) in page
    methods, _ = read('multi30k')
    in_float32 = statistics.mean(result.metrics['BLEU'] for result in methods['SA'].results.values())
    assert abs(german['SA'] - in_float32) <= 1
    assert f'SA has a mean of {in_float32:.2f}' in page
    lengths = [[*itertools.chain(*cells)] for cells in zip(*(by_length(scorer, tests[name]) for name in scorer.BOTH))]
    assert [*table_after(page, 'By length').values()] == lengths
    check_contrasts(scorer, tests, '**Two languages.**', scorer.BOTH, bool, papers=('+0.84', '+0.44'))
    anew = tests['fr']['runs']['SA']['2']
    first = tests['fr']['runs'].pop('SA, first processor')['2']
    figures = (run['metrics']['BLEU'] for run in (first, anew))
    assert 'SA has {:.2f} on the first processor, which is not in these means, and {:.2f} on'.format(*figures) in page
    tests['fr']['runs']['SA']['2'] = first
    assert f'With the first run, Bi-SA − SA is {compared(scorer, tests, scorer.BOTH, "SA")}.' in ' '.join(page.split())


def test_texts_on_translations(monkeypatch):
    """The figures in the text of the pages."""
    scorer = script('score_translations', monkeypatch)
    tests = scorer.read(RESULTS / 'evidence_g.json')
    names = 'docs/evidence.md', 'docs/translation.md', 'configs/bi_sa/README.md', 'README.md'
    evidence, *others = (' '.join((ROOT / name).read_text(encoding='utf-8').split()) for name in names)
    ahead = [[scorer.compare(tests, [name], 'Bi-SA', row).mean for name in scorer.BOTH] for row in scorer.BASELINES]
    by_language = 'Bi-SA − SA is {:+.2f} in German and {:+.2f} in French, Bi-SA − SA-RPE {:+.2f} and {:+.2f}.'
    assert by_language.format(*itertools.chain(*ahead)) in evidence
    pairs = [
        ours.metrics['BLEU'] - other.metrics['BLEU']
        for name in scorer.BOTH
        for ours, other in zip(*(scorer.results(tests[name], row, bool).values() for row in ('Bi-SA', 'SA-RPE')))
    ]
    student = difference(pairs, [0.0] * len(pairs), scorer.LEVEL)
    assert f"Student's t over the pairs alone is [{student.low:+.2f}, {student.high:+.2f}]" in evidence
    long = [compared(scorer, tests, [name], 'SA-RPE', lambda symbols: symbols > 20) for name in scorer.BOTH]
    assert 'Bi-SA − SA-RPE is {} in German and {} in French. With'.format(*long) in evidence
    for name, length in itertools.product(scorer.BOTH, (range(13), range(13, 17))):
        assert abs(scorer.compare(tests, [name], 'Bi-SA', 'SA-RPE', length.__contains__).mean) < 0.5
    assert 'With at most 16 symbols, the means differ by less than 0.5' in evidence
    ahead = f'{scorer.compare(tests, scorer.BOTH, "Bi-SA", "SA").mean:.1f} BLEU ahead of'
    assert all(ahead in text for text in (evidence, *others))
    relative = compared(scorer, tests, scorer.BOTH, 'SA-RPE').replace('-', '−')
    assert f'not distinguishable from relative positions ({relative})' in others[1]


def test_secondary_rows_of_translation(monkeypatch):
    """The table of rows without sinusoids, beside the primary rows with the same seeds, and the text about it."""
    scorer = script('score_translations', monkeypatch)
    tests = scorer.read(RESULTS / 'evidence_g.json')
    page = (ROOT / 'docs/evidence_protocol.md').read_text(encoding='utf-8')
    rows = table_after(page, 'Secondary rows, English')
    secondary = 'Bi-SA without sinusoids', 'dynamic convolution'
    assert [*rows] == [*secondary]
    french = tests['fr']
    french['runs'] = {row: {seed: french['runs'][row][seed] for seed in '234'} for row in (*scorer.ROWS, *secondary)}
    for row, (mean, *differences) in rows.items():
        values = [result.metrics['BLEU'] for result in scorer.results(french, row, bool).values()]
        assert mean == f'{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}'
        assert differences == [compared(scorer, tests, ['fr'], baseline, ours=row) for baseline in ('SA', 'Bi-SA')]
    evidence = ' '.join((ROOT / 'docs/evidence.md').read_text(encoding='utf-8').split())
    without, convolution = (compared(scorer, tests, ['fr'], 'Bi-SA', ours=row) for row in secondary)
    assert f'Bi-SA without sinusoids is {without} from Bi-SA' in evidence
    assert f'dynamic convolution, without sinusoids as well, is {convolution} from it' in evidence


def compared(scorer, tests, names, baseline, chosen=bool, ours='Bi-SA'):
    """A row minus a baseline, with its interval, as the pages print it."""
    return str(scorer.compare(tests, names, ours, baseline, chosen)).removesuffix(' *')


def check_contrasts(scorer, tests, heading, names, chosen, papers=()):
    """The table of contrasts below a heading of docs/evidence.md: interval, pairs, detectable difference, verdict."""
    evidence = table_after((ROOT / 'docs/evidence.md').read_text(encoding='utf-8'), heading)
    assert [*evidence] == [f'Bi-SA − {baseline}' for baseline in scorer.BASELINES]
    printed = []
    for contrast, (*paper, cell, pairs, detectable, verdict) in evidence.items():
        sides = contrast.split(' − ')
        interval = scorer.compare(tests, names, *sides, chosen)
        expected = 'confirmed' if interval.low > 0 else 'refuted' if interval.high < 0 else 'undecided'
        assert (cell, verdict) == (compared(scorer, tests, names, sides[1], chosen), expected)
        ours, other = (
            [run.metrics['BLEU'] for name in names for run in scorer.results(tests[name], row, chosen).values()]
            for row in sides
        )
        assert pairs == str(5 * len(names)) == str(len(ours)) == str(len(other))
        assert_detectable(float(detectable), [a - b for a, b in zip(ours, other)], scorer.LEVEL)
        printed += paper
    assert printed == [*papers]


def by_length(scorer, test):
    """The cells of a table by length: the number of pairs, and the mean BLEU of each row over its seeds."""
    table = []
    for least, most in (0, 12), (12, 16), (16, 20), (20, 250):

        def chosen(symbols, least=least, most=most):
            return least < symbols <= most

        cells = [str(sum(map(chosen, test['symbols'])))]
        for row in scorer.ROWS:
            values = [result.metrics['BLEU'] for result in scorer.results(test, row, chosen).values()]
            cells.append(f'{statistics.mean(values):.1f}')
        table.append(cells)
    return table


def assert_detectable(difference, pairs, level):
    """This true difference would be found with a power of 80 %, if pairs deviate as these do."""
    noncentrality, freedom = difference / statistics.stdev(pairs) * len(pairs) ** 0.5, len(pairs) - 1
    limit = stats.t.ppf(1 - (1 - level) / 2, freedom)
    assert 1 - stats.nct.cdf(limit, freedom, noncentrality) == pytest.approx(0.8, abs=0.005)


def test_the_picture_of_the_evidence_has_the_intervals_of_the_pages(monkeypatch):
    """Each row has its interval on a line that names both sides, or in the text."""
    panels = script('plot_evidence', monkeypatch).contrasts()
    pages = 'docs/evidence.md', 'docs/evidence_protocol.md', 'configs/bi_sa/README.md'
    lines = [line for page in pages for line in (ROOT / page).read_text(encoding='utf-8').splitlines()]
    for row in itertools.chain(*panels.values()):
        sides = row.name.rpartition(': ')[2].replace(', 1/√d', '').split(' − ')
        named = [line for line in lines if line.startswith('|') and sides[1] in line] + [
            line for line in lines if not line.startswith('|')
        ]
        printed = INTERVAL.findall(' '.join(named))
        assert any(all(map(is_printed, numbers, row.interval)) for numbers in printed), row.name
        assert statistics.mean(row.pairs) == pytest.approx(row.interval.mean)


def test_rows_of_faces_are_compared_on_the_people_of_the_test(monkeypatch):
    """F1 of the pixels of persons 08 and above, both ways turned, pooled by seed; one person alone would differ."""
    score_faces = script('score_faces', monkeypatch)
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


def test_translations_are_compared_over_languages_and_seeds(monkeypatch, tmp_path):
    """BLEU is sacreBLEU's of the chosen sentences, also after writing and reading; a pair is a language and a seed."""
    scorer = script('score_translations', monkeypatch)
    sacrebleu = pytest.importorskip('sacrebleu')
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
                tests[name]['runs'].setdefault(row, {})[seed] = dict(metrics={}, curve=[], sentences=scores)
                longer = [pair for pair, length in zip(zip(hypotheses, references), symbols) if length > 12]
                found[name, row, seed] = bleu(*zip(*longer)).score
    scorer.write(tmp_path / 'g.json', tests)
    tests = scorer.read(tmp_path / 'g.json')
    for (name, row, seed), bleu_of_longer in found.items():
        results = scorer.results(tests[name], row, scorer.is_longer)
        assert results[seed].metrics['BLEU'] == pytest.approx(bleu_of_longer)
    pairs = [found[name, 'ours', seed] - found[name, 'other', seed] for name in ('de', 'fr') for seed in '012']
    mean, low, high = scorer.compare(tests, ('de', 'fr'), 'ours', 'other', scorer.is_longer)
    assert mean == pytest.approx(statistics.mean(pairs))
    student = difference(pairs, [0.0] * 6, scorer.LEVEL)
    assert high - low >= student.high - student.low - 1e-9
