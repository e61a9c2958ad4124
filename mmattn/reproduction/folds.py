"""Cross-validation over clips: each fold tests some of them and trains on the others; rows that are not trained."""

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.model import initialize

from mmattn.registry import MODELS
from mmattn.utils.files import write_text
from mmattn.video import LabelPropagation

from .protocol import Protocol, read_data
from .report import markdown
from .reproduce import reproduce
from .results import Result
from .runs import Run
from .short_runs.davis import REPEATED, clips, evaluate, predict, repeat, segment
from .tables import Row
from .task import ProtocolError

PROPAGATED = 'label propagation'
OF_CLIP = 'J&F of '  # followed by the name of the clip, see evaluate()
PARTS = 'JPEGImages', 'Annotations'


def reproduce_folds(
    rows: list[Row],
    protocol: Protocol,
    work_dir: Path,
    folds: Sequence[Sequence[str]],
    *,
    data_root: Path | None = None,
    **options: Any,
) -> str:
    """Train the missing runs of a table in each fold, and write the figures of all folds to the work dir.

    Fold K, from 1, is a :func:`reproduce` in ``WORK_DIR/fold-K``, whose folder ``data`` has links to the frames and
    masks, and the fold's lists of clips. Further rows are not trained: the first mask repeated, and label propagation
    by the backbone's initial weights.

    ``WORK_DIR/results.json`` has the form of that of a fold, with the number of a pair of runs in place of the seed,
    which is the seed times the number of folds, plus K − 1. ``table.md`` shows each clip. After an interruption, the
    same call resumes.

    Args:
        rows (list[Row]): rows for video object segmentation.
        protocol (Protocol): its data set has the layout of davis_240p.
        work_dir (Path): the folder.
        folds (sequence of sequences of str): the test clips of each fold. Each clip of the data belongs to one fold.
        data_root (Path, optional): folder of the data set. Defaults to None, the folder in its config.
        **options: as in :func:`reproduce`, except ``examine``.

    Returns:
        str: the content of table.md.

    Raises:
        ProtocolError: there is no such clip; the work dir has folds of other clips or data; or as in
            :func:`reproduce`.
        BlockingIOError, RuntimeError: as in :func:`reproduce`.
    """
    assert protocol.dataset is not None
    root = Path(read_data(protocol.dataset, data_root).data_root).resolve()
    names = [clip for fold in folds for clip in fold]
    missing = [clip for clip in names if not any(root.glob(f'{PARTS[0]}/*/{clip}'))]
    if missing:
        raise ProtocolError(
            f'{root}/{PARTS[0]} does not have the clips {", ".join(missing)} (set the folder by --data-root)'
        )
    folders = [work_dir / f'fold-{number + 1}' for number in range(len(folds))]
    for fold, folder in zip(folds, folders):
        write_fold(root, folder / 'data', [clip for clip in names if clip not in fold], fold)
    try:
        for fold, folder in zip(folds, folders):
            print(f'{folder.name} of {len(folds)}, tested on {" and ".join(fold)}')
            reproduce(rows, protocol, folder, data_root=folder / 'data', examine=examine, **options)
    finally:
        read_data(protocol.dataset, root)  # reproduce() has set the environment variable to the folder of a fold
    results = merge([json.loads((folder / 'results.json').read_text(encoding='utf-8')) for folder in folders])
    write_text(work_dir / 'results.json', json.dumps(results, indent=1, ensure_ascii=False) + '\n')
    text = table(results)
    write_text(work_dir / 'table.md', text)
    return text


def write_fold(root: Path, folder: Path, train: Sequence[str], test: Sequence[str]) -> None:
    """Write the lists of clips of a fold, and links to frames and masks, to a folder; existing ones must be the same.

    Raises:
        ProtocolError: an existing list or link differs.
    """
    lists = {
        folder / f'ImageSets/{name}.txt': '\n'.join(some) + '\n' for name, some in dict(train=train, val=test).items()
    }
    links = {folder / part: root / part for part in PARTS}
    changed = [path for path, text in lists.items() if path.exists() and path.read_text(encoding='utf-8') != text]
    changed += [link for link, part in links.items() if link.is_symlink() and link.resolve() != part.resolve()]
    if changed:
        raise ProtocolError(
            f'{folder} is of other clips or of another --data-root ({changed[0].name}): choose another --work-dir'
        )
    (folder / 'ImageSets').mkdir(parents=True, exist_ok=True)
    for path, text in lists.items():
        write_text(path, text)
    for link, part in links.items():
        if not link.is_symlink():
            link.symlink_to(part, target_is_directory=True)


def examine(run: Run, result: Result, jobs: int) -> dict[str, Result]:
    """Return the scores of the rows that are not trained, and of a run, also by clip; store them."""
    cfg = Config.fromfile(run.config)
    found = {
        REPEATED: stored(run.folder.parent / 'repeated.json', lambda: evaluate(repeat(clips(run)))),
        PROPAGATED: stored(
            run.folder.parent / 'propagated.json', lambda: evaluate(segment(label_propagation(cfg), clips(run)))
        ),
    }
    own = result.metrics
    if not any(name.startswith(OF_CLIP) for name in own):  # figures of a finished question have them
        own = stored(run.folder / 'scores.json', lambda: evaluate(predict(run, blind=False)))
    return {name: Result(metrics, None, None) for name, metrics in found.items()} | {
        run.method: result._replace(metrics=own)
    }


def stored(path: Path, compute: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return the metrics in a file; compute and store them if it does not exist."""
    if not path.exists():
        write_text(path, json.dumps(compute()))
    return json.loads(path.read_text(encoding='utf-8'))


def label_propagation(cfg: Config) -> LabelPropagation:
    """Return label propagation by the backbone of a config, with the weights from which it starts."""
    backbone = cfg.model.backbone.get('backbone', cfg.model.backbone)  # within a frozen one
    parts = {key: cfg.model[key] for key in ('data_preprocessor', 'test_cfg')}
    model = MODELS.build(dict(type='mmattn.LabelPropagation', backbone=backbone, **parts))
    initialize(model.backbone, backbone.init_cfg)  # init_weights() would log every weight
    return model.eval()


def merge(folds: Sequence[dict]) -> dict:
    """Return the figures of all folds, given those of each, in the same form; see :func:`reproduce_folds`."""
    rows = []
    for parts in zip(*(fold['rows'] for fold in folds), strict=True):
        runs = {
            int(seed) * len(folds) + number: dict(fold=number + 1, seed=int(seed), **run)
            for number, part in enumerate(parts)
            for seed, run in part['seeds'].items()
        }
        rows.append(
            {key: parts[0][key] for key in ('name', 'config', 'baseline', 'paper', 'parameters', 'macs')}
            | dict(seeds={str(pair): runs[pair] for pair in sorted(runs)})
        )
    return folds[0] | dict(folds=len(folds), rows=rows)


def table(results: dict) -> str:
    """Return J&F of each clip and of all, mean over the seeds, as a table in Markdown."""
    lines = []
    for row in results['rows']:
        runs = [run['metrics'] for run in row['seeds'].values()]
        by_clip = {
            name.removeprefix(OF_CLIP): [run[name] for run in runs if name in run]
            for name in dict.fromkeys(name for run in runs for name in run if name.startswith(OF_CLIP))
        }
        means = [statistics.mean(values) for values in by_clip.values()]
        lines.append([row['name'], *(f'{value:.2f}' for value in (*means, statistics.mean(means)))])
    return markdown([*by_clip, 'J&F, mean'], lines)
