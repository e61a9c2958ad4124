"""A part that is missing leaves out the tests that require it, and no other."""

from . import requirements
from .requirements import missing_of, parts_for


def test_the_reason_says_how_to_get_the_part(monkeypatch):
    monkeypatch.setitem(requirements.PARTS, 'java', (False, 'it is not on the PATH'))
    monkeypatch.setitem(requirements.PARTS, 'g++', (True, ''))
    assert [missing_of(parts) for parts in ([], ['g++'])] == [None, None]
    assert missing_of(['g++', 'java']) == 'requires java: it is not on the PATH'


def test_configs_require_the_operators_of_mmcv_for_detectors_deformable_convolution_and_cc():
    detector = 'attended_residual/faster-rcnn_r50-w16_fpn_1xb4-100_trees-400x400.py'
    deformable = 'attended_residual/fcn_r50-d8-dcn_8xb1-60k_cityscapes-769x769.py'
    ours, stock = (f'bi_cc/{name}_r18-d8-half_1xb8-50_buildings-256x256.py' for name in ('bi-cc', 'cc'))
    assert [parts_for(name) for name in (detector, deformable, stock, ours)] == [*[['mmcv operators']] * 3, []]
