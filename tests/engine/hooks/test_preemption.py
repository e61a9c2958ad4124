"""A run that is told to stop saves, exits with code 75, and ends when resumed as if nothing had happened."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from .test_resume import ROOT, Trainer, assert_same_end, load

pytestmark = pytest.mark.e2e

STOPPED = os.EX_TEMPFAIL


@pytest.fixture(scope='module')
def train(tiny_data, tmp_path_factory):
    trainer = Trainer(tmp_path_factory.mktemp('trainer'), tiny_data)
    yield trainer
    trainer.close()


@pytest.fixture(scope='module')
def whole(train, tmp_path_factory):
    """``whole(*options, **settings)``: the work dir of a run that nothing interrupted. Each is trained once."""
    folders = {}

    def run(*options, **settings):
        key = str((options, settings))
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp('whole')
            assert train(folders[key], *options, **settings) == [0] * settings.get('processes', 1), train.log
        return folders[key]

    return run


def checkpoints(folder):
    return {path.name for path in folder.glob('*_[0-9]*.pth') if not path.name.startswith('best')}


WAITING = 'optim_wrapper.accumulative_counts=2'
KEPT = 'default_hooks.checkpoint.interval=2 default_hooks.checkpoint.max_keep_ckpts=2'
EPOCHS = dict(config='epochs.py')


@pytest.mark.parametrize(
    ('options', 'settings', 'kill', 'signals', 'left'),
    [
        # The workers, which get the signals, too, do not take the run with them.
        ('', dict(workers=3), 'step 3', 'SIGTERM SIGTERM', 'iter_3'),
        # The second epoch goes on behind its first batch, then comes the third.
        ('log_processor.by_epoch=True', dict(EPOCHS, workers=3), 'step 3', 'SIGTERM', 'epoch_1 epoch_1_iter_3'),
        # One of two processes gets the signal.
        ('', dict(processes=2, workers=1, signalled='1'), 'step 3', 'SIGUSR1', 'iter_3'),
        # Accumulated gradients are waited for, also in a validation, which is then completed.
        (WAITING, {}, 'step 1', 'SIGTERM', 'iter_2'),
        (f'{WAITING} train_cfg.val_interval=1', {}, 'validation 3', 'SIGTERM', 'iter_4'),
        # An interruption leaves the same checkpoints.
        (KEPT, {}, 'step 5', 'SIGTERM', 'iter_2 iter_4 iter_5'),
        # mmengine's Runner of strategies.
        ('runner_type=FlexibleRunner strategy.type=SingleDeviceStrategy', {}, 'validation 4', 'SIGUSR1', 'iter_4'),
    ],
)
def test_stopped_and_resumed(train, whole, tmp_path, options, settings, kill, signals, left):
    options, processes = options.split(), settings.get('processes', 1)
    again = {key: value for key, value in settings.items() if key != 'signalled'}
    whole, stopped = whole(*options, **again), tmp_path / 'stopped'
    assert train(stopped, *options, kill=kill, signals=signals, **settings) == [STOPPED] * processes, train.log
    assert f'{signals.split()[0]}: saved {stopped}/' in train.log
    assert 'Traceback' not in train.log
    assert checkpoints(stopped) == {f'{name}.pth' for name in left.split()}
    assert train(stopped, *options, resume=True, **again) == [0] * processes, train.log
    assert 'Iter(train) [1/6]' not in train.log
    assert checkpoints(whole) <= checkpoints(stopped)
    if options == KEPT.split():
        assert checkpoints(whole) == checkpoints(stopped) == {'iter_4.pth', 'iter_6.pth'}
    if 'config' in settings:
        assert sorted(int(position) for position, _ in train.samples) == list(range(6, 12))
    assert_same_end(stopped, whole, 'epoch_3.pth' if 'config' in settings else 'iter_6.pth')


def test_stopped_in_validation(train, whole, tmp_path):
    """Which is done again first, and whose score decides about the best checkpoint as it would have.

    EMAHook exchanges the weights for their averages while it lasts.
    """
    ema = 'default_hooks.ema.type=EMAHook'
    whole, stopped = whole(ema), tmp_path / 'stopped'
    assert train(stopped, ema, kill='validation 4', signals='SIGTERM') == [STOPPED], train.log
    assert 'Iter(val) [1/2]' not in train.log.partition('[4/6]')[2]
    assert train(stopped, ema, resume=True) == [0], train.log
    before, _, after = train.log.partition('Iter(train) [5/6]')
    assert before.count('[2/2]    aAcc') == after.count('[2/2]    aAcc') == 1
    assert_same_end(stopped, whole)
    ends = [load(folder / 'iter_6.pth') for folder in (stopped, whole)]
    scores = [end['message_hub']['runtime_info']['best_score'] for end in ends]
    assert scores[0] == scores[1]
    for folder in (stopped, whole):
        (best,) = folder.glob('best_*.pth')
        assert 'to_resume' not in load(best)['message_hub']['runtime_info']
    averages = {
        name.removeprefix('module.'): x for name, x in ends[0]['ema_state_dict'].items() if name[:7] == 'module.'
    }
    assert any((x != ends[0]['state_dict'][name]).any() for name, x in averages.items())


@pytest.mark.parametrize(('config', 'number'), [('config.py', 'SIGUSR1'), ('epochs.py', 'SIGTERM')])
def test_stopped_in_the_last_validation(train, whole, tmp_path, config, number):
    """Nothing is left to train, not even an epoch before which to validate, but the score is still to come."""
    assert train(tmp_path, config=config, kill='validation 6', signals=number) == [STOPPED], train.log
    assert train(tmp_path, config=config, resume=True) == [0], train.log
    assert not re.search(r'(Iter|Epoch)\(train\)|Nothing is trained', train.log)
    assert train.log.count('[2/2]    aAcc') == 1
    assert len([*tmp_path.glob('best_*.pth')]) == 1
    if config == 'config.py':
        assert_same_end(tmp_path, whole(workers=3))


SCRIPT = """
import os, pathlib, signal, sys, time
def stop(*_):
    time.sleep(0.5 if sys.argv[1] == "300" else 5)
    pathlib.Path("saved").touch()
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
assert os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == sys.argv[1]
pathlib.Path("ready").touch()
for _ in range(600):
    time.sleep(0.1)  # a signal that comes just before a sleep starts is handled after the sleep
