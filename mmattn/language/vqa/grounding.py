"""Old location, in 0.2.0, of :mod:`mmattn.language.grounding`."""

from mmattn.language.grounding import __all__, __getattr__  # noqa: F401
