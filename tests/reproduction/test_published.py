"""Figures of our own runs on the pages are recomputed from docs/results: page → file → figure."""

import itertools
import json
import re
import statistics
from functools import cache
from pathlib import Path

import pytest
from mmengine.fileio import load
from scipy import stats

from reproduction.results import Result, deviation, difference, sampled_difference

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / 'docs/results'
pytestmark = pytest.mark.slow
NUMBER = r'[+−-]?\d+\.\d+'
INTERVAL = re.compile(rf'({NUMBER}) \[({NUMBER}), ({NUMBER})\]')
# Of one interval; the others are corrected for the contrasts that were registered together.
LEVELS = 0.95, 1 - 0.05 / 6, 1 - 0.05 / 3, 1 - 0.05 / 4, 1 - 0.05 / 2
# Files whose runs are those of shipped configs.
OF_CONFIGS = 'coco-qa', 'daquar', 'easy-vqa', 'flickr8k', 'flickr8k-entities', 'multi30k'
SCALED = 'U-Net-BA, content logits times 1/√d'
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
    ('docs/results/runs.md', '## Runs of (a)', '* A training crop', 'evidence_a'),
    ('docs/results/runs.md', '## Runs of (c)', 'To find the cause', 'evidence_c'),
    ('docs/results/runs.md', 'To find the cause', '## Runs of (d)', 'evidence_c: exploratory'),
    ('docs/results/runs.md', 'With the first recipe, the', '## Runs of (e)', 'evidence_d: first recipe'),
    ('docs/results/runs.md', '* Trained on person 01', '(98.3 %)', 'evidence_e: one person'),
    ('docs/results/runs.md', '## Runs of (f)', 'A gate of', 'evidence_f'),
    ('docs/results/runs.md', '### Longer sentences', 'All translate', 'evidence_g'),
    ('docs/results/runs.md', '### All lengths', '## Runs of (h)', 'evidence_g'),
    ('docs/results/runs.md', '## Runs of (h)', 'With the same recipe', 'evidence_h'),
    ('docs/results/runs.md', 'With the same recipe', 'The runs also', 'evidence_d: first recipe'),
    ('docs/results/runs.md', 'continued from CC:', 'Continued from NL', 'evidence_i: CC'),
    ('docs/results/runs.md', 'Continued from NL', '## Runs of (j)', 'evidence_i: NL'),
    ('docs/results/runs.md', '## Runs of (j)', '| stock NL', 'evidence_j: CC'),
    ('docs/results/runs.md', '### Photographs that are there twice', '### Secondary', 'evidence_j: twice'),
    ('docs/results/runs.md', '### Secondary rows of (j)', 'Bi-CC and Bi-NL are', 'evidence_j: secondary'),
    ('docs/results/runs.md', 'rows have means of', 'From seed 1', 'evidence_j: from CC 0'),
    ('docs/results/runs.md', 'From seed 1, which', 'So it is the division', 'evidence_j: from CC 1'),
    ('docs/evidence.md', '| contrast, overall F1', 'On 26 photographs', 'evidence_e'),
    ('docs/evidence.md', 'On 26 photographs', '### Streets', 'evidence_c'),
    ('docs/evidence.md', '### Streets', 'This setting', 'evidence_a'),
    ('docs/evidence.md', '### Clothes: Bi-CC', 'In the second row', 'evidence_j: CC'),
    ('docs/evidence.md', 'By class, skirt', 'Trousers, legwear', 'evidence_j: CC'),
    ('docs/evidence.md', 'Bi-NL, 15 − stock NL is', ' in 15 pairs', 'evidence_j: NL'),
    ('docs/evidence.md', '* **Positions gain', '### Positions for', 'evidence_j: secondary'),
    ('docs/evidence.md', 'On streets, Bi-CC gains', 'From a trained NL', 'evidence_i: CC'),
    ('docs/evidence.md', '### Translation', '**Longer sentences.**', 'evidence_g'),
    ('docs/evidence.md', '**Longer sentences.**', 'On the pairs of', 'evidence_g'),
    ('docs/evidence.md', '### Videos', 'That is undecided', 'evidence_d'),
    ('docs/evidence.md', 'SST (Grid) − label propagation is', '(98.75 %', 'evidence_h'),
    ('configs/sst/README.md', '| J&F | mean | to label', '\n\n', 'evidence_d'),
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
# Columns of other sources: the papers', and an evaluation that was not stored.
LEFT_OUT = re.compile(r'paper|thesis|union|config|seeds for|pairs for')


