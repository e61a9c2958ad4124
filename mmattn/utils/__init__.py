"""Where the configs are; and, in ``profiling``, which needs torch, time and memory of a call."""

from .paths import config_path

__all__ = ['config_path']
