"""A table of a paper, repeated: the papers' tables, the protocol of a run, the runs, the report."""
