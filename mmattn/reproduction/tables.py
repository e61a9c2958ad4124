"""The rows of the papers' tables, as the metafiles of the configs have them."""

from collections import defaultdict
from typing import NamedTuple

from mmengine.fileio import load

from mmattn.utils import config_path


class Row(NamedTuple):
    """A figure of a paper and the config that repeats it.

    A metafile has it under ``Tables`` of a model: the table, the place in it, the row's name, what the table varies
    besides (backbone, data set, task), the row that it is compared with (none: it is what others are compared with) and
    the figures, the first of which counts. A row may be tested with further arguments of tools/test.py or with other
    settings, and be trained in stages, each from the last checkpoint of the one before it.
    """

    table: str
    order: int
    name: str
    setting: str
    baseline: str | None
    metrics: dict[str, float]
    data: str
    batch_size: int
    configs: list[str]  # below configs/; the stages, the last of which is the row's own
    test: list[str]
    options: dict


def read_tables() -> dict[str, list[Row]]:
    """Return the rows of every table, in the order of the paper."""
    models = {
        model['Name']: model for path in sorted(config_path().glob('*/metafile.yml')) for model in load(path)['Models']
    }
    tables: defaultdict[str, list[Row]] = defaultdict(list)
    for model in models.values():
        for entry in model.get('Tables', ()):
            stages = [models[name] for name in entry.get('Stages', ())] + [model]
            tables[entry['Table']].append(
                Row(
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
                )
            )
    return {table: sorted(tables[table], key=_place) for table in sorted(tables)}


def _place(row: Row) -> tuple[int, str, int]:
    return len(row.setting), row.setting, row.order
