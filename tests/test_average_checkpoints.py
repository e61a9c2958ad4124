"""The mean of checkpoints, by tools/misc/average_checkpoints.py."""

import sys
from pathlib import Path

import pytest
import torch

from .forked_tools import run_command

TOOL = Path(__file__).parents[1] / 'tools/misc/average_checkpoints.py'


def average(*arguments):
    done = run_command([sys.executable, TOOL, *arguments])
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def work_dir(tmp_path):
    """Checkpoints of iterations 5, 10, 15 and 20, and their weights."""
    torch.manual_seed(0)
    states = {}
    for step in (5, 10, 15, 20):
        states[step] = dict(half=torch.randn(3, 4).half(), weight=torch.randn(2, 3), double=torch.randn(2).double())
        states[step]['count'] = torch.tensor(step)
        meta = dict(iter=step, dataset_meta=dict(symbols=['a']))
        torch.save(dict(meta=meta, state_dict=states[step], optimizer=dict(a=1)), tmp_path / f'iter_{step}.pth')
    torch.save(dict(state_dict={}), tmp_path / 'best_BLEU_iter_10.pth')
    return tmp_path, states


@pytest.mark.slow
def test_the_mean_of_the_last(work_dir):
    folder, states = work_dir
    code, out, said = average(folder, '--last', '3', '--out', folder / 'mean.pth')
    assert code == 0, said
    assert [f'iter_{step}.pth' in out for step in states] == [False, True, True, True]
    found = torch.load(folder / 'mean.pth', weights_only=False)
    assert set(found) == {'meta', 'state_dict'}
    assert found['meta'] == dict(iter=20, dataset_meta=dict(symbols=['a']))
    for name in ('half', 'weight', 'double'):
        parts = [states[step][name] for step in (10, 15, 20)]
        expected = (sum(part.double() for part in parts) / 3).to(parts[0].dtype)
        torch.testing.assert_close(found['state_dict'][name], expected, rtol=0, atol=0)
    assert found['state_dict']['count'] == 20


def test_named_files(work_dir):
    """Also one of an earlier version, whose data set recorded less."""
    folder, states = work_dir
    checkpoint = torch.load(folder / 'iter_20.pth', weights_only=False)
    checkpoint['meta']['dataset_meta']['max_regions'] = 36
    torch.save(checkpoint, folder / 'iter_20.pth')
    code, _, said = average(folder / 'iter_5.pth', folder / 'iter_20.pth', '--out', folder / 'mean.pth')
    assert code == 0, said
    found = torch.load(folder / 'mean.pth', weights_only=False)['state_dict']['weight']
    torch.testing.assert_close(found, (states[5]['weight'] + states[20]['weight']) / 2)


@pytest.mark.parametrize(
    ('arguments', 'names'),
    [
        ('{} --last 0', '--last'),
        ('{} --last 9', '9'),
        ('{}/absent.pth', 'absent.pth'),
        ('{}/iter_5.pth {}/text.pth', 'text.pth'),
        ('{}/iter_5.pth --last 1', '--last'),
        ('{}/iter_5.pth {}/other.pth', '{}/other.pth and {}/iter_5.pth'),
        ('{}/iter_5.pth {}/best_BLEU_iter_10.pth', 'best_BLEU_iter_10.pth and {}/iter_5.pth'),
        ('{}/iter_5.pth {}/symbols.pth', 'dataset_meta.symbols'),
        ('{}/mixed --last 2', 'iter_*.pth and epoch_*.pth'),
    ],
)
def test_errors(work_dir, arguments, names):
    folder, states = work_dir
    torch.save(dict(state_dict=dict(weight=torch.zeros(5))), folder / 'other.pth')
    torch.save(dict(meta=dict(dataset_meta=dict(symbols=['b'])), state_dict=states[5]), folder / 'symbols.pth')
    (folder / 'text.pth').write_text('not yet')
    (folder / 'mixed').mkdir()
    for name in ('iter_5.pth', 'epoch_5.pth'):
        (folder / 'mixed' / name).write_bytes((folder / 'iter_5.pth').read_bytes())
    before = {path: path.read_bytes() for path in folder.rglob('*.pth')}
    words = [word.replace('{}', str(folder)) for word in arguments.split()]
    code, _, said = average(*words, '--out', folder / 'mean.pth')
    assert (code, 'Traceback' in said) == (1, False)
    assert names.replace('{}', str(folder)) in said
    assert {path: path.read_bytes() for path in folder.rglob('*.pth')} == before
