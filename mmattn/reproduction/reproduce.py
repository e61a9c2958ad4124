"""Train the missing runs of a table over several seeds, and write the report."""

import json
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Queue

import torch
from mmengine.config import Config

from mmattn.utils.files import check_writable, write_text

from .plan import Method, check_backbones, check_data, plan, words, write_configs
from .protocol import Protocol, read_data
from .report import write_report
from .results import Measured, Result, Setup
from .runs import Run, each, finish, lock, peak_memory, scalars, scores, test_folder
from .tables import Row
from .task import UNITS, has_own_test, input_words, length, metrics_of, writes_samples

# Returns rows of the report, by name, for a finished run, its result and the number of simultaneous runs.
Examine = Callable[[Run, Result, int], dict[str, Result]]


def reproduce(
    rows: list[Row],
    protocol: Protocol,
    work_dir: Path,
    *,
    data_root: Path | None = None,
    names: list[str] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    gpus: Sequence[str] = (),
    jobs: int = 1,
    workers: int | None = None,
    examine: Examine | None = None,
) -> str:
    """Train the missing runs of a table, and write the report to the work dir.

    With ``protocol.crops``, the features are computed first, in the folder ``features`` of the work dir.

    The work dir gets a complete config of each row, one folder per training (``CONFIG_seed-SEED``), its result
    (``runs/CONFIG_seed-SEED.json``), table.md, plot.png and results.json. After an interruption, the same call
    resumes. A run whose result exists is not trained again; to continue on another machine, copy the folder ``runs``.
    Further seeds are added to existing ones.

    Args:
        rows (list[Row]): rows of one table, see :func:`read_tables`.
        protocol (Protocol): changes to the paper's protocol.
        work_dir (Path): the folder.
        data_root (Path, optional): folder of the protocol's data set. Defaults to None, the folder in its config.
        names (list[str], optional): names of the rows to run, in addition to their baselines; * matches any text.
            Defaults to None, all.
        seeds (sequence of int): seeds of the trainings; one seed gives no intervals.
        gpus (sequence of str): numbers of GPUs, with ``jobs`` simultaneous runs on each. Defaults to (), the first, if
            any.
        jobs (int): simultaneous runs; they share the cores.
        workers (int, optional): data loading processes of a run. Defaults to None, those of the config.
        examine (Callable, optional): function of a finished run, its result and ``jobs`` that returns the rows of the
            report, by name. Defaults to None, one row with the method's name.

    Returns:
        str: the content of table.md.

    Raises:
        ProtocolError: the rows cannot be run under this protocol, or the work dir has runs with other settings.
        BlockingIOError: another process uses the work dir.
        RuntimeError: a training or a test has failed.
    """
    data = None if protocol.dataset is None else read_data(protocol.dataset, data_root)
    check_writable(work_dir)
    methods = plan(rows, protocol, data, names)
    if protocol.pretrained is not None:
        check_backbones(methods)
    check_data(methods)
    deviations = words(methods, protocol, data)
    table = rows[0].table
    cuda = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if cuda else f'CPU ({platform.machine()})'
    setup = Setup(
        table,
        protocol.dataset or ' and '.join(sorted({row.data for method in methods for row in method.rows})),
        deviations,
        ' or '.join(dict.fromkeys(input_words(method.configs[-1]) for method in methods)),
        f'{device}, torch {torch.__version__}',
        'CUDA tensors' if cuda else 'resident set of the process',
        any(row.metrics for method in methods for row in method.rows),
    )
    with lock(work_dir):
        counts = {method.name: method.counts() for method in methods}
        if protocol.crops is not None:
            from .feature_cache import on_cached_features  # lazy: it imports mmseg

            for method in methods:
                method.configs = [
                    on_cached_features(cfg, work_dir / 'features', protocol.crops, workers or 0)
                    for cfg in method.configs
                ]
        write_configs(methods, work_dir / 'configs', [setup.title, *deviations])
        found = run_all(methods, seeds, work_dir, gpus, jobs, workers, examine)
        measured: dict[str, Measured] = {}
        for (run, results), method in zip(found, [*methods] * len(seeds)):
            for name, result in results.items():
                row = measured.setdefault(
                    name,
                    Measured(
                        name,
                        method.rows if name == method.name else [],
                        method.baseline if name != method.baseline else None,
                        f'configs/{method.paths[-1].name}',
                        *((0, 0.0) if result.seconds is None else counts[method.name]),
                        {},
                    ),
                )
                row.results[run.seed] = result
        return write_report([*measured.values()], setup, work_dir)


