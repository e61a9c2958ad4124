"""What a training needs, from the metafiles: size of the network, and hours and memory where they were measured."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.fileio import load


def needs(model: dict[str, Any], options: dict[str, Any]) -> str:
    """Describe what a training needs. Options change a network, so that figures of the config are not theirs."""
    if options:
        return 'not measured'
    parts = []
    if counts := model.get('Counts'):
        parts.append(f'{counts["Parameters (M)"]:g} M, {counts["MACs (G)"]:g} G MACs of {_input(counts)}')
    return ', '.join([*parts, _measured(model)])


def measured_table(metafiles: list[Path]) -> Iterator[str]:
    """Yield the lines of the table of docs/costs.md: the configs whose training was measured."""
    yield from ('| config | data | parameters, M | MACs, G | of | training |', '|---|---|---|---|---|---|')
    for model in (model for path in metafiles for model in load(path)['Models'] if 'Measured' in model):
        counts = model['Counts']
        cells = [
            f'[{model["Name"]}](../{model["Config"]})',
            model['Metadata']['Training Data'],
            f'{counts["Parameters (M)"]:g}',
            f'{counts["MACs (G)"]:g}',
            _input(counts),
            _measured(model),
        ]
        yield f'| {" | ".join(cells)} |'


def _input(counts: dict[str, Any]) -> str:
    """Write what was counted: the sides of an image or clip, or a text's own words for it."""
    size = counts['Input']
    return size if isinstance(size, str) else '×'.join(map(str, size))


def _measured(model: dict[str, Any]) -> str:
    return (
        ', '.join(
            f'{model["Metadata"]["Iterations"] * measured["ms"] / 3_600_000:.1f} h of training steps alone '
            f'({measured["Precision"]}) on each {measured["GPU"]} with {measured["Samples"]} samples, '
            f'{measured["Peak (MiB)"] / 1024:.1f} GiB'
            for measured in model.get('Measured', ())
        )
        or 'not measured'
    )
