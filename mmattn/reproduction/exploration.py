"""The exploratory part of docs/evidence.md: one change to a method at a time, on seeds that decide nothing."""

import json
from pathlib import Path
from typing import Any

from .questions import EXPLORATORY, QUESTIONS, RESULTS, protocol_of, restore, rows_of, train, variants_of, write_figures
from .task import ProtocolError

SEEDS = 100, 101  # the results use the seeds 0, 1, …


def explore(
    name: str,
    pretrained: Path,
    work_dir: Path,
    *,
    data_root: Path | None = None,
    jobs: int = 1,
    workers: int | None = None,
    results: Path = RESULTS,
) -> str:
    """Train the missing variants of a question's method with two seeds, and return the table.

    After each seed, the figures are written to ``results``/NAME_exploratory.json; runs whose figures are there are not
    trained again.

    Args:
        name (str): a key of ``QUESTIONS``, of a question with variants.
        pretrained (Path): weights of the backbone.
        work_dir (Path): see :func:`reproduce`, as the other arguments.
        results (Path): folder of the figures. Defaults to configs/reproduced/evidence.

    Raises:
        ProtocolError: the length of the runs is not chosen yet; or see :func:`reproduce`.
        BlockingIOError, RuntimeError: see :func:`reproduce`.
    """
    question = QUESTIONS[name]
    if question.iterations is None:
        raise ProtocolError(f'question {name} cannot be run: its size is not chosen yet, see docs/evidence.md')
    rows = rows_of(question, trained=False)
    rows += [row for row in variants_of(question, rows) if row not in rows]
    protocol = protocol_of(question, question.iterations, pretrained, trained=False)
    options: dict[str, Any] = dict(data_root=data_root, jobs=jobs, workers=workers)
    path = results / f'{name}_{EXPLORATORY}.json'
    known = restore(path, work_dir, pretrained)
    for seeds in range(1, len(SEEDS) + 1):
        text = train(question, rows, protocol, work_dir, seeds=SEEDS[:seeds], **options)
        content = json.loads((work_dir / 'results.json').read_text(encoding='utf-8'))
        write_figures(path, content | dict(steps=question.iterations), known)
    return text
