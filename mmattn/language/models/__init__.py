"""What models of sentences share: Transformer stacks with decoding state, generation, beam search, losses.

Import the names from :mod:`mmattn.language`. Imports ``language``'s ``layers`` and ``text``, ``engine`` and ``utils``,
and no task. Start with ``transformer.py``, the stacks; ``generation.py`` decodes with them, and ``training.py`` has the
base class of all models that generate, their loss and learning rate.
"""
