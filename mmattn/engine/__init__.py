"""Extensions of mmengine's Runner: CPU support, checkpoints, checks, and the command line that the tools share.

Tasks and tools import the names below, which load on first use. ``hooks`` has what acts during a run. It imports
``ops``, ``registry.py`` and ``utils``, and no task. Start with ``command_line.py`` (from arguments to a config), then
``cpu.py`` and ``checkpoint_files.py`` (what a run and a checkpoint need in addition).
"""

import mmattn.registry  # noqa: F401  (registers `_base_ = 'mmattn::…'` in mmengine)
from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'checkpoint_files': 'check_checkpoint guard_checkpoints read_checkpoint',
        'command_line': 'Amp CfgOptions Device ModelArguments ModelsArguments add_amp add_channels_last '
        'add_check add_common_arguments add_config_options add_device add_fuse_conv_bn config_from count_accumulated '
        'data_paths hold_work_dir leave_process_group load_config trained_models',
        'convolutions': 'fuse_at_first_call use_channels_last',
        'cpu': 'CPUAmpOptimWrapper prepare_for_cpu',
        'data_sampling': 'DefaultSampler InfiniteSampler SeedAugmentation',
        'flop_handles': 'add_flop_handles',
        'hooks.checkpoint': 'CheckpointHook awaits_validation has_checkpoint latest_checkpoint',
        'hooks.checkpoint_keys': 'CheckpointKeysHook',
        'hooks.invalid_loss': 'InvalidLossHook',
        'hooks.preemption': 'PreemptionHook',
        'hooks.shared_buffers': 'SharedBuffersHook',
        'mixed_precision': 'enable_amp enable_test_amp inference_precision',
        'operators': 'log_operators',
        'pipelines': 'inference_pipeline',
    },
)
