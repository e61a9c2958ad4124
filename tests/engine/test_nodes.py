"""dist_train.sh on two nodes, and slurm_*.sh on a Slurm that is started on them, as root, without systemd.

A node is a network namespace with a name of its own; a cable joins the two, and they share this machine's cores and
files. For Debian's packages iproute2, slurm-wlm and munge; opt in by MMATTN_NODES_TESTS=1. Takes eight minutes on two
cores.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from ..forked_tools import tool
from .test_tools import ROOT, free_port, metrics
from .trainer import CONFIG, assert_same_end

pytestmark = pytest.mark.e2e

SLURM_CONF = """
ClusterName=mmattn
SlurmctldHost=node0
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
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=node[0-1] CPUs=1
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


@pytest.fixture(scope='module')
def nodes():
    """``on(node, *command)``: what runs a command on node 0 or 1 of two, which know each other as node0 and node1."""
    if os.environ.get('MMATTN_NODES_TESTS') != '1':
        pytest.skip('set MMATTN_NODES_TESTS=1 to make two nodes, and to start a Slurm on them')
    assert os.geteuid() == 0, 'run as root: network namespaces are made, munged, slurmctld and slurmd are started'
    missing = [name for name in ('ip', 'munged', 'slurmctld', 'slurmd', 'srun', 'sbatch') if shutil.which(name) is None]
    assert not missing, f'{", ".join(missing)} not found: apt-get install iproute2 slurm-wlm munge'
    with ExitStack() as stack:
        hosts = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix='nodes')), 'hosts')
        hosts.write_text('127.0.0.1 localhost\n10.77.0.1 node0\n10.77.0.2 node1\n')
        spaces = [f'mmattn{os.getpid()}-{node}' for node in range(2)]

        def ip(*arguments):
            subprocess.run(['ip', *arguments], check=True)

        for space in spaces:
            ip('netns', 'add', space)
            stack.callback(ip, 'netns', 'delete', space)
        ip('link', 'add', 'eth0', 'netns', spaces[0], 'type', 'veth', 'peer', 'name', 'eth0', 'netns', spaces[1])
        for node, space in enumerate(spaces):
            ip('-n', space, 'address', 'add', f'10.77.0.{node + 1}/24', 'dev', 'eth0')
            for device in ('lo', 'eth0'):
                ip('-n', space, 'link', 'set', device, 'up')

        def on(node, *command):
            enter = f'hostname node{node} && mount --bind {hosts} /etc/hosts && exec "$@"'
            space = f'--net=/run/netns/{spaces[node]}'
            return ['nsenter', space, 'unshare', '--uts', '--mount', 'sh', '-c', enter, 'sh', *command]

        yield on


