"""Train the missing runs of a table over several seeds, and write the report."""

import json
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from queue import Queue

import torch
from mmengine.config import Config

from mmattn.utils.files import check_writable

from .machine import Machine
from .plan import Method, check_data, follows_source, plan, source_words, words, write_configs
from .protocol import Protocol, read_data
from .report import write_report
from .results import Measured, Result, Setup
from .rows import Row
from .runs import Run, call, each, finish, lock, peak_memory, scalars, scores, test, test_folder
from .store import Store
from .task import UNITS, find_metrics, has_own_test, input_words, is_tested_apart, length, writes_samples
from .units import score_by_unit


def reproduce(
    rows: list[Row],
    protocol: Protocol,
    work_dir: Path,
    machine: Machine,
    seeds: Sequence[int] = (0, 1, 2),
    names: list[str] | None = None,
    data_root: Path | None = None,
) -> str:
    """Train the missing runs of a table, and write the report to the work dir.

    The work dir gets a complete config of each row, one folder per training (``CONFIG_seed-SEED``), results.json,
    table.md and plot.png. After an interruption, the same call resumes. A run that is in results.json is not trained
    again; to continue on another machine, copy this file. Further seeds are added to existing ones.

    Args:
        rows (list[Row]): rows of one table, see :func:`read_tables`, and variants of them.
        protocol (Protocol): changes to the paper's protocol.
        work_dir (Path): the folder.
        machine (Machine): what the runs may use.
        seeds (sequence of int): seeds of the trainings; one seed gives no intervals over seeds.
        names (list[str], optional): names of rows; * matches any text. Their baselines are added. Defaults to None,
            all.
        data_root (Path, optional): folder of the protocol's data set. Defaults to None, the folder in its config.

    Returns:
        str: the content of table.md.
    """
    data = None if protocol.dataset is None else read_data(protocol.dataset, data_root)
    check_writable(work_dir)
    methods = plan(rows, protocol, data, names)
    check_data(methods)
    deviations = words(methods, protocol, data)
    comparable = not deviations
    choices: list[str] = []
    if follows_source(methods, protocol, data):
        differing, choices = source_words([row for method in methods for row in method.rows], protocol.options)
        deviations += differing
    cuda = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if cuda else f'CPU ({platform.machine()})'
    setup = Setup(
        rows[0].table,
        protocol.data_name or ' and '.join(sorted({row.data for method in methods for row in method.rows})),
        deviations,
        ' or '.join(dict.fromkeys(input_words(method.configs[-1]) for method in methods)),
        f'{device}, torch {torch.__version__}',
        'CUDA tensors' if cuda else 'resident set of the process',
        any(row.metrics for method in methods for row in method.rows),
        choices=choices,
        comparable=comparable,
    )
    print(setup.protocol, flush=True)
    with lock(work_dir):
        counts = {method.name: method.counts() for method in methods}
        write_configs(methods, work_dir / 'configs', [setup.title, *deviations])
        store = Store(work_dir / 'results.json')
        results = train_all(methods, seeds, machine, store)
        measured = [
            Measured(
                method.name,
                method.rows,
                method.baseline,
                method.keys[-1],
                *counts[method.name],
                {seed: results[method.name, seed] for seed in seeds},
            )
            for method in methods
        ]
        return write_report(measured, setup, store)


def train_all(
    methods: list[Method], seeds: Sequence[int], machine: Machine, store: Store, by_unit: bool = False
) -> dict[tuple[str, int], Result]:
    """Train the missing runs, the first seed of all methods first.

    Args:
        methods (list[Method]): the methods, whose configs are written.
        seeds (sequence of int): seeds of the trainings.
        machine (Machine): what the runs may use.
        store (Store): has the finished runs, and gets the others.
        by_unit (bool): score each sample of the test. Defaults to False: only metrics that always write scores.

    Returns:
        dict: the result of each method, by its name, and seed.
    """
    places: Queue[dict[str, str]] = Queue()
    visible = [*filter(None, os.environ.get('CUDA_VISIBLE_DEVICES', '').split(','))]  # gpus are indices into it
    for gpu in [*(machine.gpus or [''])] * machine.jobs:
        places.put({} if not gpu else {'CUDA_VISIBLE_DEVICES': visible[int(gpu)] if visible else gpu})
    sharing = places.qsize()
    work_dir = store.path.parent
    by_config = {method.paths[-1].resolve(): method for method in methods}

    def work(run: Run) -> Result:
        environment = places.get()
        try:
            run = run._replace(environment=environment)
            return run_stages(run, by_config[run.config], by_unit, machine.workers, sharing, store)
        finally:
            places.put(environment)

    todo = [
        make_run(method.name, method.paths[-1], seed, work_dir)._replace(in_fork=machine.in_forks)
        for seed in seeds
        for method in methods
    ]
    try:
        return {(run.method, run.seed): result for run, result in each(work, todo, sharing)}
    except KeyboardInterrupt:
        raise KeyboardInterrupt('Run the same command again to resume.') from None


