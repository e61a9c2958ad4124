"""Reduce a checkpoint to what inference requires, and add its hash to its name.

    python tools/misc/publish_model.py IN.pth OUT.pth    # writes OUT-<first 8 digits of its sha256>.pth

Weights and meta information (data set, config, epoch, iteration) are kept; optimizer, schedules, logs and random states
are removed. A file of weights alone is hashed and named in the same way.
"""

import hashlib
import io
from pathlib import Path

import torch

from mmattn.engine import read_checkpoint
from mmattn.utils.arguments import command
from mmattn.utils.command import run
from mmattn.utils.faults import shorten
from mmattn.utils.files import atomic_write, check_writable


def publish(source: Path, target: Path) -> Path:
    """Write the reduced checkpoint to the folder of ``target``. Return its path."""
    check_writable(target.parent)
    checkpoint = read_checkpoint(source)
    if isinstance(checkpoint, dict) and checkpoint and all(isinstance(x, torch.Tensor) for x in checkpoint.values()):
        checkpoint = dict(state_dict=checkpoint)
    if not isinstance(checkpoint, dict) or 'state_dict' not in checkpoint:
        content = (
            shorten(map(str, checkpoint), 5) if isinstance(checkpoint, dict) else [f'a {type(checkpoint).__name__}']
        )
        raise ValueError(f"{source} has no 'state_dict'; it contains {', '.join(content)}")
    given = checkpoint.get('meta') or {}
    meta = {key: given[key] for key in ('dataset_meta', 'cfg', 'epoch', 'iter') if key in given}
    content = io.BytesIO()
    torch.save(dict(meta=meta, state_dict=checkpoint['state_dict']), content)
    digest = hashlib.sha256(content.getbuffer()).hexdigest()
    name = target.stem if target.suffix in ('.pth', '.pt') else target.name  # a version has dots, too
    published = target.with_name(f'{name}-{digest[:8]}.pth')
    with atomic_write(published) as temporary:
        temporary.write_bytes(content.getbuffer())
    return published


@command
def main(in_file: Path, out_file: Path) -> None:
    print(publish(in_file, out_file))


if __name__ == '__main__':
    run(main)