@cache
def read(source):
    """Return a part of a file: rows with scores by label and by seed, fold or clip; units; intervals.

    An interval is recorded where it is a bootstrap of pixels or sentences: the files have only their sums.
    """
    file, _, part = source.partition(': ')
    return json.loads((RESULTS / f'{file}.json').read_text(encoding='utf-8'))[part or 'main']


@cache
def figures(source, name):
    """Every figure that a table may print about a row."""
    row = read(source)['rows'][name]
    found = [row.get('parameters', 0) / 1e6, row.get('macs', 0) / 1e9, row.get('seconds', 0)]
    for by_key in row['scores'].values():
        values = [*by_key.values()]
        found += [*values, statistics.mean(values), deviation(values) or 0.0, noise(by_key)]
    validations = [by_key for label, by_key in row['scores'].items() if 'validation' in label]
    for first, last in itertools.combinations(validations, 2):
        if both := {key: value for key, value in last.items() if key in first}:
            found += [noise(both), statistics.mean(value - first[key] for key, value in both.items())]
    return found


def noise(by_key):
    """Return the deviation of a difference of two runs of a row: of seeds, or within the folds."""
    folds = [[*group] for _, group in itertools.groupby(by_key, lambda key: key.rpartition('/')[0])]
    return statistics.mean(2 * (deviation([by_key[key] for key in fold]) or 0.0) ** 2 for fold in folds) ** 0.5


def has_power(number, mean, source, ours, baseline):
    """Whether this true difference would be found with a power of 80 %, if the pairs with this mean deviate so."""
    rows = [read(source)['rows'][name] for name in (ours, baseline)]
    rounding = 0.5 * 10 ** -len(number.partition('.')[2])
    for label in rows[0]['scores'].keys() & rows[1]['scores'].keys():
        pairs = [a - b for a, b in zip(*paired(rows, label))]
        if len({*pairs}) > 1 and is_printed(mean, statistics.mean(pairs)):
            freedom, error = len(pairs) - 1, statistics.stdev(pairs) / len(pairs) ** 0.5
            for level in LEVELS:
                shifts = [(float(number) + sign * rounding) / error for sign in (-1, 1)]
                low, high = (stats.nct.sf(stats.t.ppf((1 + level) / 2, freedom), freedom, shift) for shift in shifts)
                if low - 0.005 <= 0.8 <= high + 0.005:
                    return True
    return False


@cache
def intervals(source, ours, baseline):
    """Every difference of two rows with an interval, by label: Student's t over what both have, units, as recorded."""
    part = read(source)
    rows = [part['rows'][name] for name in (ours, baseline)]
    found = []
    for label in rows[0]['scores'].keys() & rows[1]['scores'].keys():
        pair = paired(rows, label)
        found += [difference(*pair, level) for level in LEVELS if len(pair[0]) > 1]
    if all('sums' in row for row in rows):
        seeds = [seed for seed in rows[0]['sums'] if seed in rows[1]['sums']]
        found.append(sampled_difference(*([of_units(part, row['sums'][seed]) for seed in seeds] for row in rows)))
    recorded = (x for x in part.get('intervals', ()) if (x['ours'], x['baseline']) == (ours, baseline))
    return found + [x['interval'] for x in recorded]


def paired(rows, label):
    """Return the scores of two rows by the keys that both have."""
    first, second = (row['scores'][label] for row in rows)
    return [[by_key[key] for key in first if key in second] for by_key in (first, second)]


def of_units(part, sums):
    """Return the samples of a run: a unit's sum of scores, and the number of its samples."""
    samples = {unit: [part['scale'] * total, count] for (unit, count), total in zip(part['units'].items(), sums)}
    return Result({}, samples=samples)


def is_printed(text, value):
    """Whether a number as printed is a value, rounded to its decimals; files have four."""
    decimals = len(text.partition('.')[2])
    return abs(float(text.replace('−', '-')) - value) <= 0.5 * 10**-decimals + 1e-4


def rows_named(cell, rows):
    """Return the names of the rows of a file that a cell of a table is about."""
    name = re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', cell)
    for suffix in (', upright', ', turned by 30°', ', turned', ', with sinusoids'):
        name = name.removesuffix(suffix)
    if ' − ' in name:
        return [side for part in name.split(' − ') for side in rows_named(part, rows)]
    for known in (name, ALIASES.get(name), name.partition(': ')[0]):
        if known in rows:
            return [known]
    return [row for row in rows if row.startswith(f'{name}, ') or row.endswith(f', {name} questions')]


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


