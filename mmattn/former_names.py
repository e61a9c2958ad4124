"""Registered names of earlier releases that are gone, each with a sentence on what to do without it.

The registries show it in place of "not in the registry". Example of an entry: ``'OldHead': "use
type='mmattn.BiCCHead'"``.
"""

FORMER_NAMES: dict[str, str] = {}
