"""The rehearsal of tables on tiny data."""

import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from reproduction import reproduce
from reproduction.plan import plan, write_configs
from reproduction.protocol import Protocol, adapt, shipped, small_network
from reproduction.reproduce import make_run, member_runs
from reproduction.tables import read_tables

from ..support import rehearsal, rehearsal_data
from ..support.rehearsal import choose_rows, rehearse_table

pytestmark = pytest.mark.slow

TOOL = Path(__file__).parents[2] / 'tools' / 'reproduce.py'
TABLES = read_tables()


@pytest.fixture(scope='module')
def places(tmp_path_factory):
    """The folders of all tiny data sets, by variable."""
    folder = tmp_path_factory.mktemp('data')
    for variable in rehearsal_data.DATA:
        rehearsal_data.make(variable, folder)
    return {variable: rehearsal_data.place(variable, folder) for variable in rehearsal_data.DATA}


@pytest.fixture
def data(places, monkeypatch):
    for variable, place in places.items():
        monkeypatch.setenv(variable, str(place))


def change_outcomes(folder, lost=None):
    """Give all stored outcomes of a table a time that no row takes, and remove one, or none."""
    path = folder / 'rehearsal.json'
    outcomes = {name: values for name, values in json.loads(path.read_text()).items() if name != lost}
    for values in outcomes.values():  # digest, kind, fault, seconds, whether the truth is public
        values[3] = 1234.5
    path.write_text(json.dumps(outcomes))


@pytest.mark.e2e
def test_a_table_is_rehearsed_and_resumed(run, tmp_path):
    """Converter, two updates, test, report; the second call repeats only the row whose outcome was lost."""
    command = [sys.executable, TOOL, 'daquar', '--rehearse', '--work-dir', tmp_path]
    said = run(*command)
    lines = re.findall(r'^daquar \| (.+) \| trained \| ok \| ([\d.]+) s$', said, re.M)
    assert [name for name, _ in lines] == ['Concat', 'BAN-2']
    assert '2 rows of 1 tables' in said
    assert '2 trained, 0 checked; 0 failed' in said
    change_outcomes(tmp_path / 'daquar', lost='BAN-2')
    again = re.findall(r'^daquar \| (.+) \| trained \| ok \| ([\d.]+) s$', run(*command), re.M)
    assert [(name, seconds == '1234.5') for name, seconds in again] == [('Concat', True), ('BAN-2', False)]


def test_a_row_without_training_is_checked(data, tmp_path, capsys):
    """A fault of the model, of a metric, of the data; the others run, and only these three are repeated."""
    good = TABLES['daquar'][0]
    rows = [
        good,
        good._replace(name='model', options={'model.head.type': 'mmattn.NoHead'}),
        good._replace(name='metric', metrics={'CIDEr-D': 1}),
        good._replace(name='data', options={'test_dataloader.dataset.ann_file': 'none.json'}),
    ]
    rehearse_table(rows, [False] * 4, tmp_path)
    lines = [line.split(' | ') for line in capsys.readouterr().out.splitlines()]
    assert [line[1:3] for line in lines] == [[row.name, 'checked'] for row in rows]
    assert lines[0][3] == 'ok'
    for line, message in zip(
        lines[1:], ('NoHead', 'VQAAccuracy gives accuracy, raw accuracy, not CIDEr-D', 'none.json')
    ):
        assert re.match(f'failed: .*{message}', line[3]), line
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith('01_')]
    change_outcomes(tmp_path)
    rehearse_table(rows, [False] * 4, tmp_path)
    seconds = [line.split(' | ')[4] for line in capsys.readouterr().out.splitlines()[:4]]
    assert [time == '1234.5 s' for time in seconds] == [True, False, False, False]


def test_a_test_without_public_truth_is_not_scored(data, tmp_path, capsys):
    rehearse_table(TABLES['5.1'][:1], [False], tmp_path)
    assert '| ok, without a score: the truth of the test is not public |' in capsys.readouterr().out


def test_one_row_of_each_base_config_and_data_set_is_trained():
    assert set(rehearsal_data.variables()) == set(rehearsal_data.DATA)
    trained = Counter(
        (small_network(cfg), cfg.data_root, bool(row.members))
        for table, chosen in choose_rows(TABLES).items()
        for row, train in zip(TABLES[table], chosen)
        if train and (cfg := shipped(row.configs[-1]))
    )
    assert set(trained.values()) == {1}
    roots = {shipped(row.configs[-1]).data_root for rows in TABLES.values() for row in rows}
    assert roots == {root for _, root, _ in trained}