def not_recomputed(text, source):
    """Return the numbers of a section that are no figure of its rows, and how many there are in all."""
    rows, checked, wrong, contrasts = read(source)['rows'], 0, [], []

    def check(where, text, known, pairs):
        nonlocal checked
        for printed in INTERVAL.findall(text):
            checked += 1
            found = (x for a, b in pairs if a != b for x in intervals(source, a, b))
            wrong.extend([(where, printed)] * (not any(all(map(is_printed, printed, x)) for x in found)))
        for number in re.findall(rf'{NUMBER}(?! %)(?!\d)', INTERVAL.sub('', text)) if known is not None else ():
            checked += 1
            wrong.extend([(where, number)] * (not any(is_printed(number, x) for x in known)))

    for heads, cells in rows_of(text):
        about = rows_named(cells[0], rows)
        assert about or rows_named(heads[-1], rows), cells[0]
        half = len(about) // 2
        is_contrast = ' − ' in cells[0]
        pairs = [*itertools.product(about[:half], about[half:])] if is_contrast else [*itertools.product(about, rows)]
        pairs += [] if is_contrast else [(b, a) for a, b in pairs]
        contrasts += pairs * is_contrast
        for head, cell in zip(heads[1:], cells[1:]):
            if 'detectable' in head:
                assert has_power(cell, INTERVAL.search(' '.join(cells))[1], source, *about), cells
            elif not LEFT_OUT.search(head):
                known = [x for name in about or rows_named(head, rows) for x in figures(source, name)]
                check((cells[0], head), cell, known, pairs)
        if cells[-1] in ('confirmed', 'refuted', 'undecided'):
            _, low, high = INTERVAL.search(' '.join(cells[1:])).groups()
            verdict = 'confirmed' if low[0] == '+' else 'refuted' if high[0] in '-−' else 'undecided'
            assert cells[-1] == verdict, cells[0]
    prose = ' '.join(line.strip() for line in text.splitlines() if not line.startswith('|'))
    known = None if checked else [x for name in rows for x in figures(source, name)]  # a text without a table
    check('text', prose, known, [*contrasts, *itertools.permutations(rows, 2)])
    return wrong, checked


@pytest.mark.parametrize('section', SECTIONS, ids=lambda section: f'{section[3]}-{section[1].strip("#|*<!- ")[:18]}')
def test_a_section_has_the_figures_of_its_runs(section):
    """Numbers are figures of the row's method, or of the column's; intervals are of differences; verdicts follow."""
    page, before, after, source = section
    text = (ROOT / page).read_text(encoding='utf-8')
    assert text.count(before) >= 1
    text = before + text.partition(before)[2]
    wrong, checked = not_recomputed(text[: text.index(after, len(before))], source)
    assert not wrong
    assert checked  # a table of one contrast has one figure


