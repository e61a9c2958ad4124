"""The questions of docs/evidence.md: their rows, protocol and primary contrasts, their runs and their report."""

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from mmattn.utils import config_path
from mmattn.utils.files import write_text

from .evidence import Contrast, evidence_table, plot_contrasts, required_seeds
from .protocol import Protocol
from .report import markdown, spread
from .reproduce import reproduce
from .tables import Row, read_tables
from .task import ProtocolError
from .variants import SCALED, UNET_BA

RESULTS = config_path('reproduced') / 'evidence'
KINDS = 'frozen', 'trained'  # the backbone
EXPLORATORY = 'exploratory'  # decides nothing, see exploration.py
FOLLOW_UP = 'follow-up'  # contrasts that explored variants led to, with a frozen backbone
STOCK = tuple(f'{kind}_stock' for kind in KINDS)  # the stock components alone, with their learning curves
COUNT = 6  # of the primary contrasts in docs/evidence.md, also of questions that are not here yet
UPRIGHT = 'upright', True  # the metric on upright faces is that of the last validation


class Question(NamedTuple):
    """What is compared, and under which protocol.

    Attributes:
        table (str): table of a paper.
        rows (tuple[str, ...]): names of its rows.
        dataset, scale, backbone, crops: see tools/reproduce.py; without crops, no features are stored.
        contrasts (tuple[Contrast, ...]): primary contrasts, without values.
        iterations (int, optional): length of a run. Defaults to None, not chosen yet.
        seeds (int): number of seeds with a frozen backbone, for the rows of the primary contrasts; they are 0, 1, ….
            Defaults to 0.
        others (int): number of seeds of the other rows, at most ``seeds``. Defaults to 3.
        trained (int): number of seeds with a trained backbone; the other rows are not run. Defaults to 0.
        no_attention (str, optional): a row whose head is also run without its attention. Defaults to None.
        options (dict): further settings of all configs, by key. Defaults to {}.
        variants (dict): options of further rows, by name, ``ROW, CHANGE``; they change that row. Only those of a
            contrast are run; all are explored, see :func:`~mmattn.reproduction.exploration.explore`. Defaults to {}.
        follow_up (tuple[Contrast, ...]): contrasts of explored variants, on the seeds of the primary ones, with a
            frozen backbone. Those of all questions are a family of their own, whose intervals are corrected for their
            number. Defaults to ().
        folds (tuple): the test clips of each fold, see :func:`~mmattn.reproduction.folds.reproduce_folds`; a fold and a
            seed are a pair. Defaults to (), no folds.
    """

    table: str
    rows: tuple[str, ...]
    dataset: str
    scale: float
    backbone: str
    crops: int | None
    contrasts: tuple[Contrast, ...]
    iterations: int | None = None
    seeds: int = 0
    others: int = 3
    trained: int = 0
    no_attention: str | None = None
    options: Mapping[str, Any] = {}
    variants: Mapping[str, Mapping[str, Any]] = {}
    follow_up: tuple[Contrast, ...] = ()
    folds: tuple[tuple[str, ...], ...] = ()

    def planned(self, trained: bool) -> int:
        """Return the number of seeds of the primary contrasts."""
        return self.trained if trained else self.seeds

    def compared(self, trained: bool) -> list[str]:
        """Return the names of the rows of all contrasts; with a trained backbone, of the primary ones."""
        contrasts = self.contrasts if trained else self.contrasts + self.follow_up
        return sorted({name for contrast in contrasts for name in (contrast.ours, contrast.baseline)})


