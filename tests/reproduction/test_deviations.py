"""What is printed of a table's source is true of the network that runs."""

import pytest

from reproduction.plan import follows_source, plan, source_words
from reproduction.protocol import Protocol
from reproduction.tables import read_tables


@pytest.fixture(scope='module')
def tables():
    return read_tables()


@pytest.mark.parametrize(
    ('place', 'options', 'gone'),
    [
        (('fusion-3.1', 'NE'), {'model.question_encoder.frozen': True}, ['Skip-Thought is fine-tuned']),
        (('fusion-3.1', 'NE'), {'model.head.pooled_dim': 310}, ['Each of two glimpses']),
        (('fusion-3.1', 'NE'), {'model.head.num_glimpses': 4}, ['Each of two glimpses']),
        (('fusion-3.1', 'NE'), {'model.head.activation': 'identity'}, ['q̃ and ṽ have tanh']),
        (('fusion-3.1', 'NE'), {'model.head.activation': 'tanh', 'model.head.pooled_dim': 620}, []),
        (('5.1', 'SST (Grid)'), {'model.query': 'object'}, ['In the decoder, the video provides']),
        (('5.1', 'SST (Grid)'), {'model.aggregation': 'max'}, ['At test, the odds']),
        (('5.2', 'SST (Strided)'), {'model.attention.local_pattern': 'forward'}, ['The first pattern']),
        (('5.2', 'SST (Strided)'), {'model.attention.local_pattern': 'centred'}, ['The first pattern']),
        (('5.2', 'SST (Strided)'), {'model.attention.local_pattern': 'block'}, []),
        (('2', 'w/o'), {'model.rpn_head.loss_bbox.loss_weight': 1.0}, []),
        (('2', 'w/o'), {'model.roi_head.bbox_head.loss_bbox.type': 'SmoothL1Loss'}, ['Boxes']),
        (('2', 'w/o'), {'optim_wrapper.clip_grad.max_norm': 35}, ['Gradients are not clipped']),
        (('2', 'w/o'), {'model.train_cfg.rpn.allowed_border': 0}, ['Anchors']),
        (('2', 'w/o'), {'model.roi_head.bbox_roi_extractor.roi_layer.sampling_ratio': 2}, ['RoIAlign']),
        (('2', 'w/o'), {'param_scheduler.0.start_factor': 1 / 3}, ['The warm-up']),
        (('2', '0100: E2'), {'model.backbone.plugins.0.cfg.wavelength': 10000}, ['Wavelengths']),
        (('3.5', 'Bi-SA'), {'model.cross_attention.content_smoothing': 22.63}, ['Logits are divided']),
        (('ngsan-7', 'NSA'), {'model.num_features': 1000}, ['Features have']),
        (('5.1', 'SST (Grid)'), {'model.binary_masks': True}, ['Reference masks']),
        (('3.2', 'Bi-CC'), {'model.decode_head.content_smoothing': 22.63}, ['Content logits']),
        (('3.3', 'Bi-NL, 0, √d'), {'model.decode_head.smoothing': 22.63}, ['Position logits']),
        (('terms-nmt-2', '0100: E2'), {'model.encoder_attention.query_bias': True}, ['Keys, values']),
    ],
)
def test_a_deviation_is_left_out_where_an_option_makes_it_false(place, options, gone, tables):
    table, name = place
    row = next(row for row in tables[table] if row.name == name and (table != '2' or row.data != 'Cityscapes'))
    (before, _), (after, _) = source_words([row]), source_words([row], options)
    left_out = [text for text in row.deviations if text in before and text not in after]
    assert len(left_out) == len(gone)
    assert all(text.startswith(start) for text, start in zip(left_out, gone))


@pytest.mark.parametrize('other', [dict(small=True), dict(scale=0.5)])
def test_another_network_is_not_compared_with_the_source(other, tables):
    methods = plan(tables['3.2'], Protocol(), None, ['NL'], with_baselines=False)
    assert follows_source(methods, Protocol(), None)
    assert not follows_source(methods, Protocol(**other), None)
