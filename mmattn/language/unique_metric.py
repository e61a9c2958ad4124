"""Base class of metrics that count every sample once, however samples are divided into processes and batches."""

import json
from pathlib import Path
from typing import Any

from mmengine.dist import all_gather_object, get_dist_info
from mmengine.evaluator import BaseMetric

from mmattn.utils.files import check_writable, write_text


class UniqueMetric(BaseMetric):
    """A metric that counts every sample of all processes once, in the order of :attr:`key`.

    mmengine assumes that process r has every n-th sample. But batches of similar lengths differ in size, and samplers
    repeat samples.

    Args:
        output_dir (str, optional): folder for files. Defaults to None, no files.
        keep_results (bool): no effect. ``tools/test.py --out`` sets it, as for mmseg's metrics. Defaults to False.
        **kwargs: ``collect_device``, ``prefix`` and so on, as in mmengine's ``BaseMetric``.
    """

    metric_names: tuple[str, ...]  # what it computes; a name may go on after a slash
    key: str  # entry of a result that tells samples apart and orders them
    results: list[dict[str, Any]]

    def __init__(self, output_dir: str | None = None, keep_results: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.output_dir = None if output_dir is None else Path(output_dir)
        if output_dir is not None:
            check_writable(output_dir)

    def write(self, name: str, content: Any) -> None:
        """Write a JSON file into ``output_dir``, if there is one."""
        if self.output_dir is not None:
            write_text(self.output_dir / name, json.dumps(content, ensure_ascii=False))

    def evaluate(self, size: int) -> dict:
        """Compute the metrics of the samples of all processes."""
        by_key = {result[self.key]: result for part in all_gather_object(self.results) for result in part}
        if len(by_key) != size:
            raise ValueError(
                f'{type(self).__name__}: {len(by_key)} predictions with different {self.key!r}, but the data set has '
                f'{size} samples'
            )
        rank, world_size = get_dist_info()
        ordered = [by_key[key] for key in sorted(by_key)]
        share = -(-len(ordered) // world_size)  # the same for all processes; the repeated ones at the end are not used
        self.results = (ordered * world_size)[: share * world_size][rank::world_size]
        return super().evaluate(size)
