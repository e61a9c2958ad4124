"""What a run does about a signal: whose handler it is, when it saves, what it leaves alone, and who waits for it."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from mmengine.hooks import EMAHook
from mmengine.optim import OptimWrapper, OptimWrapperDict

from mmattn.engine import CheckpointHook, PreemptionHook
from mmattn.engine.hooks import preemption

from ..trainer import ROOT


@pytest.fixture
def listen(monkeypatch):
    """``listen(*hooks)``: the Runner of these hooks, which have begun to listen to signals; ``warned`` is its log."""
    monkeypatch.setattr(preemption, '_kept_from_children', set())
    before = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGUSR1)]

    def listen(*hooks):
        runner = SimpleNamespace(hooks=hooks, warned=[], iter=0)
        runner.logger = SimpleNamespace(warning=runner.warned.append)
        hooks[0].before_loops(runner)
        return runner

    yield listen
    for number, handler in before:
        signal.signal(number, handler)


def test_earlier_handlers_come_back(listen):
    def earlier(number, frame):
        pass

    signal.signal(signal.SIGUSR1, earlier)
    hook = PreemptionHook(signals=['SIGUSR1'])
    runner = listen(hook, CheckpointHook())
    assert signal.getsignal(signal.SIGUSR1) == hook._note
    assert runner.warned == []
    hook.before_train(runner)
    hook.after_run(None)
    assert signal.getsignal(signal.SIGUSR1) is earlier
    assert preemption._kept_from_children == set()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    hook.after_run(None)  # of the test that follows a training
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN


@pytest.mark.parametrize(('seconds', 'passed_on'), [(4.9, []), (5.0, [signal.SIGUSR1])])
def test_a_second_signal_is_left_to_the_earlier_handler(listen, monkeypatch, seconds, passed_on):
    """Unless it comes within five seconds: then it is the first one, passed on by a launcher."""
    seen, now = [], 100.0
    monkeypatch.setattr(preemption, 'time', SimpleNamespace(monotonic=lambda: now))
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    hook = PreemptionHook(signals=['SIGUSR1'])
    listen(hook, CheckpointHook())
    os.kill(os.getpid(), signal.SIGUSR1)
    assert seen == []
    now += seconds
    os.kill(os.getpid(), signal.SIGUSR1)
    assert seen == passed_on
    assert hook._agreed()


def test_without_our_checkpoints_signals_are_left_alone(listen):
    hook, before = PreemptionHook(), signal.getsignal(signal.SIGTERM)
    runner = listen(hook)
    hook.before_train(runner)
    (line,) = runner.warned
    assert 'mmattn.CheckpointHook' in line
    assert signal.getsignal(signal.SIGTERM) == before
    assert not hook._agreed()


def test_a_process_with_more_batches_to_validate_asks_no_others_about_them(monkeypatch):
    asked = []
    monkeypatch.setattr(preemption, 'all_reduce', lambda tensor, op: asked.append(op))
    hook = PreemptionHook()
    hook.before_val_iter(None, 0)
    hook._earlier = {signal.SIGTERM: None}
    hook.before_val(SimpleNamespace(val_dataloader=range(3)))
    for batch_idx in range(5):
        hook.before_val_iter(None, batch_idx)
    assert asked == ['min', 'max', 'max', 'max']


def test_a_signal_that_another_process_got_first_does_not_end_this_one(listen, monkeypatch):
    monkeypatch.setattr(preemption, 'all_reduce', lambda tensor, op: tensor.fill_(signal.SIGTERM))
    hook = PreemptionHook(signals=['SIGUSR1'])
    runner = listen(hook, CheckpointHook())
    assert hook._agreed()
    os.kill(os.getpid(), signal.SIGUSR1)
    runner.call_hook = lambda name: getattr(hook, name)(None)
    with pytest.raises(SystemExit):
        hook._exit(runner)
    os.kill(os.getpid(), signal.SIGUSR1)  # the default action would end the process


def test_a_signal_amid_the_agreement_is_told_the_next_time(listen, monkeypatch):
    hook = PreemptionHook(signals=['SIGUSR1'])
    listen(hook, CheckpointHook())
    monkeypatch.setattr(preemption, 'all_reduce', lambda *_: os.kill(os.getpid(), signal.SIGUSR1))
    assert not hook._agreed()
    monkeypatch.setattr(preemption, 'all_reduce', lambda *_: None)
    assert hook._agreed()


class Saves(CheckpointHook):
    """Notes what it is told to save."""

    def __init__(self, done):
        super().__init__()
        self.done = done
        self.last_ckpt = 'here.pth'

    def save_now(self, runner):
        self.done.append('save')


class Averages(EMAHook):
    def __init__(self, done):
        self.done = done

    def after_val_epoch(self, runner, metrics=None):
        self.done.append('restore weights')


@pytest.fixture
def stopping(listen):
    """A hook of a run after three iterations, which has received a signal; the runner, and what is done."""
    done = []
    hook = PreemptionHook(signals=['SIGUSR1'])
    runner = listen(hook, Saves(done), Averages(done))
    runner.iter, runner.val_dataloader = 3, range(2)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    runner.optim_wrapper = OptimWrapper(optimizer, accumulative_counts=2)
    runner.call_hook = lambda name: done.append(name)
    hook.before_val(runner)
    os.kill(os.getpid(), signal.SIGUSR1)
    return hook, runner, done


@pytest.mark.parametrize('validating', [False, True])
def test_a_run_that_is_told_to_stop_saves_and_exits(stopping, validating):
    """After an interrupted validation, with the weights of the training."""
    hook, runner, done = stopping
    if validating:
        hook.before_val_iter(runner, 2)  # another process may have two batches
        assert done == []
    with pytest.raises(SystemExit) as caught:
        hook.before_val_iter(runner, 1) if validating else hook.before_train_iter(runner, 3)
    assert caught.value.code == os.EX_TEMPFAIL
    restored = ['restore weights'] if validating else []
    assert done == [*restored, 'save', 'after_run']
    (line,) = runner.warned
    assert all(word in line for word in ('SIGUSR1', 'here.pth', str(os.EX_TEMPFAIL)))


@pytest.mark.parametrize('several', [False, True])
def test_a_run_stops_after_a_step_of_each_optimizer(monkeypatch, several):
    """Iterations before which a run would stop, in training and in validation, that is told to stop before each."""
    weight = torch.zeros(1, requires_grad=True)
    wrappers = [OptimWrapper(torch.optim.SGD([weight], 0.1), accumulative_counts=n) for n in (3, 2)[: 1 + several]]
    hook, stopped = PreemptionHook(), {'train': [], 'val': []}
    hook._earlier, hook._received, hook._common_batches = {signal.SIGTERM: signal.SIG_DFL}, signal.SIGTERM, 9
    wrapper = OptimWrapperDict(a=wrappers[0], b=wrappers[1]) if several else wrappers[0]
    runner = SimpleNamespace(optim_wrapper=wrapper, hooks=())
    for part in wrappers:
        part.initialize_count_status(torch.nn.Identity(), 0, 7)
    for runner.iter in range(7):
        for stage, call in (('train', hook.before_train_iter), ('val', hook.before_val_iter)):
            monkeypatch.setattr(hook, '_exit', lambda runner, stage=stage: stopped[stage].append(runner.iter))
            call(runner, 0)
        for part in wrappers:
            part.update_params(weight.sum())
    assert stopped['train'] == stopped['val'] == ([0, 6] if several else [0, 3, 6])


def test_before_the_first_iteration_there_is_nothing_to_save(stopping):
    hook, runner, done = stopping
    runner.iter = 0
    with pytest.raises(SystemExit) as caught:
        hook.before_train_iter(runner, 0)
    assert (caught.value.code, done) == (os.EX_TEMPFAIL, ['after_run'])
    (line,) = runner.warned
    assert 'SIGUSR1' in line
    assert 'here.pth' not in line


def test_signals_are_known_by_name():
    assert PreemptionHook().signals == [signal.SIGTERM, signal.SIGUSR1]
    with pytest.raises(ValueError, match=r"signals .*'SIGNONE', 'sigterm'$"):
        PreemptionHook(signals=['SIGNONE', 'SIGTERM', 'sigterm'])


@pytest.mark.parametrize('timeout', [0, -1.0, '60', None, float('nan')])
def test_a_timeout_that_is_none_is_refused_before_a_signal(timeout):
    with pytest.raises((TypeError, ValueError), match='timeout'):
        PreemptionHook(timeout=timeout)


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


@pytest.mark.e2e
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


@pytest.mark.e2e
def test_a_worker_is_ended_as_soon_as_it_is_forked(run_python):
    """It does not swallow the signal: pools of mmdet's metrics end so, and wait for their workers."""
    assert 'ended' in run_python(ENDED_AT_ONCE)
