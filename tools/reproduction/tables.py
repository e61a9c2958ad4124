"""The rows of the papers' tables, read from the metafiles of the configs."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from mmengine.fileio import load

from mmattn.utils import config_path

from .costs import needs
from .rows import Row
from .source import deviations, settings


def read_tables() -> dict[str, list[Row]]:
    """Return the rows of every table, in the order of the paper."""
    metafiles = [load(path) for path in sorted(config_path().glob('*/metafile.yml'))]
    collections = [collection for metafile in metafiles for collection in metafile['Collections']]
    models = {model['Name']: model for metafile in metafiles for model in metafile['Models']}
    tables: defaultdict[str, list[Row]] = defaultdict(list)
    for model in models.values():
        for entry in model.get('Tables', ()):
            stages = [models[name] for name in entry.get('Stages', ())] + [model]
            row = Row(
                entry['Table'],
                entry['Row'],
                entry['Name'],
                entry.get('Setting', ''),
                entry.get('Baseline'),
                entry.get('Metrics', {}),
                model['Metadata']['Training Data'],
                model['Metadata']['Batch Size'],
                [stage['Config'].removeprefix('configs/') for stage in stages],
                entry.get('Test', []),
                entry.get('Options', {}),
                entry.get('Baseline Setting'),
                members=entry.get('Members', []),
                needs='; '.join(needs(stage, entry.get('Options', {})) for stage in stages),
            )
            numbers = () if row.members else range(1, len(stages) + 1)  # the members' rows say it
            stated = [settings(collections, row, number) for number in numbers]
            stated = stated if any(stated) else []
            paper = _paper(collections, model, entry['Table']) if stated or row.metrics or row.members else ''
            texts = deviations(collections, row) if stated else {}
            tables[entry['Table']].append(row._replace(source=stated, deviations=texts, paper=paper))
    return {table: sorted(_with_members(tables[table]), key=_place) for table in sorted(tables)}


def _paper(collections: Iterable[dict[str, Any]], model: dict[str, Any], table: str) -> str:
    """Return the title of a table's paper: of the ``Source`` that names the table, or of the model's collection."""
    named = (entry for each in collections for entry in each.get('Source', ()) if table in entry['Tables'])
    own = next(each['Paper']['Title'] for each in collections if each['Name'] == model['In Collection'])
    return next((entry['Paper'] for entry in named if 'Paper' in entry), own)


def _with_members(rows: list[Row]) -> list[Row]:
    named = {(row.name, row.setting): row for row in rows}
    return [row._replace(members=[named[name, row.setting] for name in row.members]) for row in rows]


def add_variant(rows: list[Row], name: str, of: str, options: dict[str, Any]) -> list[Row]:
    """Return the rows of a table and a further one: another row with other settings, which is its baseline."""
    if any(row.name == name for row in rows):
        raise ValueError(f"there is a row '{name}' already")
    variants = [
        row._replace(
            name=name,
            baseline=of,
            metrics={},
            needs='not measured',
            options={**row.options, **options},
            other_setting=None,
        )
        for row in rows
        if row.name == of
    ]
    if not variants:
        raise ValueError(f"the table has no row '{of}', only {'; '.join(dict.fromkeys(row.name for row in rows))}")
    return [*rows, *variants]


def _place(row: Row) -> tuple[int, str, int]:
    return len(row.setting), row.setting, row.order
