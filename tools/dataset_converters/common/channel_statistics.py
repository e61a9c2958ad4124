"""Mean and standard deviation of the channels of images."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mmattn.utils.channels import read_channels, without_data


class Statistics(NamedTuple):
    """Mean and deviation of each channel over images."""

    mean: list[float]
    std: list[float]


def measure_channels(paths: Iterable[str | Path]) -> Statistics:
    """Measure mean and standard deviation of each channel over all pixels of images that have data.

    Raises:
        ValueError: an image has another number of channels than the first one.
    """
    count, channels = 0, None
    sums: Any = 0.0
    squares: Any = 0.0
    for path in paths:
        pixels = read_channels(path, channels).astype(np.float64)
        channels = pixels.shape[2]
        without = without_data(path)
        pixels = pixels.reshape(-1, channels) if without is None else pixels[~without]
        count += len(pixels)
        sums = sums + pixels.sum(0)
        squares = squares + (pixels**2).sum(0)
    mean = sums / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    std[std < 1e-6 * np.maximum(np.abs(mean), 1e-6)] = 1.0  # a constant channel
    return Statistics(*([float(f'{value:.6g}') for value in values] for values in (mean, std)))
