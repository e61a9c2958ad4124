"""Shared parts of the short trainings: configs instead of a paper's rows, and pictures in a sheet."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw

from ..protocol import Protocol, shipped
from ..reproduce import Examine, reproduce, run_of
from ..runs import Run
from ..tables import Row


class ShortRuns(NamedTuple):
    """Short trainings of several methods on one data set.

    Args:
        dataset (str): a file of _base_/datasets.
        methods (dict[str, str]): configs, relative to configs/, by name.
        baseline (str): the row with which the others are compared.
        draw (Callable): function that writes pictures of finished runs to a folder.
        examine (Callable, optional): see :func:`reproduce`.
    """

    dataset: str
    methods: dict[str, str]
    baseline: str
    draw: Callable[[list[Run], Path], None]
    examine: Examine | None = None

    def run(
        self, seeds: Sequence[int], work_dir: Path, data_root: Path | None, iterations: int | None, jobs: int
    ) -> str:
        """Train the missing runs, write the report, and draw pictures for the runs of the first seed.

        Args:
            seeds (sequence of int): seeds of the trainings.
            work_dir (Path): folder for the results of :func:`reproduce` and the pictures.
            data_root (Path or None): folder of the data; None is the folder in the config.
            iterations (int or None): length of a run; None is that of its config.
            jobs (int): simultaneous runs; they share the cores.

        Returns:
            str: the table, in Markdown.
        """
        rows = [
            Row(
                '',
                order,
                name,
                '',
                None if name == self.baseline else self.baseline,
                {},
                self.dataset,
                shipped(config).train_dataloader.batch_size,
                [config],
                [],
                {},
            )
            for order, (name, config) in enumerate(self.methods.items())
        ]
        protocol = Protocol(self.dataset, iterations)
        text = reproduce(rows, protocol, work_dir, data_root=data_root, seeds=seeds, jobs=jobs, examine=self.examine)
        written = {name: work_dir / 'configs' / Path(config).name for name, config in self.methods.items()}
        self.draw([run_of(name, path, seeds[0], work_dir) for name, path in written.items()], work_dir)
        return text


def sheet(columns: list[list[Image.Image]], names: list[str], path: Path, height: int = 150) -> None:
    """Arrange columns of images, all of one height in pixels, with a name above each row."""
    gap = 4
    widths = [column[0].width * height // column[0].height for column in columns]
    canvas = Image.new('RGB', (sum(widths) + gap * (len(widths) + 1), (height + 18) * len(names) + gap), 'white')
    for row, name in enumerate(names):
        ImageDraw.Draw(canvas).text((gap, row * (height + 18) + gap), name, fill='black')
        x = gap
        for column, width in zip(columns, widths):
            canvas.paste(column[row].convert('RGB').resize((width, height)), (x, row * (height + 18) + 18))
            x += width + gap
    canvas.save(path)
