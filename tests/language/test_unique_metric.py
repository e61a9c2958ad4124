"""Samples that processes have by chance, some of them twice, are divided so that mmengine counts each once."""

import pytest
from mmengine.evaluator import BaseMetric

from mmattn.language import unique_metric


class Names(unique_metric.UniqueMetric):
    key = 'name'

    def process(self, data_batch, data_samples):
        raise NotImplementedError

    def compute_metrics(self, results):
        raise NotImplementedError


def evaluated(monkeypatch, parts, size):
    """The samples that mmengine counts: one of each process in turn, as many as the data set has."""
    shares = []
    monkeypatch.setattr(unique_metric, 'all_gather_object', lambda own: parts)
    monkeypatch.setattr(BaseMetric, 'evaluate', lambda metric, size: shares.append(metric.results))
    for rank, part in enumerate(parts):
        monkeypatch.setattr(unique_metric, 'get_dist_info', lambda rank=rank: (rank, len(parts)))
        metric = Names()
        metric.results = part
        metric.evaluate(size)
    assert len({len(share) for share in shares}) == 1  # mmengine's sampler gives every process as many
    return [sample['name'] for turn in zip(*shares) for sample in turn][:size]


@pytest.mark.parametrize('parts', ['edcba', 'ec|adb|e', 'cab|b|dd|e', 'e|d|c|b|a|e|d'])
def test_every_sample_counts_once_and_in_order(monkeypatch, parts):
    parts = [[dict(name=name) for name in part] for part in parts.split('|')]
    assert evaluated(monkeypatch, parts, 5) == [*'abcde']
    with pytest.raises(ValueError, match='5 predictions'):
        evaluated(monkeypatch, parts, 6)