@pytest.fixture(scope='module')
def ask(nodes):
    """Run a command on node 0; return what it prints."""

    def ask(*command):
        return subprocess.run(nodes(0, *command), check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout

    return ask


@pytest.fixture(scope='module')
def slurm(nodes, ask):
    """A Slurm of a CPU each of two nodes, with a partition that preempts the other; SLURM_CONF names it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix='slurm')))
        for name in ('state', 'node0', 'node1'):
            (folder / name).mkdir()
        key = folder / 'munge.key'
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        conf = folder / 'slurm.conf'
        conf.write_text(SLURM_CONF.format(folder=folder))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv('SLURM_CONF', str(conf))

        def start(node, *command):
            daemon = subprocess.Popen(nodes(node, *command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(daemon.wait, 60)
            stack.callback(daemon.terminate)

        files = (f'--{name}={folder}/munge.{name}' for name in ('socket', 'pid-file', 'log-file', 'seed-file'))
        start(0, 'munged', '--foreground', '--force', f'--key-file={key}', *files)
        wait_for((folder / 'munge.socket').exists, 30)
        start(0, 'slurmctld', '-D', '-c', '-f', conf)
        for node in range(2):
            start(node, 'slurmd', '-D', '-f', conf)
        wait_for(lambda: ask('sinfo', '-h', '-t', 'idle', '-p', 'low', '-o', '%D').strip() == '2', 60)
        yield
        ask('scancel', '--user=root')
        wait_for(lambda: not ask('squeue', '-h'), 120)


@pytest.fixture(scope='module')
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp('config')
    base = ROOT / 'configs/bi_cc/bi-cc_r18-d8-half_1xb8-50_buildings-256x256.py'
    (folder / 'sabotage.py').write_text(SLOW)
    (folder / 'config.py').write_text(CONFIG.format(base=str(base)))
    return folder / 'config.py'


@pytest.fixture(scope='module')
def launch(nodes, run, config):
    """Run one of the scripts on a node, for two processes in all."""
    shared = dict(CUDA_VISIBLE_DEVICES='', GPUS='2', GPUS_PER_NODE='0', CPUS_PER_TASK='1')

    def launch(script, *arguments, node=0, **environment):
        ports = dict(PORT=free_port(), MASTER_PORT=free_port())
        paths = dict(PYTHONPATH=f'{ROOT}:{config.parent}')
        return run(*nodes(node, *tool(script, *arguments)), **(shared | ports | paths | environment))

    return launch


@pytest.fixture(scope='module')
def by_dist_train(launch, config, tmp_path_factory):
    folder = tmp_path_factory.mktemp('dist_train')
    launch('dist_train.sh', config, 2, '--work-dir', folder)
    return folder


def test_dist_train_on_two_nodes_ends_as_on_one(launch, config, by_dist_train, tmp_path):
    shared = dict(NNODES='2', MASTER_ADDR='node0', PORT=free_port())

    def train(node):
        return launch('dist_train.sh', config, 1, '--work-dir', tmp_path, node=node, NODE_RANK=str(node), **shared)

    with ThreadPoolExecutor() as pool:
        log, other = pool.map(train, range(2))
    assert 'Distributed training: True' in log
    assert 'Iter(train) [6/6]' in log
    assert 'Iter(train)' not in other
    assert_same_end(tmp_path, by_dist_train, LAST)


def test_slurm_train_ends_as_dist_train(slurm, launch, config, by_dist_train, tmp_path):
    """And the test scores."""
    log = launch('slurm_train.sh', 'low', 'train', config, '--work-dir', tmp_path)
    assert 'Distributed training: True' in log
    assert 'GPU number: 2' in log
    assert_same_end(tmp_path, by_dist_train, LAST)
    launch('slurm_test.sh', 'low', 'test', config, by_dist_train / LAST, '--work-dir', tmp_path / 'test')
    assert 'mIoU' in metrics(tmp_path / 'test')


@pytest.mark.parametrize('by', ['scancel --signal=USR1', 'a more important job', 'a time limit'])
def test_an_interrupted_job_goes_on_by_itself(slurm, ask, launch, config, by_dist_train, tmp_path, by):
    """By SIGUSR1, by the SIGTERM that Slurm sends when it preempts, by the SIGUSR1 that comes ahead of a time limit.

    The job is requeued, and ends with the weights of the run that nothing interrupted.
    """
    work_dir, output = tmp_path / 'work', tmp_path / 'output'
    limit = by == 'a time limit'  # of three minutes; Slurm looks every 30 s for what ends within a minute and a half
    settings = dict(GRACE='60', SECONDS_AN_ITERATION='20' if limit else '2')
    settings['SBATCH_ARGS'] = f'--output={output}' + (' --time=3' if limit else '')
    said = launch('slurm_submit.sh', 'low', 'train', config, '--work-dir', work_dir, **settings)
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


def test_a_job_that_fails_is_not_requeued(slurm, ask, launch, config, tmp_path):
    output = tmp_path / 'output'
    options = '--work-dir', tmp_path / 'work', '--cfg-options', 'model.decode_head.window_size=4'
    said = launch('slurm_submit.sh', 'low', 'train', config, *options, SBATCH_ARGS=f'--output={output}')
    job = said.split()[-1]
    wait_for(lambda: 'JobState=FAILED' in ask('scontrol', 'show', 'job', job), 300)
    assert 'Restarts=0' in ask('scontrol', 'show', 'job', job)
    assert re.search('error: .*window_size', output.read_text())
