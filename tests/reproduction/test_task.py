"""The metric of a data set that ``--dataset FILE`` names: a scope or a list of one is read, another one is an error."""

import pytest

from mmattn.utils import config_path
from reproduction.plan import plan
from reproduction.protocol import Protocol, read_data
from reproduction.tables import read_tables
from reproduction.task import NoTruthError, ProtocolError, find_metrics

IOU = "dict(type='{}IoUMetric', iou_metrics=['mIoU'])"


@pytest.fixture
def metrics(tmp_path):
    """Return the metrics of a row of Table 3.2 on CamVid in a folder of one's own, with further lines in its file."""

    def read(lines):
        file = tmp_path / 'mine.py'
        file.write_text(
            f'_base_ = [{str(config_path("_base_/datasets/camvid.py"))!r}]\ndata_root = {str(tmp_path)!r}\n{lines}\n'
        )
        data = read_data(str(file), tmp_path)
        method, *_ = plan(read_tables()['3.2'], Protocol(str(file)), data, ['NL'], with_baselines=False)
        return find_metrics(method.configs[-1]), method.configs[-1].test_evaluator

    return read


@pytest.mark.parametrize('evaluator', [IOU.format('mmseg.'), f'[{IOU.format("")}]', f'[{IOU.format("mmseg.")}]'])
def test_a_metric_with_a_scope_or_in_a_list_is_read(evaluator, metrics):
    (task, keys, factor), run = metrics(f'val_evaluator = test_evaluator = {evaluator}')
    assert (task, [*keys], factor) == ('mmseg', ['mIoU', 'mAcc', 'aAcc'], 1)
    assert run.iou_metrics == ['mIoU']


@pytest.mark.parametrize(
    ('lines', 'named'),
    [
        (
            "test_evaluator = dict(_delete_=True, type='CityscapesMetric', output_dir='x')",
            'test_evaluator must be one of IoUMetric, .*; got CityscapesMetric',
        ),
        (f'test_evaluator = [{IOU.format("")}, {IOU.format("")}]', 'test_evaluator must be one metric; got IoU.*, IoU'),
        ('test_evaluator = []', 'test_evaluator must be one metric; got none'),
        ('test_evaluator = None', 'test_evaluator must be one of .*; got none'),
    ],
)
def test_another_metric_is_named_with_those_that_are_possible(lines, named, metrics):
    with pytest.raises(ProtocolError, match=named) as error:
        metrics(lines)
    assert not isinstance(error.value, NoTruthError)


def test_a_test_without_validation_has_no_public_truth(metrics):
    with pytest.raises(NoTruthError, match='not public'):
        metrics('val_evaluator = None')
