"""results.json: what is written is read again, and no run is lost."""

import json

import pytest

from reproduction.results import Result
from reproduction.store import Store

pytestmark = pytest.mark.slow

FIRST = Result(dict(F1=50.0, skin=1 / 3), 0.5, 100.0, [(5, 40.123456), (10, 50.0)], dict(a=100.0, b=0.0, c=12.3456))
FOLD = Result({'J&F': 30.0}, None, None, (), dict(c=[60.0, 2]), 'mIoU')


def test_runs_are_read_as_they_were_written(tmp_path):
    """Scores have three decimals, curves four; samples that a run does not have are left out."""
    store = Store(tmp_path / 'results.json')
    assert store.get('cc', 0, 10, 'iterations') is None
    rounded = FIRST._replace(curve=[[5, 40.1235], [10, 50.0]], samples=dict(a=100, b=0, c=12.346))
    assert store.add('cc', 0, 10, FIRST) == rounded  # so that the report of a new run is that of a stored one
    store.add('sst_fold-1', 1, 0, FOLD)
    store.report(dict(table='3.2'), [dict(name='CC', mean=dict(F1=50.0))])
    again = Store(tmp_path / 'results.json')
    assert again.get('cc', 0, 10, 'iterations') == rounded
    assert again.get('sst_fold-1', 1, 0, 'iterations') == FOLD
    assert again.setup == dict(table='3.2')
    assert again.rows == [dict(name='CC', mean=dict(F1=50.0))]
    before = json.loads((tmp_path / 'results.json').read_text())
    again.add('cc', 1, 10, FIRST)
    after = json.loads((tmp_path / 'results.json').read_text())
    assert after['runs']['cc'].pop('1')['scores'] == [100, 0, 12.346]
    assert after == before


def test_a_run_with_other_settings_or_of_another_length_is_an_error(tmp_path):
    """Also in a file that was copied from another machine; runs of earlier versions do not say their settings."""
    store = Store(tmp_path / 'results.json')
    settings = ['inputs of 180×180', 'mixed precision']
    store.add('cc', 0, 10, FOLD._replace(deviations=settings))
    store.add('cc', 1, 10, FOLD)
    store.add('cc', 2, 10, FOLD._replace(deviations=[]))
    again = Store(tmp_path / 'results.json')
    assert again.get('cc', 0, 10, 'iterations', settings).deviations == settings
    assert again.get('cc', 1, 10, 'iterations', ['inputs of 90×90']) == FOLD
    assert again.get('cc', 2, 10, 'iterations', []).deviations == []
    for arguments, names in (
        ((2, 10, 'iterations', ['mixed precision']), 'seed 2, .* none; .*mixed precision'),
        ((0, 10, 'iterations', []), 'seed 0, .*inputs of 180×180; mixed precision; .*none'),
        ((0, 20, 'epochs'), 'seed 0, .*length than 20 epochs'),
    ):
        with pytest.raises(ValueError, match=names):
            again.get('cc', *arguments)
    (tmp_path / 'results.json').write_text('{')
    with pytest.raises(ValueError, match=r'results\.json'):
        Store(tmp_path / 'results.json')


def test_scores_of_answers_are_digits(tmp_path):
    store = Store(tmp_path / 'results.json')
    store.add('ban', 0, 10, FIRST._replace(samples=dict(a=100.0, b=0.0)))
    store.add('ban', 1, 10, FIRST._replace(samples=dict(b=100.0)))  # a is missing
    runs = json.loads((tmp_path / 'results.json').read_text())['runs']['ban']
    assert [run['scores'] for run in runs.values()] == ['10', [None, 100]]
    again = Store(tmp_path / 'results.json')
    assert [again.get('ban', seed, 10, 'epochs').samples for seed in (0, 1)] == [dict(a=100, b=0), dict(b=100)]