QUESTIONS = {
    'a': Question(
        '3.2',
        ('NL', 'NL + RPE', 'Bi-NL', 'CC', 'CC + RPE', 'Bi-CC'),
        'camvid',
        0.5,
        'mobilenet-v2-d8_heads-128',
        1500,
        (
            Contrast('bilateral attention improves criss-cross attention (Table 3.2)', 'Bi-CC', 'CC', 1.07),
            Contrast('bilateral attention improves non-local attention (Table 3.2)', 'Bi-NL', 'NL', 0.82),
        ),
        iterations=1200,
        seeds=25,
        no_attention='CC',
    ),
    'b': Question(
        '4.2',
        (
            'a: content, 8 heads',
            'b: geometric, 8 heads',
            'e: both, 8 heads',
            'i: both, 8 heads, shared, 3 passes',
            'j: 3×3 convolution',
        ),
        'camvid',
        0.5,
        'mobilenet-v2-d8_heads-128',
        1500,
        (
            Contrast(
                'local bilateral attention replaces 3×3 convolutions in a decoder (Table 4.2)',
                'e: both, 8 heads',
                'j: 3×3 convolution',
                0.58,
            ),
        ),
    ),
    'c': Question(
        '4.3',
        ('U-Net', 'U-Net-BA'),
        'fasseg_turned',
        1.0,
        'mobilenet-v2-d8_unet',
        1500,
        (
            Contrast('U-Net-BA parses upright faces better than U-Net (Table 4.3)', 'U-Net-BA', 'U-Net', 0.6, *UPRIGHT),
            Contrast('U-Net-BA parses turned faces better than U-Net', 'U-Net-BA', 'U-Net', None, 'turned'),
        ),
        iterations=480,
        seeds=10,
        options={
            'default_hooks.checkpoint.save_best': None,  # the last checkpoint is tested
            # As in the short runs on these faces: eyes, nose and mouth take few pixels.
            'model.decode_head.loss_decode.class_weight': [1.0, 1.0, 1.0, 4.0, 4.0, 4.0],
        },
        variants=UNET_BA,
        follow_up=(
            Contrast('content logits times 1/√d improve U-Net-BA on upright faces', SCALED, 'U-Net-BA', None, *UPRIGHT),
            Contrast('U-Net-BA with them parses upright faces better than U-Net', SCALED, 'U-Net', None, *UPRIGHT),
            Contrast('and turned faces, too', SCALED, 'U-Net', None, 'turned'),
        ),
    ),
    'd': Question(
        '5.1',
        ('SST (Grid)', 'SST (Strided)'),
        'davis_240p',
        1.0,
        'mobilenet-v2-s8_video',
        None,
        (
            Contrast(
                'strided attention follows objects better than grid attention (Table 5.1)',
                'SST (Strided)',
                'SST (Grid)',
                1.6,
            ),
        ),
        iterations=600,
        seeds=2,
        others=2,
        folds=(
            ('blackswan', 'car-roundabout'),
            ('cows', 'dog'),
            ('drift-straight', 'horsejump-high'),
            ('libby', 'soapbox'),
        ),
    ),
}


def rows_of(question: Question, trained: bool) -> list[Row]:
    """Return the rows of a question; with a trained backbone, those of the primary contrasts."""
    rows = [row._replace(options={**row.options, **question.options}) for row in read_tables()[question.table]]
    if trained:
        return [row for row in rows if row.name in question.compared(trained)]
    chosen = [row for row in rows if row.name in question.rows]
    # mmseg's CCHead repeats its attention; without repetition, it has its convolutions alone.
    plain = [
        row._replace(name='no attention', baseline=row.name, metrics={}, options={'model.decode_head.recurrence': 0})
        for row in chosen
        if row.name == question.no_attention
    ]
    return chosen + plain + [row for row in variants_of(question, chosen) if row.name in question.compared(trained)]


def variants_of(question: Question, rows: list[Row]) -> list[Row]:
    """Return the variants of rows."""
    return [
        row._replace(name=name, metrics={}, options={**row.options, **options})
        for name, options in question.variants.items()
        for row in rows
        if row.name == name.partition(',')[0]
    ]


def protocol_of(question: Question, iterations: int, pretrained: Path, trained: bool) -> Protocol:
    """Return the protocol of all runs of a question."""
    return Protocol(
        question.dataset,
        iterations,
        question.scale,
        True,
        backbone=question.backbone,
        pretrained=pretrained,
        crops=None if trained else question.crops,
        frozen=not trained,
    )


def train(question: Question, rows: list[Row], protocol: Protocol, work_dir: Path, **options: Any) -> str:
    """Train the missing runs of a question, in each of its folds; see :func:`reproduce`."""
    if not question.folds:
        return reproduce(rows, protocol, work_dir, **options)
    from .folds import reproduce_folds  # lazy: it imports mmattn.video

    return reproduce_folds(rows, protocol, work_dir, question.folds, **options)