def test_only_sizes_are_tiny(data):
    """Components, optimizer and schedule are the row's own."""

    def types(part):
        parts = part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else ()
        own = [part['type']] if isinstance(part, dict) and 'type' in part else []
        return own + [kind for each in parts for kind in types(each)]

    for table in ('2', '3.2', '4.2', '4.3', '2.5', '3.5', '5.2', 'ban-3', 'fusion-3.1', 'ngsan-6', 'terms-nmt-2'):
        row = TABLES[table][-1]
        for full, tiny in zip(adapt(row, Protocol(), None), adapt(row, rehearsal.TINY, None), strict=True):
            assert full.optim_wrapper == tiny.optim_wrapper
            assert full.param_scheduler == tiny.param_scheduler
            assert full.get('custom_hooks') == tiny.get('custom_hooks')
            for key in ('train_dataloader', 'test_dataloader', 'test_evaluator'):
                assert types(full[key]) == types(tiny[key])
            kinds = [kind for kind in types(full.model.to_dict()) if kind not in ('Pretrained', 'Kaiming', 'Constant')]
            assert kinds == types(tiny.model.to_dict()), table


ENSEMBLES = [row for rows in TABLES.values() for row in rows if row.members]


@pytest.mark.parametrize('row', ENSEMBLES, ids=rehearsal.row_key)
def test_an_ensemble_has_the_models_of_its_config(row):
    """They are made of the rows that it joins; a second model of one row has another seed."""
    (method,) = plan([row], Protocol(), None)
    assert method.configs[0].model.to_dict() == shipped(row.configs[-1]).model.to_dict()
    method.paths = [Path('ensemble.py')]
    for member in method.members:
        member.paths = [Path(f'{member.name}.py')]
    runs = member_runs(make_run('', Path('ensemble.py'), 2, Path('work')), method)
    expected = {
        'ETA, two models': [('ETA', 2), ('ETA', 1002)],
        'T_v and T_s together': [('T_v', 2), ('T_s', 2)],
    }
    assert [(run.method, run.seed) for run, _ in runs] == expected[row.name]
    assert [run.folder for run, _ in runs] == [Path(f'work/{name}_seed-{seed}') for name, seed in expected[row.name]]
    assert [row.name for _, member in runs for row in member.rows[:1]] == [name for name, _ in expected[row.name]]


def test_an_ensemble_joins_the_tested_models_of_its_rows(data, tmp_path, monkeypatch):
    """The best checkpoints of the second stages are joined, in the order of the config; the trainings are not run."""
    (row,) = (row for row in ENSEMBLES if row.table == '2.5')
    monkeypatch.setattr(reproduce, 'finish', lambda run, *others: finished(run.folder))
    calls = []
    monkeypatch.setattr(reproduce, 'call', lambda run, jobs, *words: calls.append([run.folder, *map(str, words)]))

    def finished(folder):
        folder.mkdir(exist_ok=True)
        (folder / 'best_CIDEr-D_epoch_1.pth').touch()

    (method,) = plan([row], rehearsal.TINY, None)
    write_configs([method], tmp_path / 'configs', [])
    run = make_run(method.name, method.paths[-1], 0, tmp_path)
    _, tested = reproduce.train_stages(run, method, 0, 1)
    stem = 'eta_1xb15-scst-15e_coco-captions_sources'
    paths = [str(tmp_path / f'{stem}-{source}_seed-0/best_CIDEr-D_epoch_1.pth') for source in ('visual', 'semantic')]
    assert calls == [[run.folder, 'misc/ensemble_checkpoints.py', *paths, '--out', str(tested)]]
    assert {path.name for path in tmp_path.glob('*_seed-0')} == {
        f'eta_1xb15-{stage}15e_coco-captions_sources-{source}_seed-0'
        for stage in ('', 'scst-')
        for source in ('visual', 'semantic')
    }


@pytest.mark.parametrize(
    ('fault', 'good'),
    [
        ('', True),
        ('KeyError', False),
        ('train.py: error: The config requires the operators of mmcv, which is installed without them', True),
        ('test.py: error: java: not on the PATH; a Java runtime (8 or later) is required', True),
        ("No module named 'sacremoses'", True),
    ],
)
def test_what_is_not_installed_is_no_failure(tmp_path, capsys, fault, good):
    row = TABLES['daquar'][0]
    (tmp_path / 'daquar').mkdir()
    outcomes = {rehearsal.row_key(row): ['', 'trained', fault, 1.0, True]}
    (tmp_path / 'daquar/rehearsal.json').write_text(json.dumps(outcomes))
    assert rehearsal.summarize({'daquar': [row]}, tmp_path, 2) is good
    assert (f'daquar, {row.name}: ' in capsys.readouterr().out) == bool(fault)
    assert not rehearsal.summarize({'daquar': [row, row._replace(name='lost')]}, tmp_path, 2)
    assert 'daquar, lost: failed' in capsys.readouterr().out
