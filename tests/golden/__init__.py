"""Recorded behaviour: what the package returned when the files here were written, and tests that compare.

A change on purpose is recorded by ``python -m pytest -n0 tests/golden --update-golden``, and the files' difference is
committed together with it.
"""
