"""A sheet of pictures: a row per input, a column per model."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .figure import rendered


def comparison_sheet(
    rows: Mapping[str, Sequence[np.ndarray]],
    columns: Sequence[str],
    colours: Mapping[str, Sequence[int]] | None = None,
) -> np.ndarray:
    """Arrange pictures in a table, with the names of rows and columns and a legend of colours.

    Args:
        rows (mapping of str to sequence of np.ndarray): one row per input: uint8 ``(H, W, 3)``, RGB, or ``(H, W, 1)``
            for each column. Pictures of a row have the same height and width.
        columns (sequence of str): names of the columns.
        colours (mapping of str to sequence of int, optional): red, green and blue of each name in the legend, 0 to 255.
            Defaults to no legend.

    Returns:
        np.ndarray: uint8 ``(height, width, 3)``, RGB.
    """
    heights = [pictures[0].shape[0] / pictures[0].shape[1] for pictures in rows.values()]
    legend = 0.25 * -(-len(colours) // (2 * len(columns))) + 0.2 if colours else 0
    figure = Figure(
        (2.2 * len(columns) + 0.2, 2.2 * sum(heights) + 0.25 * len(rows) + 0.4 + legend), layout='constrained'
    )
    axes = figure.subplots(len(rows), len(columns), squeeze=False, height_ratios=heights)
    for (name, pictures), row in zip(rows.items(), axes):
        for picture, axis in zip(pictures, row):
            axis.imshow(np.broadcast_to(picture, (*picture.shape[:2], 3)))
            axis.set(xticks=[], yticks=[])
        row[0].set_xlabel(name, fontsize=8)
    for column, axis in zip(columns, axes[0]):
        axis.set_title(column, fontsize=9, wrap=True)
    if colours:
        patches = [
            Patch(color=tuple(x / 255 for x in colour), label=name)  # type: ignore[arg-type]
            for name, colour in colours.items()
        ]
        figure.legend(handles=patches, loc='outside lower center', ncols=2 * len(columns), fontsize=8, frameon=False)
    return rendered(figure)
