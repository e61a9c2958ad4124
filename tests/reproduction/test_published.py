"""Figures of our own runs on the pages are those of docs/results, as ``tools/misc/write_figures.py`` writes them."""

import json
import re
import shutil
import statistics
from pathlib import Path

import pytest
from mmengine.fileio import load

from misc import write_figures
from misc.write_figures import BLOCK, DECIMAL, pages, read

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / 'docs/results'
FILES = {path.stem: json.loads(path.read_text(encoding='utf-8')) for path in RESULTS.glob('[!g]*.json')}
# Files whose runs are those of shipped configs.
OF_CONFIGS = 'coco-qa', 'daquar', 'easy-vqa', 'flickr8k', 'flickr8k-entities', 'multi30k'


@pytest.mark.slow
def test_the_pages_have_the_figures_of_the_runs(monkeypatch, capsys):
    """And nothing is stored that is of no page."""
    sources = []
    monkeypatch.setattr(write_figures, 'read', lambda source: sources.append(source) or read(source))
    assert write_figures.main(['--check']) == 0, capsys.readouterr().out
    parts = {name if part == 'main' else f'{name}: {part}' for name, file in FILES.items() for part in file}
    assert not parts - {*sources}
    assert sum(path.stat().st_size for path in RESULTS.iterdir()) < 600_000


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A page beside two files of results, and a function that writes its figures."""
    rows = {
        'ours': {'scores': {'mIoU': {'0': 71.0, '1': 72.0, '2': 73.0}}, 'parameters': 2_500_000},
        'stock': {'scores': {'mIoU': {'0': 70.0, '1': 71.0, '2': 72.5}}, 'parameters': 2_000_000},
    }
    recorded = dict(ours='ours', baseline='stock', of='mIoU', interval=[0.8333, -0.5, 2.25])
    sums = {name: {'0': [0.0, 2.0, 2.0], '1': [0.0, 2.0, 2.0]} for name in ('ours', 'stock')}
    sums['ours']['0'] = sums['ours']['1'] = [2.0, 2.0, 2.0]
    units = {'rows': {name: {'scores': {'a': {'0': 1.0, '1': 1.0}}, 'sums': x} for name, x in sums.items()}}
    files = {'runs': {'main': {'rows': rows}, 'bootstrap': {'rows': rows, 'intervals': [recorded]}}}
    files['units'] = {'main': {**units, 'units': {'x': 2, 'y': 2, 'z': 2}, 'scale': 100.0}}
    (tmp_path / 'docs/results').mkdir(parents=True)
    for name, file in files.items():
        (tmp_path / f'docs/results/{name}.json').write_text(json.dumps(file))
    monkeypatch.setattr(write_figures, 'ROOT', tmp_path)
    read.cache_clear()
    yield lambda text: write_figures.rewrite(tmp_path / 'README.md', text)
    read.cache_clear()


@pytest.mark.parametrize(
    ('lines', 'text', 'written'),
    [
        (['mIoU | ours'], 'It has 0.0, for 5 % of 98.3 %.', 'It has 72.0, for 5 % of 98.3 %.'),
        (['mIoU | ours | 1'], '0.00', '72.00'),
        (['mIoU | ours − stock | 1'], '+0.0', '+1.0'),
        (['mIoU | ours − stock'], '0.00 in Table 3.2', '0.83 in Table 3.2'),
        (['mIoU | stock − ours'], '+0.00', '-0.83'),
        (['mIoU | stock − ours'], '−0.0', '−0.8'),
        # mean 2.5/3 ± t · s/√3, where s = 0.288675 and t = 4.302653 (95 %), 7.648874 (1 − 0.05/3)
        (['mIoU | ours − stock | 95 %'], '+0.00 [+0.00, +0.00]', '+0.83 [+0.12, +1.55]'),
        (['mIoU | ours − stock | 98.3 %'], '+0.00 [+0.00, +0.00]', '+0.83 [-0.44, +2.11]'),
        (['runs: bootstrap; mIoU | ours − stock | 95 %'], '+0.0 [+0.0, +0.0]', '+0.8 [-0.5, +2.2]'),
        (['parameters | ours'], '0.00 million', '2.50 million'),
        (['kept', 'mIoU | ours'], 'the paper has 79.1, ours 0.0.', 'the paper has 79.1, ours 72.0.'),
    ],
)
def test_numbers_of_a_paragraph_are_written_in_order(page, lines, text, written):
    comment = '\n'.join(['<!-- figures runs', *lines, '-->'])
    assert page(f'{comment}\n{text}\n\n1.5\n') == f'{comment}\n{written}\n\n1.5\n'


def test_cells_of_a_table_are_written_by_row_and_column(page):
    comment = '\n'.join(
        (
            '<!-- figures runs',
            'Ours, large = ours',
            'mean = mIoU | {0}',
            'seeds = mIoU | {0} | each',
            'interval = runs: bootstrap; mIoU | {pair[0]} − {to} | 95 %',
            'first, last = mIoU | {0} | 0 & mIoU | {0} | 2',
            '-->',
        )
    )
    before = [
        '| row | mean | seeds | first, last | interval | verdict |',
        '| --- | --- | --- | --- | --- | --- |',
        '| [Ours, large](x.py) | 0.00 ± 0.00 | 0, 0, 0: **0.0** | 0.0, 0.0 | +0.0 [+0.0, +0.0] to stock | refuted |',
        '| stock | 0.0 | | | | |',
    ]
    after = [
        *before[:2],
        '| [Ours, large](x.py) | 72.00 ± 1.00 | 71, 72, 73: **72.0** | 71.0, 73.0 '
        '| +0.8 [-0.5, +2.2] to stock | undecided |',
        '| stock | 71.2 | | | | |',
    ]
    assert page('\n'.join([comment, *before, ''])) == '\n'.join([comment, *after, ''])


def test_a_difference_with_samples_has_their_bootstrap(page):
    """A third of the units is right in ours alone: the mean is 100/3 of 100, and resamples reach from 0 to 100."""
    text = '<!-- figures units\na | ours − stock | 95 %\n-->\n{}\n'
    assert page(text.format('+0.0 [+0.0, +0.0]')) == text.format('+33.3 [+0.0, +100.0]')


@pytest.mark.parametrize('text', ['0.5 behind', '+0.5 and +0.1', 'no number'])
def test_a_sentence_that_its_figures_contradict_is_an_error(page, text):
    """A difference that became negative, and another number of figures."""
    with pytest.raises(ValueError, match=re.escape(text)):
        page(f'<!-- figures runs\nmIoU | stock − ours\n-->\n{text}\n')


@pytest.mark.slow
def test_pages_of_another_score_are_stale_until_they_are_written(tmp_path, monkeypatch, capsys):
    for path in [*pages(), *RESULTS.glob('*.json'), *ROOT.glob('configs/*/metafile.yml')]:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    results = tmp_path / 'docs/results/evidence_g.json'
    file = json.loads(results.read_text(encoding='utf-8'))
    scores = file['main']['rows']['SA']['scores']['BLEU, de and fr']
    scores.update({key: value - 1 for key, value in scores.items()})
    results.write_text(json.dumps(file), encoding='utf-8')
    monkeypatch.setattr(write_figures, 'ROOT', tmp_path)
    read.cache_clear()
    assert write_figures.main(['--check']) == 1
    named = {line.partition(':')[0] for line in capsys.readouterr().out.splitlines()}
    assert named == {'README.md', 'docs/evidence.md', 'docs/translation.md', 'configs/bi_sa/README.md'}
    assert write_figures.main([]) == 0
    assert write_figures.main(['--check']) == 0
    before, after = ((root / 'README.md').read_text(encoding='utf-8') for root in (ROOT, tmp_path))
    assert after == before.replace('2.8 BLEU', '3.8 BLEU')
    read.cache_clear()


def test_the_evidence_has_no_figure_without_a_source():
    """Decimals stand below a comment, but for the seconds of a table and of a shot, whose runs are no scores."""
    text = BLOCK.sub('', (ROOT / 'docs/evidence.md').read_text(encoding='utf-8'))
    assert DECIMAL.findall(text) == ['6.7']


def test_recorded_intervals_are_around_the_difference_of_the_scores():
    for part in (part for file in FILES.values() for part in file.values()):
        for entry in part.get('intervals', ()):
            ours, baseline = (part['rows'][entry[side]]['scores'][entry['of']] for side in ('ours', 'baseline'))
            mean, low, high = entry['interval']
            pairs = [ours[key] - baseline[key] for key in ours if key in baseline]
            assert mean == pytest.approx(statistics.mean(pairs), abs=2e-4), entry
            assert low < mean < high


def test_results_of_the_metafiles_are_those_of_their_files():
    """Means over the seeds, of the runs of a config without options, or in one row of a page's table."""
    files = {f'docs/results/{name}.json': FILES[name]['main']['rows'].values() for name in OF_CONFIGS}
    stored = {row['config']: (name, row['scores']) for name, rows in files.items() for row in rows}
    models = [model for path in ROOT.glob('configs/*/metafile.yml') for model in load(path)['Models']]
    assert not {model['Name'] for model in models if 'Results' not in model} & stored.keys()
    wrong = []
    for model, result in ((x, result) for x in models for result in x.get('Results', ())):
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


def rows_of(text):
    """Yield the heads and the cells of each row of the tables in a text."""
    for table in re.findall(r'(?:^\|.*\n)+', text, re.M):
        heads, _, *rows = [[cell.strip() for cell in line[1:-1].split(' |')] for line in table.splitlines()]
        yield from ((heads, cells) for cells in rows)
