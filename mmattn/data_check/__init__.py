"""Checks of the data of a run before its first iteration: the hook, and images and masks."""
