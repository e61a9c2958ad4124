"""``torch.export`` of a network, and ONNX files."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from mmattn._compat import resize_without_warning
from mmattn.utils.files import atomic_write

from .metadata import KEY
from .pt2 import quiet

OPSET = 18
MIN_TORCH = (2, 13)  # the version that the exports were tested with
MAX_WEIGHTS = 1536  # MiB: torch would write more to a second file, which is neither written atomically nor found later
MIN_SIDE = 64  # of a dynamic image, in pixels: torch.export treats maps of one position, of smaller images, separately


def check_requirements(*packages: str) -> None:
    """Check the torch version and the packages that exporting requires. ``packages`` belong to the extra ``export``.

    Raises:
        ImportError: torch is too old, or a package is not installed. The message gives the command that installs it.

    Example:
        >>> check_requirements('torch')
    """
    if tuple(map(int, torch.__version__.split('.')[:2])) < MIN_TORCH:
        raise ImportError(f'exporting requires torch {".".join(map(str, MIN_TORCH))} or later; got {torch.__version__}')
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ImportError(f"{' and '.join(missing)} not installed: pip install 'mmattn[export]'")


def export_network(network: nn.Module, input_size: tuple[int, int] | None = None) -> ExportedProgram:
    """Trace a network that maps images ``(B, 3, H, W)`` to logits. The operators of mmattn stay operators.

    Args:
        network (nn.Module): in evaluation mode, on the CPU, such as :class:`LogitsNetwork`.
        input_size (tuple[int, int], optional): height and width of the only image, B = 1. With None, batch, height and
            width are dynamic, from 1 and ``MIN_SIDE``.

    Returns:
        ExportedProgram: its argument is 'image'.

    Raises:
        RuntimeError: the network depends on the size of the image in a way that the file cannot express.
    """
    check_requirements()
    if input_size is None:
        shape = 2, 3, 2 * MIN_SIDE + 1, 3 * MIN_SIDE + 3
        dynamic: Any = {
            'image': {0: Dim('batch', min=1), 2: Dim('height', min=MIN_SIDE), 3: Dim('width', min=MIN_SIDE)}
        }
    else:
        shape, dynamic = (1, 3, *input_size), None
    with torch.no_grad(), resize_without_warning(), quiet():
        return torch.export.export(
            network,
            (torch.zeros(shape),),
            dynamic_shapes=dynamic,
            strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,
        )


def write_onnx(program: ExportedProgram, path: str | Path, metadata: dict[str, Any]) -> None:
    """Write a program as ONNX, with the compositions of its operators. The file is written atomically.

    The file uses opset 18 and no operator of other domains. Its input is 'image', its output 'logits'. Dynamic axes are
    named 'batch', 'height' and 'width'. The JSON text of its metadata is under the key 'mmattn'.

    Raises:
        ImportError: torch is too old, or a package of the extra ``export`` is not installed.
        OSError: the file cannot be written.
        ValueError: the weights take more than 1,536 MiB.
        RuntimeError: ONNX has no equivalent of an operation.
    """
    check_requirements('onnx', 'onnxscript')
    weights = sum(x.nbytes for x in program.state_dict.values()) / 2**20
    if weights > MAX_WEIGHTS:
        raise ValueError(f'weights must take at most {MAX_WEIGHTS} MiB in one ONNX file; got {weights:.0f} MiB')
    with quiet():
        onnx_program = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            input_names=['image'],
            output_names=['logits'],
            dynamic_shapes={'image': {0: 'batch', 2: 'height', 3: 'width'}},  # names of the axes that are dynamic
            verbose=False,
        )
    assert onnx_program is not None
    onnx_program.model.metadata_props[KEY] = json.dumps(metadata)
    with atomic_write(path) as temporary:
        onnx_program.save(temporary)
