"""Utilities: paths of configs, atomic files, command lines, and measurements of time and memory.

Import from the files: there is one per subject, and :func:`config_path` is the only name of the package. Imports
``_compat.py`` alone, so everything may import it. Start with ``checks.py`` and ``faults.py`` (errors that name an
argument or a file) and ``files.py`` (atomic writes). ``arguments.py`` makes a function a command, and
``command.py`` is the frame of every tool. ``resumable.py`` records what a long run has finished.
"""

from .paths import config_path

__all__ = ['config_path']