def choose_size(
    name: str,
    iterations: int,
    pretrained: Path,
    work_dir: Path,
    *,
    trained: bool = False,
    seeds: Sequence[int] = (0, 1, 2),
    data_root: Path | None = None,
    jobs: int = 1,
    workers: int | None = None,
    results: Path = RESULTS,
) -> str:
    """Train the stock components of a question alone, and return what decides on the size of its runs.

    These are, for each primary contrast, the learning curve of its baseline, how much its last fifth changes, the
    deviation over seeds, and the number of seeds that the paper's difference requires; see docs/evidence.md. Figures
    and curves are written to ``results``/NAME_frozen_stock.json or NAME_trained_stock.json, where they replace those
    of another length.

    Args:
        name (str): a key of ``QUESTIONS``.
        iterations (int): length of the runs, with ten validations.
        pretrained (Path): weights of the backbone.
        work_dir (Path): see :func:`reproduce`, as the other arguments.
        trained (bool): train the backbone, too. Defaults to False.
        seeds (sequence of int): two or more. Defaults to (0, 1, 2).
        results (Path): folder of the figures. Defaults to configs/reproduced/evidence.

    Raises:
        ProtocolError, BlockingIOError, RuntimeError: see :func:`reproduce`.
    """
    question = QUESTIONS[name]
    stock = {contrast.baseline for contrast in question.contrasts}
    rows = [row._replace(baseline=None) for row in rows_of(question, trained) if row.name in stock]
    protocol = protocol_of(question, iterations, pretrained, trained)._replace(validations=10)
    options: dict[str, Any] = dict(data_root=data_root, seeds=seeds, jobs=jobs, workers=workers)
    text = train(question, rows, protocol, work_dir, **options)
    found = json.loads((work_dir / 'results.json').read_text(encoding='utf-8'))
    write_figures(results / f'{name}_{STOCK[trained]}.json', found | dict(steps=iterations), known=set())
    size = size_table(found, question.contrasts)
    return '\n'.join([size, text if question.folds else f'The curves are in {work_dir / "curves.png"}.'])


