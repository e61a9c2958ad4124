_base_ = [
    '../_base_/models/r50-d8.py',
    '../_base_/datasets/camvid.py',
    '../_base_/default_runtime.py',
    '../_base_/schedules/sgd_4k.py',
]
model = dict(
    data_preprocessor=dict(size=(360, 360)),
    decode_head=dict(type='CCHead', num_classes=11),
    auxiliary_head=dict(num_classes=11),
)
