"""Utilities: paths of configs, atomic files, command lines, and measurements of time and memory."""

from .paths import config_path

__all__ = ['config_path']
