"""Where the configs are, and atomic files; ``profiling``, which needs torch, measures time and memory of a call."""

from .paths import config_path

__all__ = ['config_path']
