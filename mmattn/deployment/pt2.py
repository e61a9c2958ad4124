"""Files of ``torch.export``, which keep the operators of mmattn. Loading them requires neither mmseg nor the config."""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

import mmattn.ops  # noqa: F401  (declares the operators)
from mmattn.utils.faults import reading
from mmattn.utils.files import atomic_write

FILE = 'mmattn.json'  # of the metadata within the file


def write_pt2(program: ExportedProgram, path: str | Path, metadata: dict[str, Any]) -> None:
    """Write a program for :func:`load_pt2`, with its metadata. The file is written atomically."""
    content = BytesIO()  # torch aborts the process if a write fails
    with quiet():
        torch.export.save(program, content, extra_files={FILE: json.dumps(metadata)})
    with atomic_write(path) as temporary:
        temporary.write_bytes(content.getbuffer())


def load_pt2(path: str | Path) -> tuple[nn.Module, dict[str, Any]]:
    """Load a file of :func:`write_pt2`. Its operators run natively where a kernel supports the tensors.

    Load only files whose source you trust: a program of ``torch.export`` can run any code when PyTorch loads it.

    Args:
        path (str or Path): the file.

    Returns:
        tuple[nn.Module, dict]: the network, from float32 images ``(B, 3, H, W)`` on the CPU to logits, and the
            metadata.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file was not written by :func:`write_pt2`.
    """
    extra = {FILE: ''}
    with reading(path, 'not a file of torch.export'), quiet():
        program = torch.export.load(str(path), extra_files=extra)
    if not extra[FILE]:
        raise ValueError(f'{path} has no {FILE}: tools/deployment/export.py did not write it')
    return program.module(), json.loads(extra[FILE])


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress messages of the exporters that users cannot act on."""
    logger = logging.getLogger('torch.onnx')
    level = logger.level
    logger.setLevel(logging.ERROR)  # torchvision is not installed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', FutureWarning)
            warnings.simplefilter('ignore', UserWarning)
            yield
    finally:
        logger.setLevel(level)
