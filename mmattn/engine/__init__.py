"""Extensions of mmengine's Runner: CPU support, checkpoints, checks, and the command line that the tools share."""

from .command_line import (
    add_amp,
    add_channels_last,
    add_common_arguments,
    add_config_options,
    add_device,
    add_models,
    config_from,
    data_paths,
    leave_process_group,
    load_config,
    trained_models,
)
from .cpu import CPUAmpOptimWrapper, prepare_for_cpu
from .data_sampling import DefaultSampler, InfiniteSampler, SeedAugmentation
from .flop_handles import add_flop_handles
from .hooks.checkpoint import CheckpointHook, check_checkpoint, has_checkpoint, latest_checkpoint
from .hooks.checkpoint_keys import CheckpointKeysHook
from .hooks.cpu_convolutions import CPUConvolutionsHook, fold_norms, prepare_for_inference
from .hooks.invalid_loss import InvalidLossHook
from .hooks.preemption import PreemptionHook
from .inference_pipeline import inference_pipeline
from .mixed_precision import enable_amp, enable_test_amp, inference_precision
from .operators import log_operators
from .safe_globals import add_safe_globals

__all__ = [
    'CPUAmpOptimWrapper',
    'CPUConvolutionsHook',
    'CheckpointHook',
    'CheckpointKeysHook',
    'DefaultSampler',
    'InfiniteSampler',
    'InvalidLossHook',
    'PreemptionHook',
    'SeedAugmentation',
    'add_amp',
    'add_channels_last',
    'add_common_arguments',
    'add_config_options',
    'add_device',
    'add_flop_handles',
    'add_models',
    'add_safe_globals',
    'check_checkpoint',
    'config_from',
    'data_paths',
    'enable_amp',
    'enable_test_amp',
    'fold_norms',
    'has_checkpoint',
    'inference_pipeline',
    'inference_precision',
    'latest_checkpoint',
    'leave_process_group',
    'load_config',
    'log_operators',
    'prepare_for_cpu',
    'prepare_for_inference',
    'trained_models',
]
