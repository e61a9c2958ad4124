"""The parts of ``tools/reproduce.py``: the papers' tables, the protocol of a run, the report."""
