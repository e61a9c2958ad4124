"""slurm_*.sh on a Slurm of one node that is started here, as root, without systemd, on loopback.

For Debian's packages slurm-wlm and munge; opt in by MMATTN_SLURM_TESTS=1. Takes a quarter of an hour on two busy cores.
"""
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from .test_resume import CONFIG, assert_same_end
from .test_tools import ROOT, free_port, metrics

SLURM_CONF = """
ClusterName=mmattn
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeAddr=127.0.0.1 CPUs=2
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=120 State=UP
PartitionName=high Nodes=ALL PriorityTier=2 PreemptMode=OFF State=UP
"""
SLOW = """
import os, time
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, TRANSFORMS

@HOOKS.register_module(name='Killer')
class Slow(Hook):
    def after_train_iter(self, runner, *args, **kwargs):
        time.sleep(float(os.environ.get('SECONDS_AN_ITERATION', 0)))

@TRANSFORMS.register_module()
class Note:
    def __call__(self, results):
        return results
"""
LAST = 'iter_6.pth'


def wait_for(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f'waited {seconds} s in vain'
        time.sleep(1)


def ask(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout


@pytest.fixture(scope='module')
def slurm():
    """A running Slurm of two CPUs with a partition that preempts the other; SLURM_CONF names it to its commands."""
    if os.environ.get('MMATTN_SLURM_TESTS') != '1':
        pytest.skip('set MMATTN_SLURM_TESTS=1 to start a Slurm of one node')
    assert os.geteuid() == 0, 'run as root: munged, slurmctld and slurmd are started'
    missing = [name for name in ('munged', 'slurmctld', 'slurmd', 'srun', 'sbatch') if shutil.which(name) is None]
    assert not missing, f"{', '.join(missing)} not found: apt-get install slurm-wlm munge"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix='slurm')))
        for name in ('state', 'spool'):
            (folder / name).mkdir()
        key = folder / 'munge.key'
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        conf = folder / 'slurm.conf'
        conf.write_text(SLURM_CONF.format(host=socket.gethostname().partition('.')[0], folder=folder,
                                          ports=[free_port(), free_port()]))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv('SLURM_CONF', str(conf))

        def start(*command):
            daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(daemon.wait, 60)
            stack.callback(daemon.terminate)

        start('munged', '--foreground', '--force', f'--key-file={key}', f'--socket={folder}/munge.socket',
              f'--pid-file={folder}/munge.pid', f'--log-file={folder}/munge.log', f'--seed-file={folder}/munge.seed')
        wait_for((folder / 'munge.socket').exists, 30)
        start('slurmctld', '-D', '-c', '-f', conf)
        start('slurmd', '-D', '-f', conf)
        wait_for(lambda: subprocess.run(['sinfo', '-h', '-t', 'idle', '-o', '%n'], capture_output=True).stdout, 60)
        yield folder
        subprocess.run(['scancel', '--user=root'], check=True)
        wait_for(lambda: not ask('squeue', '-h'), 120)


@pytest.fixture(scope='module')
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp('config')
    base = ROOT / 'configs/bi_cc/bi-cc_r18-d8-half_1xb8-100_buildings-256x256.py'
    (folder / 'sabotage.py').write_text(SLOW)
    (folder / 'config.py').write_text(CONFIG.format(base=str(base)))
    return folder / 'config.py'


@pytest.fixture(scope='module')
def launch(slurm, run, config):
    """Run one of the scripts, for two processes."""

    def launch(script, *arguments, **environment):
        return run('bash', ROOT / 'tools' / script, *arguments, CUDA_VISIBLE_DEVICES='', GPUS='2', GPUS_PER_NODE='0',
                   CPUS_PER_TASK='1', PYTHONPATH=f'{ROOT}:{config.parent}', PORT=free_port(), MASTER_PORT=free_port(),
                   **environment)

    return launch


@pytest.fixture(scope='module')
def by_dist_train(launch, config, tmp_path_factory):
    folder = tmp_path_factory.mktemp('dist_train')
    launch('dist_train.sh', config, 2, '--work-dir', folder)
    return folder


def test_slurm_train_ends_as_dist_train(launch, config, by_dist_train, tmp_path):
    log = launch('slurm_train.sh', 'low', 'train', config, '--work-dir', tmp_path)
    assert 'Distributed training: True' in log
    assert 'GPU number: 2' in log
    assert_same_end(tmp_path, by_dist_train, LAST)


def test_slurm_test_measures_as_test(launch, run, config, by_dist_train, tmp_path):
    launch('slurm_test.sh', 'low', 'test', config, by_dist_train / LAST, '--work-dir', tmp_path / 'slurm')
    run(sys.executable, ROOT / 'tools/test.py', config, by_dist_train / LAST, '--work-dir', tmp_path / 'one',
        PYTHONPATH=f'{ROOT}:{config.parent}')
    scores = [{name: value for name, value in metrics(tmp_path / folder).items() if 'time' not in name}
              for folder in ('slurm', 'one')]
    print(scores)
    assert scores[0] == scores[1]
    assert 'mIoU' in scores[0]


@pytest.mark.parametrize('by', ['scancel --signal=USR1', 'a more important job', 'a time limit'])
def test_an_interrupted_job_goes_on_by_itself(launch, config, by_dist_train, tmp_path, monkeypatch, by):
    """By SIGUSR1, by the SIGTERM that Slurm sends when it preempts, by the SIGUSR1 that comes ahead of a time limit.

    The job is requeued, and ends with the weights of the run that nothing interrupted.
    """
    work_dir, output = tmp_path / 'work', tmp_path / 'output'
    limit = by == 'a time limit'  # of three minutes; Slurm looks every 30 s for what ends within a minute and a half
    said = launch('slurm_submit.sh', 'low', 'train', config, '--work-dir', work_dir, GRACE='60',
                  SECONDS_AN_ITERATION='20' if limit else '2',
                  SBATCH_ARGS=f'--output={output}' + (' --time=3' if limit else ''))
    job = said.split()[-1]
    wait_for(lambda: output.exists() and 'Iter(train) [2/6]' in output.read_text(), 180)
    if by == 'scancel --signal=USR1':
        ask('scancel', '--signal=USR1', job)
    elif by == 'a more important job':
        ask('sbatch', '--partition=high', '--ntasks=2', '--output=/dev/null', '--wrap=sleep 1')

    def done():
        return f'JobId={job} ' in (shown := ask('scontrol', 'show', 'job', job)) and 'JobState=COMPLETED' in shown

    wait_for(done, 600)
    log = output.read_text()
    print(log)
    signal = 'SIGTERM' if by == 'a more important job' else 'SIGUSR1'
    restarts = int(ask('scontrol', 'show', 'job', job).partition('Restarts=')[2].split()[0])
    assert restarts == log.count('Requeueing job') >= 1
    assert f'{signal}: saved' in log
    assert log.count('Iter(train) [2/6]') == 1
    assert_same_end(work_dir, by_dist_train, LAST)


def test_a_job_that_fails_is_not_requeued(launch, config, tmp_path):
    output = tmp_path / 'output'
    said = launch('slurm_submit.sh', 'low', 'train', config, '--work-dir', tmp_path / 'work', '--cfg-options',
                  'model.decode_head.window_size=4', SBATCH_ARGS=f'--output={output}')
    job = said.split()[-1]
    wait_for(lambda: 'JobState=FAILED' in ask('scontrol', 'show', 'job', job), 300)
    assert 'Restarts=0' in ask('scontrol', 'show', 'job', job)
    assert 'ValueError' in output.read_text()
