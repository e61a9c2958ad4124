"""Reduce a checkpoint to what inference needs, and name it by its hash.

    python tools/misc/publish_model.py IN.pth OUT.pth    # writes OUT-<first 8 digits of its sha256>.pth

Weights and the meta information of the data set stay; optimizer, schedules, logs and random states go.
"""

import argparse
import hashlib
import io
from pathlib import Path

from mmattn.utils.command import run

import torch

from mmattn.engine import check_checkpoint
from mmattn.utils.files import atomic_write, check_writable


def publish(source: Path, target: Path) -> Path:
    """Write the reduced checkpoint beside ``target`` and return its path.

    Raises:
        ValueError: ``source`` is not a checkpoint, or holds no ``state_dict``.
        OSError: ``source`` cannot be read, or the folder of ``target`` cannot be written to.
    """
    check_checkpoint(source)
    check_writable(target.parent)
    checkpoint = torch.load(source, map_location='cpu', weights_only=False)
    if not isinstance(checkpoint, dict) or 'state_dict' not in checkpoint:
        found = sorted(map(str, checkpoint)) if isinstance(checkpoint, dict) else f'a {type(checkpoint).__name__}'
        raise ValueError(f"{source} holds no 'state_dict' but {found}")
    meta = {
        key: checkpoint.get('meta', {})[key]
        for key in ('dataset_meta', 'cfg', 'epoch', 'iter')
        if key in checkpoint.get('meta', {})
    }
    content = io.BytesIO()
    torch.save(dict(meta=meta, state_dict=checkpoint['state_dict']), content)
    digest = hashlib.sha256(content.getbuffer()).hexdigest()
    published = target.with_name(f'{target.stem}-{digest[:8]}.pth')
    with atomic_write(published) as temporary:
        temporary.write_bytes(content.getbuffer())
    return published


def main() -> None:
    """Publish and print the new file's path."""
    parser = argparse.ArgumentParser(description='Prepare a checkpoint for publication')
    parser.add_argument('in_file', type=Path, help='checkpoint')
    parser.add_argument('out_file', type=Path, help='path of the new one; -<hash>.pth replaces its suffix')
    args = parser.parse_args()
    print(publish(args.in_file, args.out_file))


if __name__ == '__main__':
    run(main)
