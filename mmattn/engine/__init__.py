"""What mmengine's Runner cannot do without a GPU, and the command line that the tools share."""
from .command_line import add_common_arguments, config_from
from .cpu import CPUAmpOptimWrapper, prepare_for_cpu

__all__ = ['CPUAmpOptimWrapper', 'add_common_arguments', 'config_from', 'prepare_for_cpu']
