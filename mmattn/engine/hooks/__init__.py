"""Hooks of a run: resumable checkpoints, preemption, and checks of data, losses and state-dict keys."""
