"""Checks of a user's data and settings before training, and one batch of validation.

``tools/train.py`` and ``tools/test.py`` add :class:`CheckHook` to every run. Nothing else imports this folder. Without
it, both run as before. Start with ``hook.py``, then read ``rules.py``, a list of short rules. ``driver.py`` runs
the rules and tells what they find, ``data_sets.py`` and ``facts.py`` read what they ask, and ``sanity.py`` has the
batch.
"""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(__name__, {'hook': 'CheckHook'})
