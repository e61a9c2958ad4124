_base_ = [
    '../_base_/models/r50-d8.py',
    '../_base_/datasets/cityscapes.py',
    '../_base_/default_runtime.py',
    '../_base_/schedules/sgd_80k.py',
]
model = dict(
    data_preprocessor=dict(size=(769, 769)),
    decode_head=dict(type='NLHead', align_corners=True),
    auxiliary_head=dict(align_corners=True),
    test_cfg=dict(mode='slide', crop_size=(769, 769), stride=(513, 513)),
)