HEADS = '| head | mIoU | seconds |'
OURS, PAIRS, LONG = 'U-Net-BA, 1/√d', 'BLEU, de and fr', 'BLEU, long, longer than 12 symbols'
CC, NL = ('Bi-CC, 15', 'stock CC'), ('Bi-NL, 15', 'stock NL')
# Page, words, and their figures in order: file, label, row, and the row it is compared with; with a level also both
# limits of Student's t, with 'units' those of the bootstrap, with a seed its difference alone. The label '%' is the
# share of further parameters.
TEXTS = [
    ('docs/evidence.md', 'Bi-SA is {:.1f} BLEU ahead of sinusoids', ('evidence_g', PAIRS, 'Bi-SA', 'SA')),
    ('docs/translation.md', '{:.1f} BLEU ahead of', ('evidence_g', PAIRS, 'Bi-SA', 'SA')),
    ('configs/bi_sa/README.md', '{:.1f} BLEU ahead of', ('evidence_g', PAIRS, 'Bi-SA', 'SA')),
    ('README.md', '{:.1f} BLEU ahead of SA', ('evidence_g', PAIRS, 'Bi-SA', 'SA')),
    *(
        (page, words, ('evidence_g', LONG, 'Bi-SA', 'SA'), ('evidence_g', LONG, 'Bi-SA', 'SA-RPE'))
        for page, words in (
            ('docs/evidence.md', 'it is {:.1f} ahead of sinusoids, and {:.1f} of relative positions'),
            ('README.md', '{:.1f} BLEU ahead of sinusoids, {:.1f} of relative positions'),
        )
    ),
    (
        'docs/evidence.md',
        'the means differ by {:.1f} (SA) and {:.1f} (SA-RPE)',
        *(('evidence_g', 'BLEU, long, at most 12 symbols', 'Bi-SA', row) for row in ('SA', 'SA-RPE')),
    ),
    (
        'docs/evidence.md',
        'it is {:.1f} points ahead of U-Net on eight new people, and {:.1f} on another person',
        ('evidence_e', 'F1, 30°', OURS, 'U-Net'),
        ('evidence_c', 'overall', SCALED, 'U-Net'),
    ),
    ('docs/evidence.md', 'about {:.1f} points behind on the eight', ('evidence_e', 'F1, 0°', 'U-Net', OURS)),
    (
        'docs/results/runs.md',
        'behind U-Net-BA on upright faces, too (by {:.1f} and {:.1f}',
        *(('evidence_e', 'F1, 0°', OURS, row) for row in ('narrow U-Net', 'equal weights')),
    ),
    (
        'docs/evidence.md',
        'U-Net-BA has {:.2f} million parameters, U-Net {:.2f} million',
        *(('evidence_c', 'parameters', row) for row in ('U-Net-BA', 'U-Net')),
    ),
    (
        'docs/evidence.md',
        'Bi-NL is [{:.1f} points](#clothes-bi-nl) ahead of NL, and Bi-CC [{:.1f}](#clothes-bi-cc) of CC',
        ('evidence_j: NL', 'mIoU', *NL),
        ('evidence_j: CC', 'mIoU', *CC),
    ),
    ('docs/evidence.md', 'gain, with {:.1f} % more parameters', ('evidence_j: NL', '%', *NL)),
    ('docs/evidence.md', 'gain, with {:.1f} % more parameters', ('evidence_j: CC', '%', *CC)),
    (
        'docs/evidence.md',
        'bag, shoes and hair gain {:.1f} to {:.1f} points',
        *(('evidence_j: NL', f'IoU, {name}', *NL) for name in ('hair', 'upper')),
    ),
    (
        'docs/evidence.md',
        'shoes, bag and hair gain {:.1f} to {:.1f} points',
        *(('evidence_j: CC', f'IoU, {name}', *CC) for name in ('hair', 'legwear')),
    ),
    (
        'docs/evidence.md',
        '{:+.1f}, {:+.1f} and {:+.1f}',
        *(
            ('evidence_j: CC', f'gain over stock CC of the photograph with the {title}', CC[0])
            for title in ('least mean gain, 0327', 'median mean gain, 0935', 'largest mean gain, 0449')
        ),
    ),
    (
        'README.md',
        '{:.1f} mIoU above NL and {:.1f} above CC on 304 photographs',
        ('evidence_j: NL', 'mIoU', *NL),
        ('evidence_j: CC', 'mIoU', *CC),
    ),
    (
        'README.md',
        'CC with them is {:.2f} above Bi-CC with 31, NL with them {:.2f} above Bi-NL with 15',
        ('evidence_j: secondary', 'mIoU', 'CC + RPE', 'Bi-CC'),
        ('evidence_j: secondary', 'mIoU', 'NL + RPE', 'Bi-NL, 15'),
    ),
    ('README.md', 'adds only {:.1f} to no attention', ('evidence_j: secondary', 'mIoU', 'stock NL', 'no attention')),
    (
        'README.md',
        'Upside down, it is {:.1f} below CC',
        ('evidence_j: secondary', 'mIoU', 'CC, upside down', 'Bi-CC, upside down'),
    ),
    (
        'README.md',
        'this seed gains {:.1f} points, and eight seeds {:.1f}',
        ('evidence_e', 'F1, 30°', OURS, 'U-Net', '0'),
        ('evidence_e', 'F1, 30°', OURS, 'U-Net'),
    ),
    (
        'README.md',
        '{:.1f} points of F1 above U-Net on new people turned by 30°, no clear difference at 15°, {:.1f} below',
        ('evidence_e', 'F1, 30°', OURS, 'U-Net'),
        ('evidence_e', 'F1, 0°', 'U-Net', OURS),
    ),
    ('README.md', 'skirts lose {:.1f}', ('evidence_j: CC', 'IoU, skirt', *reversed(CC))),
    ('README.md', 'of 31 adds {:.1f} to', ('evidence_j: secondary', 'mIoU', 'Bi-CC', 'Bi-CC, 15')),
    ('configs/bi_cc/README.md', 'was [{:.1f} points better', ('evidence_j: secondary', 'mIoU', 'Bi-CC', 'Bi-CC, 15')),
    ('configs/bi_cc/README.md', 'it is {:.1f} points ahead on [clothes]', ('evidence_j: CC', 'mIoU', *CC)),
    ('configs/bi_nl/README.md', 'it is {:.1f} points ahead on [clothes]', ('evidence_j: NL', 'mIoU', *NL)),
    (
        'docs/evidence.md',
        'CC is only {:.2f} points above the same head without attention (three seeds, 95 % interval {:.2f} to {:+.2f})',
        ('evidence_a', 'mIoU', 'CC', 'no attention', 0.95),
    ),
    (
        'docs/evidence.md',
        "label propagation in SST's backbone {:.1f}",
        ('evidence_d', 'J&F', 'label propagation'),
    ),
    (
        'docs/evidence.md',
        'SST (Grid), first recipe, {:.1f} on six clips, and {:.1f} with photographs',
        ('evidence_d: first recipe', 'J&F', 'SST (Grid)'),
        ('evidence_h', 'J&F', 'SST (Grid)'),
    ),
    (
        'docs/evidence.md',
        '({:.1f} and {:.1f}) than two methods without training: label propagation ({:.1f}), and the first mask '
        'repeated ({:.1f})',
        *(('evidence_d', 'J&F', row) for row in ('SST (Grid)', 'SST (Strided)', 'label propagation', 'first mask')),
    ),
    (
        'docs/evidence.md',
        'SST (Grid) has {:.1f}, and SST (Strided) {:.1f}',
        *(('evidence_h', 'J&F', row) for row in ('SST (Grid)', 'SST (Strided)')),
    ),
    (
        'docs/evidence.md',
        'accuracy {:+.2f} [{:+.2f}, {:+.2f}]',
        ('easy-vqa', 'accuracy', 'BAN-2, 2,410 questions', 'Concat, 2,410 questions', 'units'),
    ),
]


