"""Merge the checkpoints of captioning models into one for a ``mmattn.CaptionEnsemble``.

    python tools/misc/ensemble_checkpoints.py a.pth b.pth c.pth --out ensemble.pth

The order is that of ``members`` in the config. The vocabularies must be equal; the meta information is that of the
first checkpoint. Optimizer and schedules are not kept.

Args:
    out: path of the new checkpoint; an existing file is an error
"""

from collections.abc import Sequence
from pathlib import Path

from average_checkpoints import read_checkpoint, write_checkpoint

from mmattn.utils.arguments import command
from mmattn.utils.command import run


def ensemble(paths: Sequence[Path]) -> dict:
    """Return the checkpoint of the ensemble."""
    checkpoints = [read_checkpoint(path) for path in paths]
    symbols = []
    for path, checkpoint in zip(paths, checkpoints):
        meta = (checkpoint.get('meta') or {}).get('dataset_meta') or {}
        if 'symbols' not in meta:
            raise ValueError(
                f'{path}: meta.dataset_meta has no symbols; a checkpoint that was trained with '
                'mmattn.COCOCaptionDataset has them'
            )
        if other := [name for name in ('codes', 'answers') if name in meta]:
            raise ValueError(
                f'{path} is not of a captioning model: meta.dataset_meta has {", ".join(other)}, which translation and '
                'visual questions have'
            )
        symbols.append(list(meta['symbols']))
    for path, listed in zip(paths, symbols):
        if listed != symbols[0]:
            raise ValueError(
                f'{path} and {paths[0]} have different vocabularies, of {len(listed)} and {len(symbols[0])} symbols'
            )
    state = {
        f'members.{number}.{name}': x
        for number, checkpoint in enumerate(checkpoints)
        for name, x in checkpoint['state_dict'].items()
    }
    return dict(meta=checkpoints[0]['meta'], state_dict=state)


@command
def main(checkpoints: list[Path], *, out: Path) -> None:
    write_checkpoint(out, checkpoints, ensemble)
    print(f'{out}: the ensemble of {", ".join(map(str, checkpoints))}')


if __name__ == '__main__':
    run(main)
