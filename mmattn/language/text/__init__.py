"""Sentences: corpora, vocabulary, subwords, batches, and the check of their data sets before training."""
