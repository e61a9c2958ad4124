"""Hooks of a run: checkpoints that can be resumed from, preemption, and checks of data, losses and keys."""
