"""Stop a run on a signal, because its time is up or its machine is required, so that it can be resumed later."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable, Sequence
from functools import cache
from types import FrameType
from typing import Any

import torch
from mmengine.dist import all_reduce
from mmengine.hooks import EMAHook, Hook
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import Runner

from mmattn.engine.command_line import leave_process_group
from mmattn.registry import HOOKS
from mmattn.utils.checks import check_positive

from .checkpoint import CheckpointHook

SAME_SIGNAL = 5.0  # seconds in which a launcher may forward a signal that the process has already received


@HOOKS.register_module()
class PreemptionHook(Hook):
    """On SIGTERM or SIGUSR1, save a checkpoint and exit with code 75, ``os.EX_TEMPFAIL``. ``--resume`` continues.

    A scheduler sends such a signal when another job requires the machine, or some time before a time limit. The current
    iteration, of training or validation, is completed. Then all processes save and exit together, even if only one of
    them received the signal. An interrupted validation is repeated from its start after resumption. Before the first
    iteration there is nothing to save. A second signal, five seconds or more after the first, ends the process
    immediately, as without this hook. Since writes are atomic, checkpoints remain intact.

    If no iteration ends within ``timeout`` seconds of the signal, because it hangs or an evaluation takes longer, the
    process names its last checkpoint and exits with code 75, too. Of several processes, those that wait for it in a
    collective then fail.

    Before each iteration, the processes synchronise by the ``all_reduce`` of one integer, which takes less than a
    millisecond for two processes on CPUs. A single process does not communicate. If gradients are accumulated, the run
    stops after an optimizer step.

    ``tools/train.py`` handles the signals from before the data sets are built, other tools from the start of training.
    Both stop at the end of training. Schedulers signal all processes of a job. Processes that are forked meanwhile,
    such as workers of data loaders, ignore the signals. Processes started with ``mp_start_method='spawn'`` do not.

    Without ``mmattn.CheckpointHook``, or outside the main thread, the hook only logs a warning.

    Args:
        signals (sequence of str): names of the signals. Defaults to ('SIGTERM', 'SIGUSR1').
        timeout (float): seconds from a signal to the end of an iteration, above 0. Defaults to 60.0.

    Example:
        >>> hook = HOOKS.build(dict(type='mmattn.PreemptionHook', signals=['SIGUSR1']))
        >>> [received.name for received in hook.signals]
        ['SIGUSR1']
    """

    priority = 'HIGHEST'  # runs before the other hooks of an iteration

    def __init__(self, signals: Sequence[str] = ('SIGTERM', 'SIGUSR1'), timeout: float = 60.0) -> None:
        unknown = [name for name in signals if name not in signal.Signals.__members__]
        if unknown:
            raise ValueError(f"signals must be names such as 'SIGTERM'; got {', '.join(map(repr, unknown))}")
        check_positive('timeout', timeout)  # the timer starts at a signal, and its errors end nothing
        self.signals = [signal.Signals[name] for name in signals]
        self._installed = False
        self._earlier: dict[signal.Signals, Any] = {}
        self._received, self._since = 0, 0.0
        self._common_batches = 0
        self._exiting = False
        self._timer = threading.Timer(timeout, self._give_up)  # a thread: the main one may wait in a collective
        self._timer.daemon = True

    def before_loops(self, runner: Runner) -> None:
        """Install the signal handlers."""
        if self._installed:
            return
        self._installed = True
        if self._checkpoint_hook(runner) is None or threading.current_thread() is not threading.main_thread():
            runner.logger.warning(
                'PreemptionHook requires mmattn.CheckpointHook and the main thread; signals will end the run without '
                'saving it'
            )
            return
        self._runner = runner
        for number in self.signals:
            self._earlier[number] = signal.signal(number, self._note)
        keep_from_children(self.signals)

    before_train = before_loops

    def before_train_iter(self, runner: Runner, *args, **kwargs) -> None:
        """Save and exit if a signal was received and the last iteration, if any, ended with an optimizer step."""
        if self._agreed() and _has_updated(runner):
            self._exit(runner)

    def before_val(self, runner: Runner) -> None:
        """Determine the number of batches that every process has."""
        if self._earlier:
            batches = torch.tensor(len(runner.val_dataloader))
            all_reduce(batches, 'min')
            self._common_batches = int(batches)

    def before_val_iter(self, runner: Runner, batch_idx: int, *args, **kwargs) -> None:
        """Save and exit if a signal was received, within the batches that every process has."""
        if batch_idx < self._common_batches and self._agreed() and _has_updated(runner):
            for hook in runner.hooks:
                if isinstance(hook, EMAHook):  # restores the weights, which it has replaced by averages for validation
                    hook.after_val_epoch(runner)
            self._exit(runner)

    def after_run(self, runner: Runner) -> None:
        """Restore the earlier signal handlers, unless the process exits because of a signal."""
        if self._exiting:
            return
        self._timer.cancel()
        for number, handler in self._earlier.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        _kept_from_children.difference_update(self.signals)
        self._earlier.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self._received:
            self._received, self._since = number, time.monotonic()
            self._timer.start()
        elif time.monotonic() - self._since >= SAME_SIGNAL:
            signal.signal(number, self._earlier[signal.Signals(number)] or signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _agreed(self) -> bool:
        if not self._earlier:
            return False
        received = torch.tensor(self._received)
        all_reduce(received, 'max')
        if received > 0 and not self._received:  # by another process; the same signal may still arrive here
            self._received, self._since = int(received), time.monotonic()
        if received > 0:
            self._timer.cancel()
        return bool(received > 0)  # equal in all processes: a signal that arrives now is reported the next time

    def _exit(self, runner: Runner) -> None:
        hook = self._checkpoint_hook(runner)
        name = signal.Signals(self._received).name
        if runner.iter > 0 and hook is not None:
            hook.save_now(runner)
            runner.logger.warning(
                f'{name}: saved {hook.last_ckpt}, from which --resume continues; exit code {os.EX_TEMPFAIL}'
            )
        else:
            runner.logger.warning(f'{name} before the first iteration: nothing to save; exit code {os.EX_TEMPFAIL}')
        self._exiting = True
        runner.call_hook('after_run')
        leave_process_group()
        raise SystemExit(os.EX_TEMPFAIL)

    def _give_up(self) -> None:
        last = self._runner.message_hub.get_info('last_ckpt', 'none yet')
        text = f'{signal.Signals(self._received).name}: no iteration ended in PreemptionHook.timeout; exit code 75'
        os.write(2, f'{text}; last checkpoint: {last}\n'.encode())  # the thread that hangs may hold the log or stderr
        for worker in multiprocessing.active_children():  # one that hangs does not notice that its parent has ended
            worker.kill()
        os._exit(os.EX_TEMPFAIL)

    @staticmethod
    def _checkpoint_hook(runner: Runner) -> CheckpointHook | None:
        return next((hook for hook in runner.hooks if isinstance(hook, CheckpointHook)), None)


def _has_updated(runner: Runner) -> bool:
    wrapper = runner.optim_wrapper
    wrappers = wrapper.values() if isinstance(wrapper, OptimWrapperDict) else [wrapper]
    return all(part.should_update() for part in wrappers if isinstance(part, OptimWrapper))


_kept_from_children: set[int] = set()
_mask = threading.local()


def keep_from_children(signals: Iterable[int]) -> None:
    """Make the processes that are forked from now on ignore these signals, until the set is emptied."""
    _call_at_fork()
    _kept_from_children.update(signals)


@cache  # once: Python has no way to unregister what it calls at a fork, which does nothing while the set is empty
def _call_at_fork() -> None:
    # The signals are blocked before a fork, so that the new process blocks them from its start.
    os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_ignore_unless_from_parent)


def _block() -> None:
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, _kept_from_children)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _ignore_unless_from_parent() -> None:
    # When SIGTERM ends a worker of a data loader, torch also ends the parent. So only a SIGTERM from the parent counts.
    # torch installs its own handler in the worker, which blocked signals do not reach. A thread waits for them instead.
    if _kept_from_children:
        threading.Thread(target=_end_with_the_parent, args=[_kept_from_children.copy()], daemon=True).start()


def _end_with_the_parent(numbers: set[int]) -> None:
    while True:
        received = signal.sigwaitinfo(numbers)
        if received.si_signo == signal.SIGTERM and received.si_pid == os.getppid():
            os._exit(0)