def text_figures(source, label, ours, baseline=None, level=None):
    """Return the figures of an entry of TEXTS."""
    rows = [read(source)['rows'][name] for name in filter(None, (ours, baseline))]
    if label in ('%', 'parameters'):
        counts = [row['parameters'] for row in rows]
        return [100 * counts[0] / counts[1] - 100 if label == '%' else counts[0] / 1e6]
    if level == 'units':
        return [*intervals(source, ours, baseline)[-1]]
    if isinstance(level, str):
        scores = [row['scores'][label][level] for row in rows]
        return [scores[0] - sum(scores[1:])]
    if level is not None:
        return [*difference(*paired(rows, label), level)]
    means = [statistics.mean(row['scores'][label].values()) for row in rows]
    return [means[0] - sum(means[1:])]


def in_words(template, specifications):
    return template.format(*(x for each in specifications for x in text_figures(*each))).replace('-', '−')


def words_of(page):
    return ' '.join((ROOT / page).read_text(encoding='utf-8').split())


@pytest.mark.parametrize(('page', 'template', 'specifications'), [(page, words, x) for page, words, *x in TEXTS])
def test_a_text_has_the_figures_of_its_runs(page, template, specifications):
    assert in_words(template, specifications) in words_of(page).replace('-', '−')


def test_the_prose_of_the_evidence_has_no_other_figures():
    """Nor have its tables, but in rows with intervals, which are checked above, as the table of heads is below."""
    before, _, rest = (ROOT / 'docs/evidence.md').read_text(encoding='utf-8').partition(HEADS)
    lines = [*before.splitlines(), *rest.partition('\n\n')[2].splitlines()]
    text = ' '.join(x.strip() for x in lines if not INTERVAL.search(x) or not x.startswith('|')).replace('-', '−')
    for page, template, *specifications in TEXTS:
        if page == 'docs/evidence.md':
            text = text.replace(in_words(template, specifications), '')
    text = re.sub(rf"the paper's {NUMBER}", '', text)
    assert not re.findall(rf'{NUMBER}(?! (?:%|seconds))(?!\d)', INTERVAL.sub('', text))


