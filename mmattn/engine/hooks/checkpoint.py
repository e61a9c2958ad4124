"""Checkpoints from which a killed run resumes as if it had not been interrupted."""

import logging
import os
import random
import re
import zipfile
from bisect import bisect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import mmengine.hooks
import numpy as np
import torch
from mmengine.dist import all_gather_object, is_main_process
from mmengine.fileio import BaseStorageBackend, LocalBackend, register_backend
from mmengine.hooks import EarlyStoppingHook
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner

from mmattn._compat import (
    checkpoint_path,
    forget_info,
    is_resumed,
    resumes_without_path,
    set_checkpoint_path,
    set_position,
)
from mmattn.engine.checkpoint_files import check_checkpoint, guard_checkpoints
from mmattn.engine.data_sampling import continue_data, find_sampler
from mmattn.registry import HOOKS
from mmattn.utils.faults import shorten
from mmattn.utils.files import atomic_write, hold, remove_temporary_files

NUMBER = r'\d+(_iter_\d+)?'  # in the name of a checkpoint


@HOOKS.register_module()
class CheckpointHook(mmengine.hooks.CheckpointHook):
    """mmengine's ``CheckpointHook`` with the same arguments. A run may be killed at any moment and resumed.

    * Writes are atomic, and an older checkpoint is removed only after a newer one is complete. There is always a
      complete checkpoint, and ``resume`` finds it even if ``last_checkpoint`` does not name it.
    * The checkpoint stores the sampler's seed and the random number generators of every process (Python, NumPy, torch,
      CUDA), as ``to_resume`` in the message hub, the only part that all strategies of mmengine save. These generators
      serve only the training steps: random numbers for data loading or validation do not change them. The first step
      after resumption therefore draws the same numbers as without an interruption.
    * A resumed run continues at the sampler's position, without loading the earlier data.
    * A validation belongs to the run. The checkpoint before it marks it as due, and the last checkpoint is saved again
      after it. A run that is killed during a validation repeats it first when it is resumed.
    * ``save_now`` saves between any two iterations, also within an epoch or a validation. Such a checkpoint does not
      count in ``max_keep_ckpts``. It is removed when the resumed run saves the next regular checkpoint.
    * The state of ``EarlyStoppingHook`` is saved and resumed.
    * A checkpoint without the states of optimizer or schedules, such as a best one, is not resumed.
    * A second run in the same work dir gets a BlockingIOError, because each would replace the other's checkpoints.

    With ``mmattn.InfiniteSampler`` (or, by epoch, ``mmattn.DefaultSampler``), and ``mmattn.SeedAugmentation`` as the
    first transform, a resumed run on a CPU ends with bitwise the same weights. This requires the same number of
    processes and the same batch size, and, if gradients are accumulated over several iterations, a checkpoint after an
    optimizer step. With three or more processes, DDP adds the gradients of its first iteration in another order.
    ``find_unused_parameters = True`` in the config keeps the order fixed.

    Args:
        ``*args``, ``**kwargs``: as in mmengine's ``CheckpointHook``. Writes to local disks are atomic unless
            ``backend_args`` or ``file_client_args`` select another way to write.

    Example:
        >>> hook = HOOKS.build(dict(type='mmattn.CheckpointHook', by_epoch=False, interval=4000, max_keep_ckpts=2))
        >>> hook.interval
        4000
    """

    backend_args: dict | None
    best_ckpt_path: str | None
    file_backend: Any
    filename_tmpl: str
    last_ckpt: str | None
    max_keep_ckpts: int

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        guard_checkpoints()  # here, because a FlexibleRunner loads its checkpoint before it calls a hook
        self.file_backend = _RemoveLater(LocalBackend())
        self._rng_state: dict[str, Any] = {}
        self._position: dict[str, int] = {}
        self._batches_done = 0  # in this epoch
        self._validation_due = False
        self._best_is_new = False
        self._extra = ''  # the checkpoint of save_now from which the run was resumed

    def before_loops(self, runner: Runner) -> None:
        """Choose the checkpoint to resume from. mmengine would use the last one even if it is incomplete."""
        if resumes_without_path(runner):
            path = latest_checkpoint(runner.work_dir, self.filename_tmpl)
            if path is not None and Path(path).is_dir():  # DeepSpeed reads it by itself
                check_checkpoint(path)
            set_checkpoint_path(runner, path)

    def before_run(self, runner: Runner) -> None:
        """Choose the checkpoint in tools that do not call ``before_loops``."""
        self.before_loops(runner)
        resumed = runner.message_hub.runtime_info.get('to_resume')
        # FlexibleRunner has already resumed at this point, one iteration too far. `resumed` comes first: without
        # training, runner.iter would build the training loop and its data set.
        if resumed and runner.iter == resumed['iter'] + 1:
            set_position(runner.train_loop, resumed['epoch'], resumed['iter'])

    def before_train(self, runner: Runner) -> None:
        """Lock the work dir, restore generators and position, select atomic writes, and repeat a lost validation."""
        if self.backend_args is None and self.file_client_args is None and '://' not in str(self.out_dir):
            self.backend_args = dict(backend='mmattn.aside')
        if is_main_process():
            self._lock = hold(runner.work_dir)
            self._warn_of_other_run(runner)
        super().before_train(runner)
        if is_main_process() and '://' not in str(self.out_dir):
            remove_temporary_files(self.out_dir)  # left by a killed run
        self.file_backend = _RemoveLater(self.file_backend)
        self._rng_state = get_rng_state()
        if runner.iter > 0:
            resumed = runner.message_hub.runtime_info.get('to_resume', {})
            # another iteration: a run with the stock hook has copied `to_resume` from an older checkpoint
            self._continue(runner, resumed if resumed.get('iter') == runner.iter else {})
            if runner.iter >= runner.max_iters and not self._validation_due:
                runner.logger.warning(
                    f'Nothing is trained: the checkpoint is of iteration {runner.iter}, and training ends at '
                    f'{runner.max_iters}'
                )
        if self is [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)][-1]:  # all have continued
            _forget(runner)
            if self._validation_due:
                runner.logger.info('The run was interrupted during validation: the validation is repeated first')
                runner.val_loop.run()

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Refuse to resume from a checkpoint without the states of optimizer or schedules, such as a best one."""
        if is_resumed(runner) and isinstance(runner.optim_wrapper, OptimWrapper):
            needed = ['optimizer', *(['param_schedulers'] if runner.param_schedulers else [])]
            if missing := [key for key in needed if not checkpoint.get(key)]:
                path = checkpoint_path(runner)
                raise ValueError(
                    f'{path} cannot be resumed: it has no {", ".join(missing)}. Resume from the last checkpoint, with '
                    f'--resume, or start a new run from its weights, with --cfg-options load_from={path}'
                )

    def before_train_iter(self, runner: Runner, *args, **kwargs) -> None:
        """Set the generators of the training steps."""
        set_rng_state(self._rng_state)

    def after_train_iter(self, runner: Runner, batch_idx: int, *args, **kwargs) -> None:
        """Store the generators for the next step, and save a checkpoint if one is due."""
        self._rng_state = get_rng_state()
        self._batches_done = batch_idx + 1
        if isinstance(runner.train_loop, IterBasedTrainLoop):
            self._validation_due = _validates_after(runner, runner.iter + 1, runner.max_iters)
        super().after_train_iter(runner, batch_idx, *args, **kwargs)

    def after_train_epoch(self, runner: Runner) -> None:
        """Save a checkpoint if one is due."""
        self._batches_done = 0
        if isinstance(runner.train_loop, EpochBasedTrainLoop):
            self._validation_due = _validates_after(runner, runner.epoch + 1, runner.max_epochs)
        super().after_train_epoch(runner)

    def save_now(self, runner: Runner) -> None:
        """Save a checkpoint between two iterations, of training or validation, regardless of ``interval``."""
        count = self._count(runner)
        within = self.by_epoch and self._batches_done > 0
        regular = not within and self.interval > 0 and count % self.interval == 0
        kept, template = self.max_keep_ckpts, self.filename_tmpl
        if not regular:
            self.max_keep_ckpts = -1  # no older checkpoint is removed for it
        if within:  # 'epoch_1_iter_30.pth' is saved in the second epoch, after iteration 30
            self.filename_tmpl = template.replace('}', f'}}_iter_{runner.iter}')
        try:
            meta = dict(epoch=runner.epoch, iter=runner.iter)
            self._save_checkpoint_with_step(runner, count, meta, extra=not regular and kept > 0)
        finally:
            self.max_keep_ckpts, self.filename_tmpl = kept, template

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Correct the position of FlexibleRunner, which also counts an unfinished iteration. Name what it outdates."""
        checkpoint['meta'].update(self._position)
        if to_resume := checkpoint['message_hub']['runtime_info'].get('to_resume'):
            to_resume['outdated'] = [Path(path).name for path in self.file_backend.due()]

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict, *, extra: bool = False) -> None:
        name = self.filename_tmpl.format(step)
        if self._extra and self._extra != name:
            self._remove(self._extra)
        self._extra = ''
        self._position = dict(epoch=meta['epoch'], iter=meta['iter'])
        self._note_state(runner, extra=name if extra else '')
        try:
            super()._save_checkpoint_with_step(runner, step, meta)
        except OSError as error:
            if error.filename is None and error.errno is not None:  # `last_checkpoint` of mmengine, on a full disk
                raise type(error)(error.errno, error.strerror, str(Path(runner.work_dir, 'last_checkpoint'))) from error
            raise
        _forget(runner)
        self._position = {}
        self.file_backend.flush(self._bests())

    def _count(self, runner: Runner) -> int:
        return runner.epoch if self.by_epoch else runner.iter

    def _remove(self, name: str) -> None:
        path = self.file_backend.join_path(self.out_dir, Path(name).name)  # a resumed checkpoint may name any file
        if is_main_process() and self.file_backend.isfile(path):
            self.file_backend.remove(path)
        elif is_main_process() and self.file_backend.isdir(path):
            self.file_backend.rmtree(path)

    def _note_state(self, runner: Runner, *, extra: str = '') -> None:
        runner.message_hub.update_info(
            'to_resume',
            dict(
                self._position,
                batches_done=self._batches_done,
                validating=self._validation_due,
                extra=extra,
                sampler_seed=getattr(find_sampler(runner.train_dataloader), 'seed', None),
                rng_state=all_gather_object(self._rng_state),
                stopping=[(hook.best_score, hook.wait_count) for hook in _stopping_hooks(runner)],
                stopped=getattr(runner.train_loop, 'stop_training', False),
            ),
        )

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        bests, last = self._bests(), self.last_ckpt
        self.last_ckpt = None  # mmengine would save it again before other hooks and schedules have counted the scores
        super()._save_best_checkpoint(runner, metrics)
        self.last_ckpt, self._best_is_new = last, self._bests() != bests

    def before_val(self, runner: Runner) -> None:
        """Note that the validation is not finished."""
        self._validation_due = True

    def after_val(self, runner: Runner) -> None:
        """Save the last checkpoint again, with the end of the validation and what hooks and schedules made of it.

        The previous best checkpoints are removed only now: a run that is killed earlier still names them.
        """
        self._validation_due = False
        if self.last_ckpt is not None:
            count = self._count(runner)
            name = self.filename_tmpl.format(count)
            if self._best_is_new or (Path(self.last_ckpt).name == name != self._extra):
                self._save_checkpoint_with_step(runner, count, dict(epoch=runner.epoch, iter=runner.iter))
        self._best_is_new = False
        self.file_backend.flush(self._bests())

    def _bests(self) -> list[str]:
        paths = [getattr(self, 'best_ckpt_path', None), *getattr(self, 'best_ckpt_path_dict', {}).values()]
        return [path for path in paths if path]

    def _warn_of_other_run(self, runner: Runner) -> None:
        pattern = f'(best_.*)?{_name_pattern(self.filename_tmpl)}'
        earlier = [path.name for path in Path(runner.work_dir).iterdir() if re.fullmatch(pattern, path.name)]
        if earlier and runner.iter == 0:
            names = ', '.join(shorten(sorted(earlier), 3))
            is_resumable = not all(name.startswith('best_') for name in earlier)
            runner.logger.warning(
                f'{runner.work_dir} holds checkpoints of an earlier run, {names}; new ones replace those of the same '
                'names. To keep them, choose another --work-dir; to '
                + ('continue the run, use --resume' if is_resumable else 'begin with their weights, set load_from')
            )

    def _continue(self, runner: Runner, to_resume: dict[str, Any]) -> None:
        states = to_resume.get('rng_state', [])
        if len(states) == runner.world_size:
            self._rng_state = states[runner.rank]
            self._batches_done = to_resume['batches_done']
        else:
            runner.logger.warning(
                f"The checkpoint holds the 'rng_state' of {len(states)} processes, but this run has "
                f'{runner.world_size}: its result will differ from that of an uninterrupted run'
            )
        if not continue_data(runner.train_loop, to_resume.get('sampler_seed'), self._batches_done):
            runner.logger.warning(
                f'train_dataloader.sampler is {type(find_sampler(runner.train_dataloader)).__name__}, batch_sampler '
                f'{type(runner.train_dataloader.batch_sampler).__name__}; the result equals that of an uninterrupted '
                'run only with mmattn.InfiniteSampler without a batch sampler, or with mmattn.DefaultSampler'
            )
        self._validation_due = to_resume.get('validating', False) and runner.val_loop is not None
        self._extra = to_resume.get('extra', '')
        name = Path(runner.message_hub.get_info('last_ckpt', '')).name  # without one, a new best is saved alone
        if self._validation_due:  # after which the checkpoint is saved again
            name = self.filename_tmpl.format(self._count(runner))
        elif name == self._extra:  # the run without interruption has none of this name
            name = ''
        if name:
            self.last_ckpt = self.file_backend.join_path(self.out_dir, name)
        for name in to_resume.get('outdated', ()):  # a killed run may have left them
            self._remove(name)
        self.file_backend.flush(self._bests())
        for hook, (best, count) in zip(_stopping_hooks(runner), to_resume.get('stopping', ())):
            hook.best_score, hook.wait_count = best, count
            if to_resume['stopped'] and hook.wait_count >= hook.patience and runner.iter < runner.max_iters:
                runner.train_loop.stop_training = True
                runner.logger.warning(f'Nothing is trained: the run was stopped early at iteration {runner.iter}')


