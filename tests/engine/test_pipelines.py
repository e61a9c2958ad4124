"""The transforms of test images without labels."""

import pytest
from mmcv.transforms import LoadImageFromFile
from mmengine.config import Config

from mmattn.engine import inference_pipeline


@pytest.mark.parametrize('wrapped', [None, 'RepeatDataset', 'ConcatDataset'])
def test_pipeline_without_labels(wrapped):
    inner = dict(type='CustomDataset', pipeline=[dict(type=LoadImageFromFile), dict(type='LoadAnnotations')])
    dataset = {
        None: inner,
        'RepeatDataset': dict(type='RepeatDataset', dataset=inner, times=2),
        'ConcatDataset': dict(type='ConcatDataset', datasets=[inner, dict(type='Other')]),
    }[wrapped]
    pipeline = inference_pipeline(Config(dict(test_dataloader=dict(dataset=dataset))))
    assert [type(transform) for transform in pipeline.transforms] == [LoadImageFromFile]


def test_a_data_set_without_pipeline_is_named():
    with pytest.raises(ValueError, match='VOSDataset has no pipeline'):
        inference_pipeline(Config(dict(test_dataloader=dict(dataset=dict(type='mmattn.VOSDataset')))))