def test_the_heads_for_clothes_have_the_figures_of_their_runs():
    """Means over the seeds, and the seconds that the page of the runs has."""
    table = (ROOT / 'docs/evidence.md').read_text(encoding='utf-8').partition(HEADS)[2].partition('\n\n')[0]
    rows = read('evidence_j: secondary')['rows']
    heads = [cells for _, cells in rows_of(HEADS + table)]
    assert len(heads) == 7
    for name, mean, seconds in heads:
        row = rows[f'stock {name}' if name in ('CC', 'NL') else name.removesuffix(', window of 31')]
        assert is_printed(mean, statistics.mean(row['scores']['mIoU'].values())), name
        if re.fullmatch(NUMBER, seconds):
            assert f'{seconds} s' in words_of('docs/results/runs.md')
        elif seconds:
            beside = (row['seconds'], rows['stock NL']['seconds'])
            assert [*map(float, re.findall(NUMBER, seconds))] == pytest.approx(beside, abs=0.005)


def test_classes_of_clothes_have_the_intervals_of_their_runs():
    page = (ROOT / 'docs/results/runs.md').read_text(encoding='utf-8').partition('### By class')[2]
    classes = [cells for _, cells in rows_of(page.partition('\n### ')[0])]
    assert len(classes) == 10
    for name, *cells in classes:
        for part, pair, cell in zip(('CC', 'NL'), (CC, NL), cells):
            recorded = read(f'evidence_j: {part}')['intervals']
            (x,) = (x for x in recorded if (x['ours'], x['baseline'], x['of']) == (*pair, f'IoU, {name}'))
            assert all(map(is_printed, INTERVAL.fullmatch(cell).groups(), x['interval'])), name


def test_recorded_intervals_are_around_the_difference_of_the_scores():
    for source in {section[3] for section in SECTIONS}:
        for each in read(source).get('intervals', ()):
            pair = paired([read(source)['rows'][each[side]] for side in ('ours', 'baseline')], each['of'])
            mean, low, high = each['interval']
            assert mean == pytest.approx(statistics.mean(a - b for a, b in zip(*pair)), abs=2e-4), each
            assert low < mean < high


def test_the_results_are_small():
    """All files are of a page, and none has the pixels of photographs."""
    assert sum(path.stat().st_size for path in RESULTS.iterdir()) < 600_000
    parts = {section[3] for section in SECTIONS}
    files = {path.stem: json.loads(path.read_text(encoding='utf-8')) for path in RESULTS.glob('*.json')}
    del files['gpu_h200']
    assert {name if part == 'main' else f'{name}: {part}' for name, file in files.items() for part in file} == parts


def test_results_of_the_metafiles_are_those_of_their_files():
    """Means over the seeds, of the runs of a config without options, or in one row of a page's table."""
    files = {f'docs/results/{name}.json': read(name)['rows'].values() for name in OF_CONFIGS}
    stored = {row['config']: (name, row['scores']) for name, rows in files.items() for row in rows}
    models = [model for path in ROOT.glob('configs/*/metafile.yml') for model in load(path)['Models']]
    assert not {model['Name'] for model in models if 'Results' not in model} & stored.keys()
    wrong = []
    for model in models:
        for result in model.get('Results', ()):
            assert result['Dataset'] == model['Metadata']['Training Data']
            metrics = result['Metrics']
            if model['Name'] in stored:
                file, scores = stored[model['Name']]
                means = {name: round(statistics.mean(scores[name].values()), 2) for name in metrics}
                if (file, len(scores[next(iter(metrics))]), means) != (result['Log'], result['Seeds'], metrics):
                    wrong.append((model['Name'], means))
                continue
            page, _, anchor = result['Log'].partition('#')
            text = (ROOT / page).read_text(encoding='utf-8')
            (title,) = (x for x in re.findall('^## (.+)$', text, re.M) if x.lower().replace(' ', '-') == anchor)
            printed = {f'{value:.2f}' for value in metrics.values()}
            rows = rows_of(text.partition(f'## {title}\n')[2].partition('\n## ')[0])
            found = [(heads, cells) for heads, cells in rows if printed <= {cell.split(' ')[0] for cell in cells}]
            if len(found) != 1:
                wrong.append((model['Name'], metrics))
                continue
            ((heads, cells),) = found
            seeds = [cell for head, cell in zip(heads, cells) if re.fullmatch(r'(mAP, )?(seed )?\d', head)]
            if seeds:
                mean = pytest.approx(statistics.mean(map(float, seeds)), abs=0.1)
                assert (len(seeds), next(iter(metrics.values()))) == (result['Seeds'], mean)
    assert not wrong
