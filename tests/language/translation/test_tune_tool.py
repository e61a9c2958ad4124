"""tools/misc/tune_translation.py: every score of its table, by hand, sentence by sentence."""

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.logging import HistoryBuffer
from torch.nn.utils.rnn import pad_sequence

from mmattn.engine import load_config, read_checkpoint
from mmattn.language.translation.bleu import tokenized_bleu
from mmattn.registry import MODELS

from ...forked_tools import run_command
from ..test_training import CONFIG, config_path, write_corpus

TOOL = Path(__file__).parents[3] / 'tools/misc/tune_translation.py'
NUMBERS, PENALTIES = (1, 3), (0.0, 3.0)


def write_config(folder):
    """Write the config of a tiny model and its corpus; return the folder of the corpus."""
    data = write_corpus(folder / 'corpus')
    (folder / 'config.py').write_text(CONFIG.format(configs=config_path(), data=data), encoding='utf-8')
    return data


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """Config, work dir and validation pairs of a model that starts to know them."""
    folder = tmp_path_factory.mktemp('tuned')
    data = write_config(folder)
    symbols = 'abcdefghij'
    lines = ['a b c d e f g', 'h i j a b c d e', 'g f e d c b a', 'b d f h j a c e g i', 'e e d d c c', 'j i h g f']
    for language, side in (('en', lines), ('de', [' '.join(reversed(line.split())) for line in lines])):
        for kind in ('', 'raw.'):
            (data / f'val.{kind}{language}').write_text(''.join(f'{line}\n' for line in side))
    torch.manual_seed(0)
    model = MODELS.build(Config.fromfile(folder / 'config.py').model)
    pairs = [
        tuple(torch.tensor([4 + symbols.index(x) for x in side.split()] + [2]) for side in (line, line[::-1]))
        for line in lines
    ]
    source, target = (pad_sequence(side, batch_first=True, padding_value=1) for side in zip(*pairs))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    meta = dict(dataset_meta=dict(source='en', target='de', symbols=[*symbols]))
    log = dict(loss=HistoryBuffer([1.0], [1]))  # as in the checkpoints of a training
    for step in range(1, 46):
        optimizer.zero_grad()
        model(dict(source=source, target=target), mode='loss')['loss'].backward()
        optimizer.step()
        if step in (35, 40, 45):
            torch.save(dict(meta=meta, state_dict=model.state_dict(), message_hub=log), folder / f'iter_{step}.pth')
    return folder, model.eval(), pairs, lines


def mean_of(folder, number):
    states = [
        torch.load(folder / f'iter_{step}.pth', weights_only=False)['state_dict'] for step in (35, 40, 45)[-number:]
    ]
    return {
        name: sum(state[name].double() for state in states).div(number).to(x.dtype) for name, x in states[0].items()
    }


@pytest.mark.slow
@torch.no_grad()
def test_scores_are_of_the_averages_with_each_penalty(trained, tmp_path):
    folder, model, pairs, lines = trained
    expected = {}
    for number in NUMBERS:
        model.load_state_dict(mean_of(folder, number))
        for penalty in PENALTIES:
            best = [model.translate(x[None], length_penalty=penalty)[0][0].tokens for x, _ in pairs]
            texts = [' '.join('abcdefghij'[n - 4] if n > 3 else '<unk>' for n in tokens) for tokens in best]
            expected[number, penalty] = tokenized_bleu(texts, [line[::-1] for line in lines]).score
    assert len(set(expected.values())) > 1
    out = tmp_path / 'tuned.pth'
    words = [TOOL, folder / 'config.py', folder, '--out', out, '--work-dir', tmp_path / 'work']
    done = run_command([sys.executable, *words, '--last', *NUMBERS, '--length-penalty', *PENALTIES])
    assert done.returncode == 0, done.stderr[-3000:]
    rows = re.findall(r'^\| (\d) averaged \| (\S+) \| (\S+) \|$', done.stdout, re.MULTILINE)
    found = {(int(n), a): float(x) for n, *values in rows for a, x in zip(PENALTIES, values)}
    assert found == pytest.approx(expected, abs=0.006)
    number, _ = max(expected, key=expected.get)
    written = torch.load(out)['state_dict']
    for name, x in mean_of(folder, number).items():
        torch.testing.assert_close(written[name], x, rtol=0, atol=0)


@pytest.mark.slow
def test_too_few_checkpoints(trained, tmp_path):
    words = [TOOL, trained[0] / 'config.py', trained[0], '--out', tmp_path / 'tuned.pth', '--work-dir', tmp_path]
    done = run_command([sys.executable, *words, '--last', '4'])
    assert done.returncode == 1
    assert 'has 3 checkpoints' in done.stderr
    assert not (tmp_path / 'tuned.pth').exists()


@pytest.fixture
def tune(tmp_path, monkeypatch):
    """The tool, in a folder with a config and a checkpoint of an untrained model."""
    write_config(tmp_path)
    model = MODELS.build(load_config(str(tmp_path / 'config.py')).model)
    meta = dict(dataset_meta=dict(source='en', target='de', symbols=[*'abcdefghij']))
    torch.save(dict(meta=meta, state_dict=model.state_dict()), tmp_path / 'iter_1.pth')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(TOOL.parent))
    return importlib.import_module('tune_translation')


@pytest.mark.parametrize(
    ('meta', 'names'),
    [
        (dict(symbols=[*'abcdefghji']), "'i'.*'j'.*the checkpoint my_run"),
        (dict(source='de', target='en'), "source is 'en', but 'de'"),
    ],
)
def test_checkpoints_of_another_training(tune, meta, names):
    checkpoint = read_checkpoint('iter_1.pth')
    cfg = load_config('config.py', dict(work_dir='work', load_from='my_run'))
    assert tune.scores(cfg, {1: checkpoint, 2: checkpoint}, [1.0]).keys() == {(1, 1.0), (2, 1.0)}
    checkpoint['meta']['dataset_meta'].update(meta)
    cfg = load_config('config.py', dict(work_dir='work', load_from='my_run'))
    with pytest.raises(ValueError, match=names):
        tune.scores(cfg, {1: checkpoint}, [1.0])


@pytest.mark.parametrize(
    'options', [[], ['--work-dir', 'my run', '--cfg-options', 'model.test_cfg.beam=2', 'log_level="INFO"']]
)
def test_the_printed_command_tests_what_was_tuned(tune, options, monkeypatch, capsys):
    monkeypatch.setattr(tune, 'scores', lambda cfg, averages, penalties: dict.fromkeys([(1, penalties[0])], 1.0))
    words = ['config.py', '.', '--out', 'best one.pth', '--last', '1', '--length-penalty', '0.12345678', *options]
    monkeypatch.setattr(sys, 'argv', ['tune_translation.py', *words])
    tune.main()
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    expected = [*options, 'model.test_cfg.length_penalty=0.12345678']
    expected[:0] = [] if options else ['--cfg-options']
    assert command == ['Test:', 'python', 'tools/test.py', 'config.py', 'best one.pth', *expected]
