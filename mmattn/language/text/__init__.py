"""Sentences: corpora, vocabulary, subwords, batches, and the check of their data sets before training.

Import the names from :mod:`mmattn.language`. Imports ``data_check``, ``registry.py`` and ``utils``, and no task; only
its hook looks into ``models``. Start with ``vocabulary.py`` and ``text_dataset.py``, the base class of the data sets;
``batching.py`` makes batches of them.
"""
