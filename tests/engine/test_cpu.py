"""What is changed for machines without a GPU."""

import os
import platform
import subprocess
import sys
from contextlib import nullcontext
from datetime import timedelta

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import AmpOptimWrapper
from torch import nn

from mmattn.engine import CPUAmpOptimWrapper, cpu, prepare_for_cpu

from ..requirements import requires


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_the_forward_pass_is_in_low_precision_and_the_weights_are_not(dtype):
    model = nn.Linear(3, 2)
    wrapper = CPUAmpOptimWrapper(dtype=dtype, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    with wrapper.optim_context(model):
        output = model(torch.ones(1, 3))
    assert output.dtype == getattr(torch, dtype)
    before = model.weight.clone()
    wrapper.update_params(output.float().sum())
    # d(sum)/dW = 1, exactly, in any precision
    torch.testing.assert_close(model.weight, before - 0.1)
    assert model.weight.dtype == torch.float32


@pytest.fixture
def logged(monkeypatch):
    lines = []
    monkeypatch.setattr(cpu, 'print_log', lambda text, *_: lines.append(text))
    return lines


@pytest.mark.parametrize('factor', [1.5, 1.6])
def test_a_processor_without_fast_products_is_a_warning(monkeypatch, logged, factor):
    monkeypatch.setattr(cpu, '_product_time', lambda dtype: factor if dtype == torch.bfloat16 else 1.0)
    CPUAmpOptimWrapper(optimizer=torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))
    expected = 'no fast products in bfloat16, and one takes 1.6 times as long as in float32. Run without --amp'
    assert [text.endswith(expected) for text in logged] == ([True] if factor == 1.6 else [])


def test_the_time_of_a_product_is_the_shortest_of_three(monkeypatch):
    clock = iter([100.0, 107.0, 200.0, 205.0, 300.0, 306.0])
    monkeypatch.setattr(cpu.time, 'perf_counter', lambda: next(clock))
    assert cpu._product_time(torch.float32) == 5


