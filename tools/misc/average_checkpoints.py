"""Average the weights of several checkpoints of a run, such as the last epochs.

    python tools/misc/average_checkpoints.py WORK_DIR --last 10 --out average.pth
    python tools/misc/average_checkpoints.py a.pth b.pth c.pth --out average.pth

The papers on translation test such an average. Floating-point weights are averaged in float64; other entries, such as
counters, are those of the last checkpoint, as is the meta information. Optimizer and schedules are not kept.

Args:
    checkpoints: checkpoints, or, with --last, a work dir
    last: average the latest checkpoints of the work dir, this many
    out: path of the new checkpoint; an existing file is an error
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from mmattn import engine
from mmattn.utils.arguments import command
from mmattn.utils.command import run
from mmattn.utils.files import atomic_write, check_writable


def last_checkpoints(work_dir: Path, count: int) -> list[Path]:
    """Return the ``count`` latest checkpoints of a work dir, the earliest first."""
    series: dict[str, dict[int, Path]] = {}
    for path in work_dir.iterdir():
        if match := re.fullmatch(r'(iter|epoch)_(\d+)\.pth', path.name):
            series.setdefault(match[1], {})[int(match[2])] = path
    if len(series) > 1:
        raise ValueError(f'{work_dir} has checkpoints iter_*.pth and epoch_*.pth: name the files')
    numbered = next(iter(series.values()), {})
    if len(numbered) < count:
        raise FileNotFoundError(
            f'{work_dir} has {len(numbered)} checkpoints iter_*.pth or epoch_*.pth; --last requests {count}: raise '
            'default_hooks.checkpoint.max_keep_ckpts of the config'
        )
    return [numbered[number] for number in sorted(numbered)[-count:]]


def read_checkpoint(path: Path) -> dict:
    """Return a checkpoint, on the CPU."""
    checkpoint = engine.read_checkpoint(path)
    if not isinstance(checkpoint, dict) or 'state_dict' not in checkpoint:
        raise ValueError(f"{path} has no 'state_dict'")
    return checkpoint


def write_checkpoint(out: Path, paths: Sequence[Path], make: Callable[[Sequence[Path]], dict]) -> None:
    """Write the checkpoint that ``make`` returns for some others."""
    if out.exists():
        raise FileExistsError(f'{out} exists already')
    check_writable(out.parent)
    averaged = make(paths)
    with atomic_write(out) as temporary:
        torch.save(averaged, temporary)


def average(paths: Sequence[Path]) -> dict:
    """Return a checkpoint with the mean weights."""
    total: dict[str, torch.Tensor] = {}
    checkpoint: dict = {}
    first: dict = {}
    for path in paths:
        checkpoint = read_checkpoint(path)
        weights, meta = checkpoint['state_dict'], checkpoint.get('meta') or {}
        first = first or meta
        if total and {name: x.shape for name, x in weights.items()} != {name: x.shape for name, x in total.items()}:
            raise ValueError(f'{path} and {paths[0]} have different weights')
        if differences := training_differences(meta, first):
            raise ValueError(f'{path} and {paths[0]} are of different trainings: {"; ".join(differences)}')
        for name, x in weights.items():
            if x.is_floating_point():
                total[name] = x.double() + total[name] if name in total else x.double()
            else:
                total[name] = x
    state = {
        name: (total[name] / len(paths)).to(x.dtype) if x.is_floating_point() else x
        for name, x in checkpoint['state_dict'].items()
    }
    return dict(meta=checkpoint.get('meta', {}), state_dict=state)


def training_differences(meta: dict, first: dict) -> list[str]:
    """Return what differs in the data sets of two trainings; weights of both may have the same shapes."""
    data, first_data = (checkpoint_meta.get('dataset_meta') or {} for checkpoint_meta in (meta, first))
    # A training that another version began does not have all names.
    names = [name for name in first_data if name in data and repr(data[name]) != repr(first_data[name])]
    return [f'dataset_meta.{name} of the data' for name in names]


@command
def main(checkpoints: list[Path], *, last: int | None = None, out: Path) -> None:
    if last is not None:
        if len(checkpoints) != 1 or not checkpoints[0].is_dir():
            raise NotADirectoryError(f'--last requires one work dir; got {" ".join(map(str, checkpoints))}')
        if last < 1:
            raise ValueError(f'--last must be at least 1; got {last}')
        checkpoints = last_checkpoints(checkpoints[0], last)
    write_checkpoint(out, checkpoints, average)
    print(f'{out}: the mean of {", ".join(map(str, checkpoints))}')


if __name__ == '__main__':
    run(main)