def size_table(results: Mapping, contrasts: Sequence[Contrast]) -> str:
    """Return what the runs of the baselines say about the size, as a table in Markdown."""
    runs = {row['name']: [*row['seeds'].values()] for row in results['rows']}
    lines = []
    for contrast in contrasts:
        if contrast.paper is None:
            continue
        curves = [run['curve'] for run in runs[contrast.baseline]]
        points = [(points[0][0], statistics.mean(value for _, value in points)) for points in zip(*curves)]
        before, last = (value for _, value in (points[-3], points[-1]))  # at 80 % and at the end
        folds = defaultdict(list)  # clips differ, but not in paired differences
        for run in runs[contrast.baseline]:
            folds[run.get('fold')].append(run['curve'][-1][1])
        spread_of_pairs = (2 * statistics.mean(map(statistics.variance, folds.values()))) ** 0.5
        pairs = required_seeds(spread_of_pairs, contrast.paper, COUNT)
        lines.append(
            [
                contrast.baseline,
                ', '.join(f'{step}: {value:.2f}' for step, value in points),
                f'{last - before:+.2f}',
                f'{spread_of_pairs:.2f}',
                'more than 100' if pairs is None else str(-(-pairs // len(folds))),
            ]
        )
    heads = ['mean by iteration', 'last fifth', '√2 · deviation', 'seeds for the paper’s difference']
    return markdown(heads, lines)


def answer(
    name: str,
    pretrained: Path,
    work_dir: Path,
    *,
    trained: bool = False,
    data_root: Path | None = None,
    jobs: int = 1,
    workers: int | None = None,
    results: Path = RESULTS,
) -> str:
    """Train the missing runs of a question, seed by seed, and return the table of the last seed's rows.

    After each seed, the figures of all finished seeds are written to ``results``/NAME_frozen.json or NAME_trained.json.
    Runs whose figures are there are not trained again, also on another machine. The same is true of the runs that chose
    the size, if they have the chosen length; see :func:`choose_size`.

    Args:
        name (str): a key of ``QUESTIONS``.
        pretrained (Path): weights of the backbone.
        work_dir (Path): see :func:`reproduce`, as the other arguments.
        trained (bool): train the backbone, too, in the rows of the primary contrasts. Defaults to False.
        data_root (Path, optional): folder of the data set. Defaults to None, the folder in its config.
        jobs (int): simultaneous runs. Defaults to 1.
        workers (int, optional): data loading processes of a run. Defaults to None, those of the config.
        results (Path): folder of the figures. Defaults to configs/reproduced/evidence.

    Raises:
        ProtocolError: length or number of the runs is not chosen yet; or see :func:`reproduce`.
        BlockingIOError, RuntimeError: see :func:`reproduce`.
    """
    question = QUESTIONS[name]
    count = question.planned(trained)
    if question.iterations is None or count == 0:
        raise ProtocolError(f'question {name} cannot be run: its size is not chosen yet, see docs/evidence.md')
    protocol = protocol_of(question, question.iterations, pretrained, trained)
    path = results / f'{name}_{KINDS[trained]}.json'
    known = restore(path, work_dir, pretrained)
    restore(results / f'{name}_{STOCK[trained]}.json', work_dir, pretrained, question.iterations)
    found: dict[str, dict] = {}  # by row
    for seeds in range(1, count + 1):
        text = train(
            question,
            rows_of(question, trained),
            protocol,
            work_dir,
            names=None if seeds <= question.others else question.compared(trained),
            data_root=data_root,
            seeds=range(seeds),
            jobs=jobs,
            workers=workers,
        )
        last = json.loads((work_dir / 'results.json').read_text(encoding='utf-8'))
        found |= {row['name']: row for row in last['rows']}
        write_figures(path, last | dict(steps=question.iterations, rows=[*found.values()]), known)
    return text


def write_figures(path: Path, content: Mapping, known: set[tuple[str, str]]) -> None:
    """Write the figures of finished runs, which :func:`restore` reads, if the ``known`` runs are among them.

    The first seeds of a resumed call thereby do not replace the figures of all.
    """
    if known <= _runs(content):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + '\n')


def _runs(results: Mapping) -> set[tuple[str, str]]:
    return {(row['name'], seed) for row in results['rows'] for seed in row['seeds']}


def restore(path: Path, work_dir: Path, pretrained: Path, iterations: int | None = None) -> set[tuple[str, str]]:
    """Write the figures of finished runs to the work dir of :func:`reproduce`, which then does not train them again.

    Returns:
        set[tuple[str, str]]: row and seed of each run in the file; empty if it does not exist, or if its runs do not
        have this length.

    Raises:
        ProtocolError: the runs have another backbone.
    """
    if not path.exists():
        return set()
    found = json.loads(path.read_text(encoding='utf-8'))
    if not any(each.endswith(f'pretrained weights {pretrained.name}') for each in found['deviations']):
        raise ProtocolError(
            f'{path} has runs with other weights than {pretrained.name}; choose another --results, or the same: '
            f'{"; ".join(each for each in found["deviations"] if each.startswith("backbone"))}'
        )
    if iterations not in (None, found['steps']):
        return set()
    known = _runs(found)
    for row in found['rows']:
        for key, run in row['seeds'].items():
            if run['seconds'] is None:  # nothing was trained
                continue
            fold, seed = run.pop('fold', None), run.pop('seed', key)
            folder = work_dir / ('runs' if fold is None else f'fold-{fold}/runs')
            folder.mkdir(parents=True, exist_ok=True)
            stored = folder / f'{Path(row["config"]).stem}_seed-{seed}.json'
            if not stored.exists():
                write_text(stored, json.dumps(dict(steps=found['steps'], **run)))
    return known


def values_of(results: Mapping, validation: bool) -> dict[str, dict[int, float]]:
    """Return the first metric of each row of a results.json, by seed, in the test or the last validation."""
    return {
        row['name']: {
            int(seed): run['curve'][-1][1] if validation else next(iter(run['metrics'].values()))
            for seed, run in row['seeds'].items()
        }
        for row in results['rows']
    }


def report(picture: Path, results: Path = RESULTS) -> str:
    """Draw the contrasts of all questions, and return their verdicts and all runs as tables in Markdown.

    Args:
        picture (Path): the image to write.
        results (Path): folder of the figures. Defaults to configs/reproduced/evidence.
    """
    contrasts: dict[str, list[Contrast]] = {kind: [] for kind in (*KINDS, FOLLOW_UP)}
    runs = []
    for kind, (name, question) in product((*KINDS, EXPLORATORY, *STOCK), QUESTIONS.items()):
        path = results / f'{name}_{kind}.json'
        found = json.loads(path.read_text(encoding='utf-8')) if path.exists() else dict(rows=[])
        families = {kind: question.contrasts} if kind in KINDS else {}
        if kind == KINDS[0]:
            families[FOLLOW_UP] = question.follow_up
        for validation in dict.fromkeys(contrast.validation for contrast in question.contrasts):
            values = values_of(found, validation)
            runs += [
                [
                    f'{name}: {row}' + (', validation' if validation else ''),
                    kind,
                    ', '.join(f'{value:.2f}' for value in seeds.values()),
                    spread([*seeds.values()]),
                ]
                for row, seeds in values.items()
            ]
            for family, some in families.items():
                contrasts[family] += [
                    contrast._replace(
                        planned=question.planned(kind == 'trained') * max(1, len(question.folds)),
                        values=(values.get(contrast.ours, {}), values.get(contrast.baseline, {})),
                    )
                    for contrast in some
                    if contrast.validation == validation
                ]
    counts = dict.fromkeys(KINDS, COUNT) | {FOLLOW_UP: len(contrasts[FOLLOW_UP])}
    plot_contrasts(contrasts, counts, picture)
    titles = {kind: f'Backbone {kind}' for kind in KINDS} | {FOLLOW_UP: f'Follow-up, backbone {KINDS[0]}'}
    tables = [
        f'{titles[family]}:\n\n{evidence_table(some, counts[family])}' for family, some in contrasts.items() if some
    ]
    return '\n'.join([*tables, markdown(['backbone', 'by seed', 'mean'], runs)])
