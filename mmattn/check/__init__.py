"""What is checked before a training: one batch of the validation, see ``sanity.py``. Only the tools import it."""
