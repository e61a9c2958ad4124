"""Distributed and mixed-precision runs on machines without a GPU."""

import logging
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper
from torch import distributed, nn

from mmattn.registry import OPTIM_WRAPPERS
from mmattn.utils.component_type import type_name

SLOW = 1.5  # times float32: with instructions for bfloat16, a product takes half as long; without them, 2.5 to 60 times


@OPTIM_WRAPPERS.register_module()
class CPUAmpOptimWrapper(OptimWrapper):
    """Mixed-precision training on a CPU. mmengine's ``AmpOptimWrapper`` requires a GPU.

    It is faster than float32 only on processors with instructions for bfloat16: AVX-512 BF16 or AMX on x86 (Intel from
    Cooper Lake, AMD from Zen 4), BF16 on ARM. On other processors, a warning gives the measured factor.

    Args:
        dtype (str): 'bfloat16' or 'float16'. The loss is not scaled. Defaults to 'bfloat16'.
        **kwargs: as in mmengine's ``OptimWrapper``.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> wrapper = CPUAmpOptimWrapper(optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        >>> with wrapper.optim_context(model):
        ...     print(model(torch.ones(1, 2)).dtype)
        torch.bfloat16
    """

    def __init__(self, dtype: str = 'bfloat16', **kwargs) -> None:
        if dtype not in ('bfloat16', 'float16'):
            raise ValueError(f"dtype must be 'bfloat16' or 'float16'; got {dtype!r}")
        super().__init__(**kwargs)
        self.dtype = getattr(torch, dtype)
        prepare_cpu_amp(self.dtype)

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Enter autocast for a forward pass of ``model``."""
        with super().optim_context(model), torch.autocast('cpu', self.dtype):
            yield


def prepare_cpu_amp(dtype: torch.dtype = torch.bfloat16) -> None:
    """Prepare this process for autocast on a CPU, and warn if the processor multiplies ``dtype`` slowly."""
    factor = _product_time(dtype) / _product_time(torch.float32)
    if factor > SLOW:
        print_log(
            f'Mixed precision is slow here: the processor has no fast products in {str(dtype).removeprefix("torch.")}, '
            f'and one takes {factor:.1f} times as long as in float32. Run without --amp',
            'current',
            logging.WARNING,
        )
    run_mmcv_in_float32()


def _product_time(dtype: torch.dtype) -> float:
    matrix, seconds = torch.ones(256, 256, dtype=dtype), []
    for _ in range(3):
        start = time.perf_counter()
        _ = matrix @ matrix
        seconds.append(time.perf_counter() - start)
    return min(seconds)


@cache
def run_mmcv_in_float32() -> None:
    """Make the operators of mmcv that detectors use accept bfloat16 and float16 on a CPU, in the whole process.

    They compute in float32. :func:`prepare_cpu_amp` calls this function, so only a run in mixed precision is affected.
    Without it, the first detector raises "not implemented for 'BFloat16'". mmcv binds the operators to names in many
    modules, so ``forward`` and ``backward`` are the only place to convert their tensors.
    """
    if find_spec('mmcv') is None or find_spec('mmcv._ext') is None:
        return
    for module, name in (
        ('nms', 'NMSop'),
        ('roi_align', 'RoIAlignFunction'),
        ('deform_conv', 'DeformConv2dFunction'),
        ('modulated_deform_conv', 'ModulatedDeformConv2dFunction'),
    ):
        _in_float32(getattr(import_module(f'mmcv.ops.{module}'), name))


def _in_float32(function: type[torch.autograd.Function]) -> None:
    forward, backward = function.forward, function.backward

    def forward_in_float32(ctx: Any, first: torch.Tensor, *rest: Any) -> torch.Tensor:
        output = forward(ctx, *(x.float() if _is_low(x) else x for x in (first, *rest)))
        return output.to(first.dtype) if _is_low(first) and output.is_floating_point() else output

    def backward_in_float32(ctx: Any, gradient: torch.Tensor) -> Any:
        return backward(ctx, gradient.float() if _is_low(gradient) else gradient)

    function.forward = staticmethod(forward_in_float32)  # type: ignore[method-assign]
    function.backward = staticmethod(backward_in_float32)  # type: ignore[method-assign]


def _is_low(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)


def prepare_for_cpu(cfg: Config) -> None:
    """Change a config, and initialise gloo, so that the stock Runner runs on CPUs. With a GPU, do nothing.

    With a launcher, mmengine would select a CUDA device, pass one to DDP or FSDP, and keep SyncBN, which rejects
    modules on a CPU.
    """
    if torch.cuda.is_available():
        return
    wrapper = cfg.get('optim_wrapper')
    on_cpu = {
        'AmpOptimWrapper': 'mmattn.CPUAmpOptimWrapper',
        'AmpTokenOptimWrapper': 'mmattn.CPUAmpTokenOptimWrapper',
    }
    if wrapper and (name := type_name(wrapper)) in on_cpu:
        print_log('No GPU: mixed precision by autocast to bfloat16 on the CPU', 'current', logging.WARNING)
        wrapper.type = on_cpu[name]
        wrapper.pop('loss_scale', None)
        wrapper.pop('use_fsdp', None)
        wrapper.dtype = 'bfloat16'
    if cfg.get('launcher', 'none') == 'none':
        return
    if not distributed.is_initialized():
        if cfg.launcher == 'slurm':
            _environment_from_slurm()
        elif cfg.launcher == 'mpi':
            _environment_from_mpi()
        timeout = cfg.get('env_cfg', {}).get('dist_cfg', {}).get('timeout')
        distributed.init_process_group('gloo', timeout=None if timeout is None else timedelta(seconds=timeout))
    wrapper_cfg = dict(
        type='MMDistributedDataParallel',
        broadcast_buffers=False,
        find_unused_parameters=cfg.get('find_unused_parameters', False),
    )
    cfg.model_wrapper_cfg = {**wrapper_cfg, **(cfg.get('model_wrapper_cfg') or {}), 'device_ids': None}
    strategy = cfg.get('strategy') or ConfigDict()  # of a FlexibleRunner
    if type_name(strategy) == 'DDPStrategy':
        strategy.model_wrapper = {**wrapper_cfg, **(strategy.get('model_wrapper') or {}), 'device_ids': None}
    elif type_name(strategy) == 'FSDPStrategy':
        wrapper_cfg = dict(type='MMFullyShardedDataParallel')
        strategy.model_wrapper = {**wrapper_cfg, **(strategy.get('model_wrapper') or {}), 'device_id': 'cpu'}
        if strategy.get('state_dict_cfg') == 'full':  # without `offload_to_cpu`, which reads freed memory on a CPU
            strategy.state_dict_cfg = dict(
                state_dict_type='FULL_STATE_DICT',
                state_dict_config=dict(type='FullStateDictConfig', rank0_only=True),
                optim_state_dict_config=dict(type='FullOptimStateDictConfig', rank0_only=True),
            )
    replaced = _sync_bn_to_bn(cfg.model)
    if replaced:
        print_log(
            f'No GPU: {replaced} SyncBN entries of the model are replaced by BN; statistics are separate per process',
            'current',
            logging.WARNING,
        )


def _sync_bn_to_bn(cfg: ConfigDict | list | tuple) -> int:
    values = cfg.values() if isinstance(cfg, dict) else cfg
    replaced = sum(_sync_bn_to_bn(value) for value in values if isinstance(value, dict | list | tuple))
    if isinstance(cfg, dict) and type_name(cfg) in ('SyncBN', 'MMSyncBN', 'SyncBatchNorm'):
        cfg['type'] = 'BN'
        replaced += 1
    return replaced


def _environment_from_slurm() -> None:
    if 'MASTER_ADDR' not in os.environ:
        command = ['scontrol', 'show', 'hostnames', os.environ['SLURM_NODELIST']]
        try:
            hosts = subprocess.run(command, capture_output=True, text=True, check=True)
        except FileNotFoundError:
            raise ValueError('MASTER_ADDR must be the address of the first node where there is no scontrol') from None
        os.environ['MASTER_ADDR'] = hosts.stdout.split()[0]
    os.environ.setdefault('MASTER_PORT', '29500')
    os.environ['WORLD_SIZE'] = os.environ['SLURM_NTASKS']
    os.environ['RANK'] = os.environ['SLURM_PROCID']
    os.environ['LOCAL_RANK'] = os.environ.get('SLURM_LOCALID', '0')


def _environment_from_mpi() -> None:
    for name, variable in dict(RANK='RANK', WORLD_SIZE='SIZE', LOCAL_RANK='LOCAL_RANK').items():
        os.environ[name] = os.environ[f'OMPI_COMM_WORLD_{variable}']
    if 'MASTER_ADDR' not in os.environ:
        if os.environ['OMPI_COMM_WORLD_LOCAL_SIZE'] != os.environ['WORLD_SIZE']:
            raise ValueError('MASTER_ADDR must be the address of the first node in a run on several nodes')
        os.environ['MASTER_ADDR'] = '127.0.0.1'
    os.environ.setdefault('MASTER_PORT', '29500')
