"""Mixed precision for a config that trains or tests in float32, and for inference."""

from contextlib import AbstractContextManager, nullcontext
from inspect import signature

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.registry import LOOPS

from mmattn.utils.component_type import component_class, type_name

from .cpu import prepare_cpu_amp

AMP = {  # by name: the mixed-precision form of an optimizer wrapper
    'OptimWrapper': 'AmpOptimWrapper',
    'AmpOptimWrapper': 'AmpOptimWrapper',
    'CPUAmpOptimWrapper': 'AmpOptimWrapper',  # in what a run on a CPU has written
    'TokenOptimWrapper': 'mmattn.AmpTokenOptimWrapper',
    'AmpTokenOptimWrapper': 'mmattn.AmpTokenOptimWrapper',
    'CPUAmpTokenOptimWrapper': 'mmattn.AmpTokenOptimWrapper',
}


def enable_amp(wrapper: dict) -> None:
    """Change the config of an optimizer wrapper to mixed precision.

    Args:
        wrapper (dict): ``optim_wrapper`` of a config, of type ``OptimWrapper`` or ``mmattn.TokenOptimWrapper``, or of
            their AMP forms. Another type raises a ValueError. The loss is scaled dynamically unless ``loss_scale`` is
            set.
    """
    name = type_name(wrapper, 'OptimWrapper')
    if name not in AMP:
        raise ValueError(
            "mixed precision requires optim_wrapper.type='OptimWrapper' or 'mmattn.TokenOptimWrapper'; "
            f"got '{wrapper['type']}'"
        )
    wrapper['type'] = AMP[name]
    wrapper.setdefault('loss_scale', 'dynamic')


def enable_test_amp(cfg: Config) -> None:
    """Change a config to test in mixed precision: float16 on a GPU, bfloat16 on a CPU.

    Raises:
        ValueError: ``test_cfg`` has a loop without the argument ``fp16`` of mmengine's ``TestLoop``, or the config
            has a detector on a CPU: the metrics of mmdet cannot read bfloat16.
    """
    loop = component_class({'type': 'TestLoop', **cfg.test_cfg}, LOOPS, cfg.get('default_scope'))
    if loop is None or 'fp16' not in signature(loop).parameters:
        raise ValueError(f"mixed precision requires test_cfg.type='TestLoop'; got {type_name(cfg.test_cfg)!r}")
    device = get_device()
    if device == 'cpu' and cfg.get('default_scope') == 'mmdet':
        raise ValueError('the metrics of mmdet cannot read bfloat16, so a detector is tested in float32 on a CPU')
    cfg.test_cfg.fp16 = True
    inference_precision(device, amp=True)


def inference_precision(device: str | torch.device, *, amp: bool) -> AbstractContextManager:
    """Return a context for the forward passes of inference, which can be entered again.

    Args:
        device (str or torch.device): the device of the model.
        amp (bool): autocast, to float16 on a GPU and to bfloat16 on a CPU. A warning is logged if the processor
            multiplies bfloat16 more slowly than float32. False changes nothing.

    Example:
        >>> layer = torch.nn.Linear(2, 1)
        >>> with inference_precision('cpu', amp=True):
        ...     print(layer(torch.ones(1, 2)).dtype)
        torch.bfloat16
    """
    device = torch.device(device)
    if not amp:
        return nullcontext()
    if device.type == 'cpu':
        prepare_cpu_amp()
    return torch.autocast(device.type)