def make_run(method: str, config: Path, seed: int, work_dir: Path) -> Run:
    return Run(method, seed, config.resolve(), work_dir / f'{config.stem}_seed-{seed}')


def run_stages(run: Run, method: Method, by_unit: bool, workers: int | None, jobs: int, store: Store) -> Result:
    """Train the missing stages of a method with one seed, and return the last stage's result, which is also stored."""
    cfg = method.configs[-1]
    steps, unit = length(cfg)
    _, keys, factor = find_metrics(cfg)
    key = next(iter(keys))
    stored = store.get(method.keys[-1], run.seed, steps, UNITS[unit], method.deviations)
    if stored is not None and (stored.samples or not by_unit):
        return stored
    last, best = train_stages(run, method, workers, jobs)
    folders = [training(part, member).folder for part, member in member_runs(run, method) or [(run, method)]]
    arguments = method.rows[0].test
    samples, statistic = {}, 'mean'
    if by_unit and not writes_samples(cfg):
        folder = test_folder(run, *arguments, 'units')
        scoring = Config.fromfile(run.config)
        statistic = score_by_unit(scoring)
        folder.mkdir(parents=True, exist_ok=True)  # another row may have the training
        scoring.dump(folder / 'config.py')
        results = test(run._replace(config=folder / 'config.py'), jobs, best, folder, *arguments, files=True)
        samples = json.loads((folder / 'scores.json').read_text(encoding='utf-8'))
    else:
        by_sample = writes_samples(cfg) and (is_tested_apart(cfg) or by_unit)
        step = None if is_tested_apart(cfg) or by_sample else steps
        results = scores(run, jobs, best, key, step, *arguments, files=by_sample)
        if by_sample:
            samples = read_samples(test_folder(run, *arguments), keys[key])
    logs = [log for folder in folders for log in scalars(folder)]
    trained = [[line for line in log if 'loss' in line] for log in logs]
    times = [line['time'] for log in trained for line in log[1:] or log]
    peaks = filter(None, map(peak_memory, folders))
    memory = max((line['memory'] for log in logs for line in log if 'memory' in line), default=max(peaks, default=None))
    if not times:
        raise RuntimeError(f'{last} exists, but the log of its training does not: remove {folders[-1]}')
    # Without published references, there is no sacreBLEU.
    metrics = {name: factor * results[key] for key, name in keys.items() if key in results}
    # After an interruption, a resumed training repeats validations. An ensemble is not validated.
    curve = {line['step']: factor * line[key] for log in logs for line in log if key in line and not method.members}
    seconds = statistics.median(times)
    result = Result(metrics, seconds, memory, sorted(curve.items()), samples, statistic, method.deviations)
    return store.add(method.keys[-1], run.seed, steps, result)


def training(run: Run, method: Method, stage: int = -1) -> Run:
    """Return the run that trains a stage of another, which may be the run of a method with another test.

    A stage has the folder of its config, so that rows with the same stage, or that row, train it once.
    """
    made = make_run(run.method, method.trainings[stage], run.seed, run.folder.parent)
    return made._replace(environment=run.environment, in_fork=run.in_fork)


def train_stages(run: Run, method: Method, workers: int | None, jobs: int) -> tuple[Path, Path]:
    """Train the missing stages of a method with one seed, or those of its members, and join these.

    Returns:
        tuple[Path, Path]: the last checkpoint of the last stage, and the one that is tested.
    """
    if method.members:
        tested = [train_stages(part, member, workers, jobs)[1] for part, member in member_runs(run, method)]
        joined = run.folder / 'ensemble.pth'
        if not joined.exists():
            call(run, jobs, 'misc/ensemble_checkpoints.py', *tested, '--out', joined)
        return joined, joined
    start: list[str] = []
    for stage, cfg in enumerate(method.configs):
        staged = training(run, method, stage)._replace(options=start + _with_workers(cfg, workers))
        last = checkpoint(staged.folder, cfg)
        finish(staged, jobs, last, length(cfg)[0] if has_own_test(cfg) else None)
        best = chosen(staged.folder, cfg, last)
        start = [f'load_from={best}']
    return last, best


def member_runs(run: Run, method: Method) -> list[tuple[Run, Method]]:
    """Return the runs whose models an ensemble joins, with their methods; [] of other methods.

    They have the seed of the ensemble. The second model of one row has the seed plus 1,000, so that two ensembles have
    no model in common.
    """
    runs: list[tuple[Run, Method]] = []
    names = [row.name for row in method.rows[0].members]
    for number, name in enumerate(names):
        member = next(member for member in method.members if member.rows[0].name == name)
        seed = run.seed + 1000 * names[:number].count(name)
        part = make_run(member.name, member.paths[-1], seed, run.folder.parent)
        runs.append((part._replace(environment=run.environment, in_fork=run.in_fork), member))
    return runs


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
    loaders = [key for key in ('train_dataloader', 'val_dataloader', 'test_dataloader') if cfg.get(key) is not None]
    if workers is None:
        return []
    options = f'num_workers={workers}', f'persistent_workers={workers > 0}'
    return [f'{loader}.{option}' for loader in loaders for option in options]
