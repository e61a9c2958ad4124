"""Run the same images in PyTorch and in ONNX Runtime, each in a process of its own, and compare the logits."""

import math
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from warnings import catch_warnings, simplefilter

import numpy as np

MIB = 2**20


class Run(NamedTuple):
    """The result of a network for one image."""

    logits: np.ndarray  # float32 (B, C, H, W)
    seconds: float  # median, after one run
    mebibytes: (
        float  # peak of the process beyond its memory with the loaded network; NaN where Linux does not report it
    )


class Comparison(NamedTuple):
    """The agreement of two results."""

    difference: float  # largest absolute difference of logits
    span: float  # largest minus smallest logit of the first
    equal: float  # share of pixels with equal labels, 0 to 1


def compare(first: np.ndarray, second: np.ndarray, threshold: float | None = None) -> Comparison:
    """Compare two arrays of logits.

    Args:
        first, second (np.ndarray): float ``(B, C, H, W)``, of the same shape.
        threshold (float, optional): of the sigmoid of a single logit. None: the largest logit determines the label.

    Example:
        >>> compare(np.array([[[[1.0]], [[3.0]]]]), np.array([[[[1.0]], [[2.5]]]]))
        Comparison(difference=0.5, span=2.0, equal=1.0)
    """
    if first.shape != second.shape:
        raise ValueError(f'logits must have one shape; got {first.shape} and {second.shape}')
    labels = [x.argmax(1) if threshold is None else 1 / (1 + np.exp(-x)) > threshold for x in (first, second)]
    return Comparison(
        float(np.abs(first - second).max()), float(first.max() - first.min()), float((labels[0] == labels[1]).mean())
    )


def run_torch(load: Callable[[], Any], images: list[np.ndarray], repeats: int = 3) -> list[Run]:
    """Run a network in PyTorch, with the threads that torch uses.

    Args:
        load (Callable): returns the network, a function of a tensor ``(B, 3, H, W)``. It must be picklable.
        images (list of np.ndarray): float32 ``(B, 3, H, W)``.
        repeats (int): number of timed runs. Defaults to 3.
    """
    return _in_process(_torch, load, images, repeats)


def run_onnx(path: str | Path, images: list[np.ndarray], threads: int, repeats: int = 3) -> list[Run]:
    """Run an ONNX file, whose first output is the logits, in ONNX Runtime on the CPU with this number of ``threads``.

    ``images`` and ``repeats`` are as in :func:`run_torch`.
    """
    return _in_process(_onnx, (str(path), threads), images, repeats)


def _torch(load: Callable[[], Any]) -> Callable[[np.ndarray], np.ndarray]:
    import torch

    network = load()

    @torch.no_grad()
    def run(image: np.ndarray) -> np.ndarray:
        return network(torch.from_numpy(image)).numpy()

    return run


def _onnx(path_and_threads: tuple[str, int]) -> Callable[[np.ndarray], np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = path_and_threads[1]
    session = onnxruntime.InferenceSession(path_and_threads[0], options, providers=['CPUExecutionProvider'])
    (image,) = session.get_inputs()
    return lambda x: session.run(None, {image.name: x})[0]


def _in_process(prepare: Callable, argument: Any, images: list[np.ndarray], repeats: int) -> list[Run]:
    from multiprocessing import get_context

    runs = []  # a fresh process per image: memory that an earlier run has left would hide the next run's
    for image in images:
        with get_context('spawn').Pool(1) as pool:
            runs.append(pool.apply(_measure, (prepare, argument, image, repeats)))
    return runs


def _measure(prepare: Callable, argument: Any, image: np.ndarray, repeats: int) -> Run:
    with redirect_stdout(StringIO()), catch_warnings():  # the export has printed the same messages
        simplefilter('ignore')
        run = prepare(argument)
    before = _memory_at_start()
    logits = run(image)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run(image)
        seconds.append(time.perf_counter() - start)
    return Run(logits, median(seconds), (_memory('VmHWM') - before) / MIB)


def _memory_at_start() -> float:
    try:
        # forgets the peak of loading
        Path('/proc/self/clear_refs').write_text('5', encoding='utf-8')
    except OSError:  # not Linux, or a container that forbids it
        return math.nan
    return _memory('VmRSS')


def _memory(field: str) -> float:
    try:
        status = Path('/proc/self/status').read_text(encoding='utf-8')
    except OSError:
        return math.nan
    line = next(line for line in status.splitlines() if line.startswith(f'{field}:'))
    return int(line.split()[1]) * 1024
