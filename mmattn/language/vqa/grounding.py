"""The place of :mod:`mmattn.language.grounding` in 0.2.0."""

from mmattn.language.grounding import __all__, __getattr__  # noqa: F401
