"""How the benchmarks measure a workload: agreement first, then memory, then time, ours and its peers in turns.

Ours must agree with its reference in PyTorch, in values and gradients, with each backend; a peer that computes the same
must agree with ours. Extra memory is the peak beyond inputs, on a CPU also beyond outputs and gradients. Times are
medians of interleaved measurements. On a GPU, the time in which the device works, and the kernels that are launched,
are recorded beside. Each workload has a process of its own, so one that ends its process ends no other.
"""

import argparse
import json
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from workloads import BOTH, FORWARD, TRAINING, Builder, Workload

from mmattn.ops import dispatch
from mmattn.utils.collect_env import collect_env
from mmattn.utils.files import write_text
from mmattn.utils.profiling import mebibytes, seconds, synchronize

OURS = 'mmattn'
TOLERANCES = {torch.float32: 5e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def difference(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Compute the largest norm of a difference, relative to the result's norm, or to 1 % of the largest norm."""
    norms = torch.stack([x.double().norm() for x in expected.values()])
    changes = torch.stack([(actual[name].double() - x.double()).norm() for name, x in expected.items()])
    return (changes / norms.clamp(min=0.01 * norms.max().item())).max().item()


def selected(work: Workload, backend: str) -> AbstractContextManager[None]:
    """Select a backend for the operator of a workload, or for all operators if it has none."""
    return dispatch.backend(f'{work.operator}={backend}' if work.operator else backend)


def runs(work: Workload, backend: str, device: str) -> bool:
    """Check whether a backend runs a workload: a kernel may be missing, or not support the call."""
    if backend not in ('native', 'triton'):
        return True
    if backend not in dispatch.kernels_of(work.operator, torch.device(device)):
        return False
    both = work.ours.functions.get(BOTH) or work.ours.functions[TRAINING]
    return dispatch.run_by(backend, work.operator, lambda: (both(), True)) is not None


def verify(work: Workload, who: str, backend: str, tolerance: float) -> None:
    """Check that ours agrees with its reference, or that a peer agrees with ours.

    Raises:
        AssertionError: they differ by more than ``tolerance``.
    """
    same = work.ours if who == OURS else work.equivalent.get(who, work.ours)
    if same is None:
        return
    with selected(work, 'reference' if who == OURS else 'auto'):
        expected = same.results()
    with selected(work, backend):
        actual = (work.ours if who == OURS else work.peers[who]).results()
    found = difference(actual, {name: expected[name] for name in actual})  # without gradients, where it has none
    if not found <= tolerance:
        raise AssertionError(f'{who}, {backend}, differs by {found:.1e}, more than {tolerance:.1e}')


def on_device(call: Callable[[], Any]) -> dict[str, float]:
    """Return the ms in which a GPU works for a call, and the number of kernels that are launched."""
    if not torch.cuda.is_available():
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        call()
        synchronize()
    events = [event for event in profiler.key_averages() if event.device_type.name == 'CUDA']
    return {
        'device_ms': sum(event.self_device_time_total for event in events) / 1e3,
        'launches': sum(event.count for event in events),
    }


def failure(name: str, dtype: str, error: Exception) -> dict:
    """Return the record of what is not measured."""
    return {'workload': name, 'dtype': dtype, 'error': f'{type(error).__name__}: {error}'}


def measure(build: Builder, name: str, dtype: str, args: argparse.Namespace) -> list[dict]:
    """Return one record for each pass, backend and peer of a workload, and one for each that does not agree."""
    kind, records, sound = getattr(torch, dtype), [], []
    torch.manual_seed(0)
    small = build(True, kind, args.device)
    peers = [peer for peer in small.peers if args.full or peer not in small.slow]
    for who, backend in [*((OURS, x) for x in args.backends), *((peer, 'auto') for peer in peers)]:
        try:
            if who != OURS or runs(small, backend, args.device):
                verify(small, who, backend, TOLERANCES[kind])
                sound.append((who, backend))
        except Exception as error:
            records.append(failure(name, dtype, error))
    with dispatch.kernels_run() as ran:
        next(iter(small.ours.functions.values()))()
    work = build(args.small, kind, args.device)
    contenders = {key: work.peers.get(key[0], work.ours) for key in sound}
    for of in work.ours.functions:
        functions = {key: x.functions[of] for key, x in contenders.items() if of in x.functions}
        figures = {}
        for key, function in functions.items():
            with selected(work, key[1]):
                if of not in (FORWARD, BOTH):
                    function()  # the first step allocates the state of the optimizer
                figures[key] = {'mib': mebibytes(function, args.device), **on_device(function)}
        within = lambda key: selected(work, key[1])  # noqa: E731
        times = seconds(functions, args.repeats, each_twice=of in (FORWARD, BOTH), within=within)
        for key, time in times.items():
            figures[key]['s'] = time
        for _, backend in [key for key in functions if key[0] == OURS]:
            for peer, _ in [key for key in functions if key[0] != OURS]:
                ours, theirs = figures[OURS, backend], figures[peer, 'auto']
                time_target, memory_target = work.targets.get((peer, of), (None, None))
                records.append({
                    'workload': name,
                    'title': work.title,
                    'pass': of,
                    'dtype': dtype,
                    'device': args.device,
                    'backend': backend,
                    'kernel': backend in ('native', 'triton') or (backend == 'auto' and bool(ran)),
                    **{f'ours_{key}': value for key, value in ours.items()},
                    'peer': peer,
                    **{f'peer_{key}': value for key, value in theirs.items()},
                    'time_ratio': ours['s'] / theirs['s'],
                    'time_target': time_target,
                    'memory_ratio': ours['mib'] / theirs['mib'] if theirs['mib'] > 0.1 else None,
                    'memory_target': memory_target,
                })  # fmt: skip
    return records


def measure_each(build: Builder, name: str, args: argparse.Namespace) -> list[dict]:
    """Measure a workload in each dtype."""
    records = []
    for dtype in args.dtypes:
        try:
            records += measure(build, name, dtype, args)
        except Exception as error:
            records.append(failure(name, dtype, error))
    return records


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context('spawn')) as pool:
        return pool.submit(function, *arguments).result()


def same_line(record: dict) -> tuple:
    """Return the key that identifies a record within a run."""
    return tuple(record.get(key) for key in ('workload', 'pass', 'peer', 'dtype', 'device', 'backend'))


HEADER = """\
| | dtype | pass | backend | compared with | ours, theirs: s | ratio (target) | ours, theirs: MiB | ratio (target) |
|---|---|---|---|---|---|---|---|---|"""


def table_row(record: dict, before: dict | None) -> str:
    """Return a record as a row of a Markdown table, with the ratios of the same record of an earlier run."""

    def number(x: float | None) -> str:
        return '–' if x is None else f'{x:.3g}' if x < 100 else f'{x:.0f}'

    if 'error' in record:
        return f'| {record["workload"]} | {record.get("dtype", "")} | {record["error"][:300]} |'
    pairs = [f'{number(record[f"ours_{unit}"])}, {number(record[f"peer_{unit}"])}' for unit in ('s', 'mib')]
    ratios = [
        number(record[f'{of}_ratio']) + (f' ({record[f"{of}_target"]})' if record[f'{of}_target'] else '')
        for of in ('time', 'memory')
    ]
    if before:
        ratios = [f'{now}; was {number(before[f"{of}_ratio"])}' for now, of in zip(ratios, ('time', 'memory'))]
    backend = record['backend'] + ('' if record['kernel'] or record['backend'] != 'auto' else ' (no kernel)')
    cells = (record['workload'], record['dtype'], record['pass'], backend, record['peer'])
    return f'| {" | ".join((*cells, pairs[0], ratios[0], pairs[1], ratios[1]))} |'


def parser(description: str | None, repeats: int = 3) -> argparse.ArgumentParser:
    """Return a parser of the options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', nargs='+', metavar='NAME', help='workloads, or prefixes of their names')
    names = [str(x).removeprefix('torch.') for x in TOLERANCES]
    parser.add_argument('--dtypes', nargs='+', choices=names, default=['float32'])
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--backends', nargs='+', choices=dispatch.BACKENDS, default=['auto'])
    parser.add_argument('--repeats', type=int, default=repeats, help='measurements of each call; default: %(default)s')
    parser.add_argument('--small', action='store_true', help='small maps, to try the command')
    parser.add_argument('--full', action='store_true', help='measure the slow peers, too')
    parser.add_argument('--json', type=Path, help='write the records to this file, after each workload')
    parser.add_argument('--compare', type=Path, metavar='FILE', help='add the ratios in this file of --json')
    return parser


def run(parser: argparse.ArgumentParser, args: argparse.Namespace, table: dict[str, Builder]) -> int:
    """Measure workloads, print a table, and write the records. Return the exit code: 1 if one failed."""
    only = args.only or list(table)
    prefixes = tuple(start for start in only if start not in table)
    names = [name for name in table if name in only or name.startswith(prefixes)]
    unknown = [start for start in prefixes if not any(name.startswith(start) for name in names)]
    if unknown:
        parser.error(f'--only: no workload begins with {", ".join(unknown)}; choose from {", ".join(table)}')
    for key in ('torch', 'CPU threads', 'instruction set', 'native operators'):
        print(f'{key}: {collect_env().get(key)}')
    earlier = json.loads(args.compare.read_text(encoding='utf-8')) if args.compare else []
    before = {same_line(record): record for record in earlier}
    records: list[dict] = []
    print(HEADER, flush=True)
    for name in track(names, 'workloads', console=Console(stderr=True)):
        try:
            found = apart(measure_each, table[name], name, args)
        except BrokenProcessPool as error:
            found = [{'workload': name, 'error': str(error)}]
        for record in found:
            print(table_row(record, before.get(same_line(record))), flush=True)
        records += found
        if args.json:
            write_text(args.json, json.dumps(records, indent=1, ensure_ascii=False) + '\n')
    return int(any('error' in record for record in records))


def scaling(
    path: Path, measured: Callable[[int], dict[str, Callable[[], Any]]], sizes: dict[int, int], of: str, args: Any
) -> None:
    """Print and draw time and memory of calls over a size.

    Args:
        path (Path): the figure.
        measured (Callable): returns what is measured at a size, by name.
        sizes (dict): the sizes, and where they are on the axis.
        of (str): what the axis shows, and after a line break the title.
        args (Namespace): has ``device`` and ``repeats``.
    """
    import matplotlib

    matplotlib.use('Agg')  # requires no screen
    from matplotlib import pyplot

    points: dict[str, list[tuple[int, float, float]]] = {}
    label, title = of.split('\n')
    print(f'| | {label} | ms | MiB |\n|---|---|---|---|', flush=True)
    for size, x in sizes.items():
        calls = measured(size)
        times = seconds(calls, args.repeats, each_twice=True)
        for name, call in calls.items():
            points.setdefault(name, []).append((x, 1e3 * times[name], mebibytes(call, args.device)))
            print('| {} | {} | {:.3g} | {:.0f} |'.format(name, *points[name][-1]), flush=True)
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), layout='constrained')
    for axis, column, name in ((axes[0], 1, 'time, ms'), (axes[1], 2, 'extra memory, MiB')):
        for who, those in points.items():
            axis.plot([p[0] for p in those], [p[column] for p in those], 'o-', label=who)
        axis.set(xscale='log', yscale='log', xlabel=label, ylabel=name)
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
