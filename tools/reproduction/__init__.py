"""Reproduce a table of a paper: the papers' tables, the protocol of a run, the runs, the report."""
