"""A row of a table, as `tables.py` reads it."""

from typing import Any, NamedTuple


class Row(NamedTuple):
    """A row of a paper's table and the config that reproduces it.

    It is stored under ``Tables`` of a model in a metafile: the table, the position in it, the row's name, the setting
    if the table also varies backbone, data set or task, the row that it is compared with (none for a baseline) and its
    setting, if that is another one, and the figures, the first of which is compared. A row may have further arguments
    of tools/test.py or other settings. It may be trained in stages: each starts from the best checkpoint of the
    previous one in the validation, or from the last if the config saves no best. A row may be an ensemble of other rows
    of the table, its ``Members``, in the same setting; it has no training of its own.
    """

    table: str
    order: int
    name: str
    setting: str
    baseline: str | None
    metrics: dict[str, float]
    data: str
    batch_size: int  # of all processes, in samples; for text, in tokens
    configs: list[str]  # paths relative to configs/, one per stage; the last is the row's own config
    test: list[str]
    options: dict
    other_setting: str | None = None
    source: list[dict[str, Any]] = []  # what the source states of each stage, see source.py
    members: list[Any] = []  # rows whose models are joined
    deviations: dict[str, dict[str, Any]] = {}  # from the source, in words, and settings while which they hold
    needs: str = ''  # parameters, multiply-accumulates, and hours where they were measured
    paper: str = ''  # title of the paper and chapter; '' if the table is our own

    @property
    def compared(self) -> tuple[str | None, str]:
        return self.baseline, self.setting if self.other_setting is None else self.other_setting
