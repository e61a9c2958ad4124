"""Helpers that need neither torch nor any OpenMMLab package."""
from .paths import config_path

__all__ = ['config_path']