def run_all(
    methods: list[Method],
    seeds: Sequence[int],
    work_dir: Path,
    gpus: Sequence[str],
    jobs: int,
    workers: int | None,
    examine: Examine | None,
) -> list[tuple[Run, dict[str, Result]]]:
    """Train the missing runs, and return the results of each run by row; all methods run with the first seed first.

    The arguments are those of :func:`reproduce`.
    """
    named = {method.name: method for method in methods}
    places: Queue[dict[str, str]] = Queue()
    visible = list(
        filter(None, os.environ.get('CUDA_VISIBLE_DEVICES', '').split(','))
    )  # gpus are indices into this list
    for gpu in [*(gpus or [''])] * jobs:
        places.put({} if not gpu else {'CUDA_VISIBLE_DEVICES': visible[int(gpu)] if visible else gpu})
    sharing = places.qsize()

    def work(run: Run) -> dict[str, Result]:
        environment = places.get()
        try:
            result = run_stages(run._replace(environment=environment), named[run.method], workers, sharing)
            return {run.method: result} if examine is None else examine(run, result, sharing)
        finally:
            places.put(environment)

    try:
        todo = [run_of(method.name, method.paths[-1], seed, work_dir) for seed in seeds for method in methods]
        return [*each(work, todo, sharing)]
    except KeyboardInterrupt:
        raise KeyboardInterrupt('the same command continues') from None


def run_of(method: str, config: Path, seed: int, work_dir: Path) -> Run:
    """Return the run of a method, given by its config, with a seed."""
    return Run(method, seed, config.resolve(), work_dir / f'{config.stem}_seed-{seed}')


def run_stages(run: Run, method: Method, workers: int | None, jobs: int) -> Result:
    """Train the missing stages of a method with one seed, and return the last stage's result, which is also stored.

    Raises:
        RuntimeError: a training or a test has failed, or a log of it is missing.
        ValueError: the stored result is that of a training of another length.
    """
    cfg = method.configs[-1]
    steps, unit = length(cfg)
    _, keys, factor = metrics_of(cfg)
    key = next(iter(keys))
    stored = run.folder.parent / 'runs' / f'{run.folder.name}.json'
    if stored.exists():
        found = json.loads(stored.read_text(encoding='utf-8'))
        if found.pop('steps') != steps:
            raise ValueError(f'{stored} is of a training of another length than {steps} {UNITS[unit]}')
        return Result(**found)
    start: list[str] = []
    for path, cfg in zip(method.paths, method.configs):
        # An earlier stage has the folder of its config, so that rows with the same stage, or that row, train it once.
        staged = run_of(run.method, path, run.seed, run.folder.parent)._replace(
            options=start + _with_workers(cfg, workers), environment=run.environment
        )
        last = checkpoint(staged.folder, cfg)
        finish(staged, jobs, last, length(cfg)[0] if has_own_test(cfg) and cfg.get('val_cfg') is not None else None)
        best = chosen(staged.folder, cfg, last)
        start = [f'load_from={best}']
    by_sample = has_own_test(cfg) and writes_samples(cfg)
    arguments = method.rows[0].test
    found = scores(staged, jobs, best, key, None if has_own_test(cfg) else steps, *arguments, files=by_sample)
    logs = scalars(run.folder)
    trained = [[line for line in log if 'loss' in line] for log in logs]
    times = [line['time'] for log in trained for line in log[1:] or log]
    memory = max((line['memory'] for log in logs for line in log if 'memory' in line), default=peak_memory(run.folder))
    if not times:
        raise RuntimeError(f'{last} exists, but the log of its training does not: remove {run.folder}')
    # Without published references, there is no sacreBLEU.
    metrics = {name: factor * found[key] for key, name in keys.items() if key in found}
    # After an interruption, a resumed training repeats validations.
    curve = {line['step']: factor * line[key] for log in logs for line in log if key in line}
    samples = read_samples(test_folder(run, *arguments), keys[key]) if by_sample else {}
    result = Result(metrics, statistics.median(times), memory, sorted(curve.items()), samples)
    lines = (f'{json.dumps(key)}: {json.dumps(value)}' for key, value in dict(steps=steps, **result._asdict()).items())
    write_text(stored, '{\n' + ',\n'.join(lines) + '\n}\n')  # a line per field; indented, samples would fill pages
    return result


def read_samples(folder: Path, metric: str) -> dict[str, float]:
    """Return a metric of each sample, ``IMAGE`` or ``IMAGE#SAMPLE``, from the scores.json in a folder."""
    scores = json.loads((folder / 'scores.json').read_text(encoding='utf-8'))['scores']
    return {
        f'{values["image_id"]}#{name}' if 'image_id' in values else name: round(values[metric], 3)
        for name, values in scores.items()
    }


def checkpoint(folder: Path, cfg: Config) -> Path:
    """Return the path of the last checkpoint of a training, which need not exist yet."""
    steps, unit = length(cfg)
    return folder / f'{unit}_{steps}.pth'


def chosen(folder: Path, cfg: Config, last: Path) -> Path:
    """Return the best checkpoint of a training that saves it, otherwise the last."""
    return next(folder.glob('best_*.pth'), last) if cfg.default_hooks.checkpoint.get('save_best') else last


def _with_workers(cfg: Config, workers: int | None) -> list[str]:
    """Return the options that set the number of processes of each data loader of a config."""
    loaders = [key for key in ('train_dataloader', 'val_dataloader', 'test_dataloader') if cfg.get(key) is not None]
    return (
        []
        if workers is None
        else [
            f'{loader}.{key}={value}'
            for loader in loaders
            for key, value in (('num_workers', workers), ('persistent_workers', workers > 0))
        ]
    )