"""


@pytest.mark.parametrize(
    ('number', 'limit', 'saved'),
    [(signal.SIGTERM, None, True), (signal.SIGUSR1, None, True), (signal.SIGUSR1, '1', False)],
)
def test_the_launcher_waits_until_its_processes_have_saved(tmp_path, number, limit, saved):
    """Five minutes by default, which the process finds in its environment."""
    (tmp_path / 'script.py').write_text(SCRIPT)
    command = [sys.executable, '-m', 'mmattn.utils.launch', '--nproc-per-node', '1', '--standalone', 'script.py']
    env = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    env |= {} if limit is None else {'TORCH_ELASTIC_SHUTDOWN_TIMEOUT': limit}
    with subprocess.Popen([*command, limit or '300'], cwd=tmp_path, env=env, stderr=subprocess.DEVNULL) as launcher:
        while not (tmp_path / 'ready').exists():
            assert launcher.poll() is None
            time.sleep(0.1)
        launcher.send_signal(number)
        assert launcher.wait(50) == 128 + signal.SIGTERM
    assert (tmp_path / 'saved').exists() == saved


def test_stopped_before_training(train, tmp_path):
    """Nothing is saved."""
    assert train(tmp_path, kill='loops', signals='SIGTERM') == [STOPPED], train.log
    assert 'SIGTERM before the first iteration: nothing to save' in train.log
    assert 'Iter(train)' not in train.log
    assert checkpoints(tmp_path) == set()


def test_resume_before_the_first_checkpoint_starts_as_the_config_says(train, whole, tmp_path):
    """From its ``load_from``: a job that always says ``--resume`` must not lose it."""
    path = whole(workers=3) / 'iter_6.pth'
    assert train(tmp_path, f'load_from={path}', 'train_cfg.max_iters=1', resume=True) == [0], train.log
    assert f'Load checkpoint from {path}' in train.log
    assert 'Iter(train) [1/1]' in train.log


def test_the_original_mmengine(original_mmengine, tiny_data, tmp_path):
    """It starts the workers before training."""
    train = Trainer(tmp_path, tiny_data, original_mmengine)
    for config, saved, last in (
        ('config.py', 'iter_3.pth', 'iter_6.pth'),
        ('epochs.py', 'epoch_1_iter_3.pth', 'epoch_3.pth'),
    ):
        whole, stopped = tmp_path / f'whole_{last}', tmp_path / f'stopped_{last}'
        assert train(whole, config=config, workers=3) == [0], train.log
        assert 'mmengine: 0.10.7' in train.log.lower()
        assert train(stopped, config=config, workers=3, kill='step 3', signals='SIGTERM') == [STOPPED], train.log
        assert saved in checkpoints(stopped)
        assert train(stopped, config=config, workers=3, resume=True) == [0], train.log
        assert_same_end(stopped, whole, last)
    train.close()


SIGNALLED_TWICE = """
import os, signal
from types import SimpleNamespace
from mmattn.engine import CheckpointHook, PreemptionHook
from mmattn.engine.hooks import preemption
preemption.SAME_SIGNAL = {}
hook = PreemptionHook()
hook.before_loops(SimpleNamespace(hooks=[CheckpointHook()]))
for _ in range(2):
    os.kill(os.getpid(), signal.SIGTERM)
assert hook._agreed()
"""


@pytest.mark.parametrize(('seconds', 'code'), [(5.0, 0), (0.0, -signal.SIGTERM)])
def test_a_second_signal_ends_the_process(seconds, code):
    """Unless it is the first one again, passed on by a launcher."""
    assert subprocess.run([sys.executable, '-c', SIGNALLED_TWICE.format(seconds)]).returncode == code


ENDED_AT_ONCE = """
import faulthandler, multiprocessing, os, signal, time
os.register_at_fork(after_in_child=lambda: time.sleep(.3))  # comes before what mmattn does in a new process
from mmattn.engine.hooks import preemption
faulthandler.dump_traceback_later(30, exit=True)
signal.signal(signal.SIGTERM, lambda *_: None)
preemption.keep_from_children([signal.SIGTERM])
worker = multiprocessing.get_context('fork').Process(target=time.sleep, args=[60])
worker.start()
worker.terminate()
worker.join()
print('ended')
"""


def test_a_worker_is_ended_as_soon_as_it_is_forked(run_python):
    """It does not swallow the signal: pools of mmdet's metrics end so, and wait for their workers."""
    assert 'ended' in run_python(ENDED_AT_ONCE)
