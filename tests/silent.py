"""Silences other packages, as a tool does: the server of ``forked_tools`` imports this module first."""

from mmattn.utils.command import silence

silence()