def _stopping_hooks(runner: Runner) -> list[EarlyStoppingHook]:
    return [hook for hook in runner.hooks if isinstance(hook, EarlyStoppingHook)]


def _name_pattern(filename_tmpl: str) -> str:
    # a template may have a format, such as 'iter_{:06d}.pth'
    return re.sub(r'\\\{[^}]*\\\}', lambda _: NUMBER, re.escape(filename_tmpl))


def _validates_after(runner: Runner, done: int, end: int) -> bool:
    """Tell whether mmengine's training loops validate after so many iterations or epochs."""
    loop: Any = runner.train_loop
    interval = loop.dynamic_intervals[bisect(loop.dynamic_milestones, done + 1) - 1]
    return runner.val_loop is not None and done >= loop.val_begin and (done % interval == 0 or done == end)


def _forget(runner: Runner) -> None:
    forget_info(runner.message_hub, 'to_resume')


def latest_checkpoint(work_dir: str | Path, filename_tmpl: str = 'iter_{}.pth') -> str | None:
    """Find the checkpoint to resume from.

    This is the checkpoint that ``last_checkpoint`` names, first in ``work_dir``, which may be a copy. If it is missing
    or truncated, the complete checkpoint of the latest iteration in ``work_dir`` or in its folder is used. The time of
    a file says nothing: ``cp -r`` sets that of copies.

    Args:
        work_dir (str or Path): the folder with the file ``last_checkpoint``.
        filename_tmpl (str): name of the checkpoints, with ``{}`` for the number. Defaults to 'iter_{}.pth'.

    Returns:
        str or None: the path. None if there is no checkpoint.

    Raises:
        FileNotFoundError: there are or were checkpoints, but none is complete.
    """
    pointer = Path(work_dir, 'last_checkpoint')
    named = pointer.read_text(encoding='utf-8').strip() if pointer.is_file() else ''
    if '://' in named:
        return named
    for path in (Path(work_dir, Path(named).name), Path(named)) if named else ():
        if path.exists() and _is_complete(path):
            return str(path)
    folders = dict.fromkeys((Path(work_dir), Path(named).parent if named else Path(work_dir)))
    paths = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
    pattern = _name_pattern(filename_tmpl)
    checkpoints = [path for path in paths if re.fullmatch(pattern, path.name)]
    complete = [path for path in checkpoints if _is_complete(path)]
    reason = f'{pointer} names {f"{named}, which is missing or truncated" if named else "no checkpoint"}'
    if complete:
        latest = max(complete, key=lambda path: [int(number) for number in re.findall(r'\d+', path.name)])
        print_log(f'{reason}: resuming from {latest}, the latest complete checkpoint', 'current', logging.WARNING)
        return str(latest)
    if checkpoints or named:
        raise FileNotFoundError(f'{reason}, and there is no complete checkpoint to resume from')
    return None


