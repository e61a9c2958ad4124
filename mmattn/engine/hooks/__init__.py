"""Hooks of a run: resumable checkpoints, preemption, and checks of data, losses and state-dict keys.

Configs name the hooks (``type='mmattn.CheckpointHook'``), and :mod:`mmattn.engine` exports them. One file per hook.
Imports the rest of ``engine``, ``registry.py`` and ``utils``. Start with ``checkpoint.py``.
"""
