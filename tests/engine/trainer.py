"""Trainings by the real tools in processes of their own, which are killed or fail where they are told to."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import mmseg
import numpy as np
import torch

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / 'tools/train.py'
MMSEGS_TRAIN = Path(mmseg.__file__).parent / '.mim/tools/train.py'

# Starts trainings as forks of one process that has imported everything once, and does not format configs: the most of a
# short run's time. A job is one line: the command, the environment of each process, the log. The answer is the exit
# codes.
SERVER = """
import gc, json, os, random, runpy, sys
answers = os.fdopen(os.dup(1), 'w')
os.dup2(2, 1)  # for what the imports print
import numpy as np, torch._dynamo, mmengine.config
import mmseg.datasets, mmseg.engine, mmseg.evaluation, mmseg.models, mmseg.visualization
import mmattn.engine, mmattn.segmentation
mmengine.config.config.FormatCode = lambda text, **options: (text, False)
gc.freeze()
for line in sys.stdin:
    job = json.loads(line)
    processes = []
    for environment in job['environments']:
        processes.append(os.fork())
        if processes[-1] == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(os.open(job['log'], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
            os.dup2(1, 2)
            os.environ.update(environment)
            random.seed(), np.random.seed()  # as a process of its own would have them
            sys.argv = job['command']
            sys.exit(runpy.run_path(sys.argv[0], run_name='__main__') and 0)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]),
          file=answers, flush=True)
"""

# A hook that signals its process and the workers of its data loaders, as a scheduler does, or lets a checkpoint meet a
# full disk, and a transform that notes the samples that the pipeline gets. After four samples of a process, its kinds
# wait, or return what a worker cannot send.
SABOTAGE = """
import multiprocessing, os, resource, signal, subprocess, time
from mmengine.fileio import LocalBackend
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, TRANSFORMS

KILL = os.environ.get('KILL')
SIGNALS = [signal.Signals[name] for name in os.environ.get('SIGNALS', 'SIGKILL').split()]

def kill():
    workers = [str(worker.pid) for worker in multiprocessing.active_children()]
    for number in SIGNALS:
        if number != signal.SIGKILL and workers:  # a worker obeys its parent
            subprocess.run(['kill', f'-{int(number)}', *workers], check=True)
        os.kill(os.getpid(), number)