def awaits_validation(checkpoint: dict[str, Any]) -> bool:
    """Tell whether a run with :class:`CheckpointHook` has not finished the validation after its checkpoint."""
    info = checkpoint.get('message_hub', {}).get('runtime_info', {})
    return info.get('to_resume', {}).get('validating', False)


def has_checkpoint(work_dir: str | Path) -> bool:
    """Check whether a run has saved a checkpoint in ``work_dir``, complete or not."""
    names = 'last_checkpoint', 'iter_*.pth', 'epoch_*.pth'
    return any(path for name in names for path in Path(work_dir).glob(name))


def _is_complete(path: Path) -> bool:
    # DeepSpeed writes folders. A zip file ends with its directory.
    return path.is_dir() or zipfile.is_zipfile(path)


def get_rng_state() -> dict[str, Any]:
    """Get the states of this process's random number generators: Python, NumPy, torch, and the CUDA device."""
    return dict(
        python=random.getstate(),
        numpy=np.random.get_state(),
        torch=torch.get_rng_state(),
        cuda=torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
    )


def set_rng_state(state: dict[str, Any]) -> None:
    """Set the generators to the states from ``get_rng_state``, of this or another process."""
    random.setstate(state['python'])
    np.random.set_state(state['numpy'])
    torch.set_rng_state(state['torch'].cpu())  # Runner.resume loads a checkpoint to the GPU
    if state['cuda'] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state['cuda'].cpu())


@register_backend('mmattn.aside')
class AsideBackend(LocalBackend):
    """The local disk with atomic writes: a file is written under a temporary name, synchronised and renamed."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write ``obj`` to ``filepath``. If this fails, no partial file remains, and the OSError names ``filepath``."""
        with atomic_write(filepath) as temporary:
            super().put(obj, temporary)
            with open(temporary, 'r+b') as file:
                os.fsync(file)


class _RemoveLater:  # mmengine removes the old checkpoint before it writes the new one
    def __init__(self, backend: BaseStorageBackend) -> None:
        self._backend = backend
        self._due: list[tuple[Callable[[str], None], str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def remove(self, path: str) -> None:
        self._due.append((self._backend.remove, path))

    def rmtree(self, path: str) -> None:
        self._due.append((self._backend.rmtree, path))

    def due(self) -> list[str]:
        return [path for _, path in self._due]

    def flush(self, written: Collection[str]) -> None:
        for remove, path in self._due:
            if path not in written:
                remove(path)
        self._due.clear()
