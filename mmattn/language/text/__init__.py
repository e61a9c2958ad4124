"""Sentences: corpora, vocabulary, subwords, batches, and the base class of their data sets.

Import the names from :mod:`mmattn.language`. Imports ``registry.py`` and ``utils``, and no task.
Start with ``vocabulary.py`` and ``text_dataset.py``; ``batching.py`` makes batches.
"""