def write_half(self, obj, filepath):
    with open(filepath, 'wb') as file:
        file.write(obj[:len(obj) // 2])
        file.flush()
        kill()

def fill_the_disk(self, obj, filepath, write=LocalBackend.put):
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(obj) // 2, resource.RLIM_INFINITY))
    try:
        write(self, obj, filepath)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

@HOOKS.register_module()
class Killer(Hook):
    priority = 'LOWEST'

    def after_train_iter(self, runner, *args, **kwargs):
        if KILL == f'step {runner.iter + 1}':
            kill()

    def before_loops(self, runner):
        if KILL == 'loops':
            kill()

    def before_val(self, runner):
        if KILL == f'validation {runner.iter}':
            kill()

    def before_save_checkpoint(self, runner, checkpoint):
        if KILL in (f"{how} {checkpoint['meta']['iter']}" for how in ('write', 'fill')):
            LocalBackend.put = write_half if KILL[:5] == 'write' else fill_the_disk

@TRANSFORMS.register_module()
class Note:
    def __call__(self, results):
        index = results['sample_idx']
        with open(os.environ['NOTES'], 'a') as file:
            file.write(f'{getattr(index, "position", None)} {int(index)}\\n')
        self.count = getattr(self, 'count', 0) + 1
        return self.later(results) if self.count > 4 else results

    def later(self, results):
        return results

@TRANSFORMS.register_module()
class Hang(Note):
    def later(self, results):
        if os.environ.get('RANK') in (None, '1'):
            time.sleep(300)
        return results

@TRANSFORMS.register_module()
class FullSharedMemory(Note):
    def later(self, results):
        return dict(results, scale_factor=NotSent())

class NotSent:
    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise RuntimeError('unable to write to file </torch_1_2_3>: No space left on device (28)')
"""

CONFIG = """
_base_ = {base!r}
custom_imports = dict(imports=['sabotage'])
custom_hooks = [dict(type='Killer')]
norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    data_preprocessor=dict(size=(32, 32)),
    backbone=dict(base_channels=8),
    decode_head=dict(in_channels=64, channels=16, dropout_ratio=0.3),
    auxiliary_head=dict(in_channels=32, channels=8, dropout_ratio=0.3))
train_dataloader = dict(
    batch_size=2,
    dataset=dict(
        pipeline=[
            dict(type='mmattn.SeedAugmentation'),
            dict(type='Note'),
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations'),
            dict(type='RandomCrop', crop_size=(32, 32)),
            dict(type='RandomFlip', prob=0.5),
            dict(type='PhotoMetricDistortion'),
            dict(type='PackSegInputs')
        ]))
train_cfg = dict(max_iters=6, val_interval=2)
default_hooks = dict(checkpoint=dict(interval=4, max_keep_ckpts=-1), logger=dict(interval=1))
"""
# With the hook above, for the trainings of other tests.
KILLED = """
_base_ = './plain.py'
custom_imports = dict(imports=['sabotage'])
custom_hooks = [dict(type='Killer')]
"""
# By epoch, of two iterations each.
EPOCHS = """
_base_ = './config.py'
train_cfg = dict(_delete_=True, type='EpochBasedTrainLoop', max_epochs=3, val_interval=3)
train_dataloader = dict(sampler=dict(type='mmattn.DefaultSampler'))
default_hooks = dict(checkpoint=dict(by_epoch=True, interval=1))
"""
# Both hooks restore the generators.
TWO_HOOKS = """
_base_ = './config.py'
custom_hooks = [dict(type='mmattn.CheckpointHook', by_epoch=False, interval=3, filename_tmpl='other_{}.pth')]
"""


class Trainer:
    """Runs tools/train.py in processes of their own and returns their exit codes; keeps the last log and samples."""

    def __init__(self, folder, environment, *python_path):
        self.folder, self.runs = folder, 0
        (folder / 'sabotage.py').write_text(SABOTAGE)
        base = ROOT / 'configs/bi_cc/bi-cc_r18-d8-half_1xb8-50_buildings-256x256.py'
        for name, text in dict(epochs=EPOCHS, two_hooks=TWO_HOOKS).items():
            (folder / f'{name}.py').write_text(text)
        (folder / 'config.py').write_text(CONFIG.format(base=str(base)))
        path = os.pathsep.join(str(part) for part in (*python_path, ROOT, folder))
        self.sockets = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # which killed workers leave behind
        self.server = subprocess.Popen(
            [sys.executable, '-c', SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={
                **os.environ,
                **environment,
                'OMP_NUM_THREADS': '1',
                'CUDA_VISIBLE_DEVICES': '',
                'PYTHONPATH': path,
                'TMPDIR': self.sockets.name,
            },
        )

    def __call__(
        self,
        work_dir,
        *options,
        tool=TRAIN,
        config='config.py',
        checkpoint=None,
        resume=False,
        workers=0,
        processes=1,
        kill='',
        signals='SIGKILL',
        signalled=None,
    ):
        self.runs += 1
        log, notes = self.folder / f'{self.runs}.log', self.folder / f'{self.runs}.notes'
        notes.touch()
        command = [
            tool,
            self.folder / config,
            *([checkpoint] if checkpoint else []),  # to test
            '--work-dir',
            work_dir,
            *(['--resume'] if resume else []),
            *(['--launcher', 'pytorch'] if processes > 1 else []),
            '--cfg-options',
            f'train_dataloader.num_workers={workers}',
            f'train_dataloader.persistent_workers={workers > 0}',
            *options,
        ]
        with socket.socket() as probe:
            probe.bind(('127.0.0.1', 0))
            port = probe.getsockname()[1]
        shared = dict(NOTES=str(notes), KILL=kill, SIGNALS=signals)
        if processes > 1:
            shared.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), WORLD_SIZE=str(processes))
        ranks = [dict(shared, RANK=str(i), LOCAL_RANK=str(i)) if processes > 1 else shared for i in range(processes)]
        for rank in ranks:
            if signalled not in (None, rank.get('RANK')):
                rank['KILL'] = ''
        job = dict(command=[str(part) for part in command], environments=ranks, log=str(log))
        self.server.stdin.write(f'{json.dumps(job)}\n')
        self.server.stdin.flush()
        codes = json.loads(self.server.stdout.readline())
        self.log = log.read_text()
        self.samples = [line.split() for line in notes.read_text().splitlines()]
        return codes

    def close(self):
        self.server.kill()
        self.server.communicate()
        self.sockets.cleanup()


def load(path):
    return torch.load(path, map_location='cpu', weights_only=False)


def differences(this, other, name=''):
    """The names of all that is not equal, to the bit, in two nested structures."""
    if isinstance(this, dict | list | tuple):
        assert type(this) is type(other)
        assert len(this) == len(other)
        items = this.items() if isinstance(this, dict) else enumerate(this)
        return [found for key, value in items for found in differences(value, other[key], f'{name}.{key}')]
    equal = torch.equal(this, other) if isinstance(this, torch.Tensor) else np.array_equal(this, other)
    return [] if equal else [name]


def to_resume(checkpoint):
    return checkpoint['message_hub']['runtime_info']['to_resume']


def assert_same_end(folder, other, last='iter_6.pth', others=None):
    this, other = load(folder / last), load(other / (others or last))
    assert len(this['state_dict']) > 100
    for part in ('state_dict', 'optimizer', 'param_schedulers'):
        assert differences(this[part], other[part]) == []
    # `outdated` names the best checkpoints to remove, which an interrupted copy does not have
    states = [{key: x for key, x in to_resume(run).items() if key != 'outdated'} for run in (this, other)]
    assert differences(*states) in ([], ['.validating'])
