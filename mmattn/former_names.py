"""Registered names of earlier releases that are gone, each with a sentence on what to do without it.

The registries show it in place of "not in the registry". Example of an entry: ``'OldHead': "use
type='mmattn.BiCCHead'"``.
"""

_CHECK = (
    'the tools check the data of every run, and need no hook: leave it out, for a config of an earlier release by '
    '--cfg-options default_hooks.data_check=None'
)
FORMER_NAMES: dict[str, str] = {
    'SegDataCheckHook': _CHECK,
    'DetDataCheckHook': _CHECK,
    'TextDataCheckHook': _CHECK,
}