EMULATED = """
import torch
from mmattn.engine.cpu import SLOW, _product_time
print(_product_time(torch.bfloat16) > SLOW * _product_time(torch.float32))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != 'x86_64', reason='the variables are those of x86')
def test_products_without_instructions_are_measured_as_slow():
    environment = {**os.environ, 'ONEDNN_MAX_CPU_ISA': 'AVX2', 'ATEN_CPU_CAPABILITY': 'avx2'}
    done = subprocess.run([sys.executable, '-c', EMULATED], env=environment, text=True, capture_output=True, check=True)
    assert done.stdout.split() == ['True']


def config():
    return Config(
        dict(
            launcher='none',
            optim_wrapper=dict(type='AmpOptimWrapper', loss_scale='dynamic', use_fsdp=True),
            model=dict(norm_cfg=dict(type='SyncBN'), stages=[dict(norm_cfg=dict(type='SyncBN', requires_grad=True))]),
        )
    )


def test_a_machine_with_a_gpu_is_left_alone(monkeypatch, logged):
    """Without one, a single process keeps its model: mmengine reverts SyncBN by itself there."""
    for available in (True, False):
        monkeypatch.setattr(torch.cuda, 'is_available', lambda available=available: available)
        cfg, expected = config(), config()
        prepare_for_cpu(cfg)
        if not available:
            expected.optim_wrapper = dict(type='mmattn.CPUAmpOptimWrapper', dtype='bfloat16')
        assert cfg.to_dict() == expected.to_dict()
        assert ['bfloat16' in text for text in logged] == [True] * (not available)


def test_several_processes_without_a_gpu(monkeypatch, logged):
    """Types may be classes, as in pure-Python configs."""
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    monkeypatch.setattr(torch.distributed, 'is_initialized', lambda: True)
    cfg = config()
    cfg.launcher = 'pytorch'
    cfg.model_wrapper_cfg = dict(find_unused_parameters=True)
    cfg.optim_wrapper.type, cfg.model.norm_cfg.type = AmpOptimWrapper, nn.SyncBatchNorm
    prepare_for_cpu(cfg)
    assert cfg.optim_wrapper.type == 'mmattn.CPUAmpOptimWrapper'
    assert cfg.model.norm_cfg.type == 'BN'
    assert cfg.model.stages[0].norm_cfg == dict(type='BN', requires_grad=True)
    assert cfg.model_wrapper_cfg == dict(
        type='MMDistributedDataParallel', broadcast_buffers=False, device_ids=None, find_unused_parameters=True
    )
    assert any('2 SyncBN' in text for text in logged)
    logged.clear()
    prepare_for_cpu(cfg)
    assert logged == []


@pytest.mark.parametrize('states', ['full', 'sharded'])
@pytest.mark.parametrize('kind', ['DDPStrategy', 'FSDPStrategy'])
def test_strategies_without_a_gpu(monkeypatch, kind, states):
    """What the user sets is kept, apart from the device; FSDP gathers whole states without the offload to the CPU."""
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    monkeypatch.setattr(torch.distributed, 'is_initialized', lambda: True)
    cfg = config()
    cfg.launcher = 'pytorch'
    cfg.strategy = dict(type=kind, model_wrapper=dict(broadcast_buffers=True, mine=3), state_dict_cfg=states)
    prepare_for_cpu(cfg)
    assert cfg.strategy.type == kind
    if kind == 'DDPStrategy':
        expected = dict(type='MMDistributedDataParallel', device_ids=None, find_unused_parameters=False)
    else:
        expected = dict(type='MMFullyShardedDataParallel', device_id='cpu')
    assert cfg.strategy.model_wrapper == dict(expected, broadcast_buffers=True, mine=3)
    if kind == 'DDPStrategy' or states == 'sharded':
        assert cfg.strategy.state_dict_cfg == states
    else:
        assert cfg.strategy.state_dict_cfg.state_dict_type == 'FULL_STATE_DICT'
        options = cfg.strategy.state_dict_cfg.state_dict_config, cfg.strategy.state_dict_cfg.optim_state_dict_config
        assert [(each.rank0_only, each.get('offload_to_cpu')) for each in options] == [(True, None)] * 2


MPI = {f'OMPI_COMM_WORLD_{name}': value for name, value in dict(RANK='3', SIZE='4', LOCAL_RANK='1').items()}
SLURM = dict(SLURM_NODELIST='node[7-8]', SLURM_NTASKS='4', SLURM_PROCID='3')
GIVEN = dict(MASTER_ADDR='here', MASTER_PORT='1')


@pytest.mark.parametrize(
    ('launcher', 'variables', 'timeout', 'expected'),
    [
        ('mpi', dict(MPI, OMPI_COMM_WORLD_LOCAL_SIZE='4'), None, '127.0.0.1 29500 4 3 1'),
        ('mpi', dict(MPI, OMPI_COMM_WORLD_LOCAL_SIZE='2'), None, None),  # two nodes, and no address of the first
        # The first node is the master, unless the user names another one.
        ('slurm', SLURM, 90, 'node7 29500 4 3 0'),
        ('slurm', dict(SLURM, **GIVEN), 90, 'here 1 4 3 0'),
        ('slurm', dict(SLURM, SLURM_LOCALID='1'), None, 'node7 29500 4 3 1'),
        ('slurm', dict(SLURM, PATH=''), None, None),  # a container without scontrol
    ],
)
def test_processes_of_a_launcher(monkeypatch, tmp_path, launcher, variables, timeout, expected):
    """The timeout of the config is that of gloo."""
    scontrol = tmp_path / 'scontrol'
    scontrol.write_text('#!/bin/sh\n[ "$*" = "show hostnames node[7-8]" ] && printf "node7\\nnode8\\n"\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    started, cfg = [], config()
    monkeypatch.setattr(
        torch.distributed, 'init_process_group', lambda name, **options: started.append((name, options))
    )
    names = 'MASTER_ADDR', 'MASTER_PORT', 'WORLD_SIZE', 'RANK', 'LOCAL_RANK'
    for name in (*names, 'SLURM_LOCALID'):
        monkeypatch.setenv(name, '')  # restored at the end
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    cfg.launcher, cfg.env_cfg = launcher, dict(dist_cfg=dict(timeout=timeout)) if timeout else {}
    with nullcontext() if expected else pytest.raises(ValueError, match='MASTER_ADDR'):
        prepare_for_cpu(cfg)
        assert [os.environ[name] for name in names] == expected.split()
        ((name, options),) = started
        assert name == 'gloo'
        assert options.get('timeout') == (timedelta(seconds=timeout) if timeout else None)


def test_mixed_precision_on_a_cpu_has_two_types():
    with pytest.raises(ValueError, match=r"dtype .*'float32'$"):
        CPUAmpOptimWrapper(dtype='float32', optimizer=torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))


@requires('mmcv operators')
def test_operators_of_mmcv_under_autocast():
    """On a CPU mmcv's kernels take no bfloat16."""
    from mmcv import ops

    CPUAmpOptimWrapper(optimizer=torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))
    torch.manual_seed(0)
    features, weight = torch.randn(1, 4, 8, 8).bfloat16().requires_grad_(), torch.randn(4, 4, 3, 3).bfloat16()
    boxes = torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 5], [5, 5, 7, 7]]).bfloat16()
    rois = torch.cat([torch.zeros(3, 1).bfloat16(), boxes], 1)
    offset, mask = torch.zeros(1, 18, 8, 8).bfloat16(), torch.ones(1, 9, 8, 8).bfloat16()
    with torch.autocast('cpu', torch.bfloat16):
        _, kept = ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]).bfloat16(), 0.5)
        pooled = ops.roi_align(features, rois, (2, 2))
        deformed = ops.deform_conv2d(features, offset, weight, 1, 1)
        modulated = ops.modulated_deform_conv2d(features, offset, mask, weight, None, 1, 1)
    assert kept.tolist() == [0, 2]
    assert pooled.dtype == deformed.dtype == modulated.dtype == torch.bfloat16
    torch.testing.assert_close(pooled, ops.roi_align(features.float(), rois.float(), (2, 2)).bfloat16())
    expected = nn.functional.conv2d(features.float(), weight.float(), padding=1).bfloat16()
    for found in (deformed, modulated):
        torch.testing.assert_close(found, expected)
    (pooled.sum() + deformed.sum() + modulated.sum()).backward()
    assert features.grad.abs().sum() > 0
