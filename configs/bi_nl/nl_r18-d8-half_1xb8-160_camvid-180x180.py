_base_ = [
    '../_base_/models/r18-d8-half.py',
    '../_base_/datasets/camvid_half.py',
    '../_base_/default_runtime.py',
    '../_base_/schedules/adamw_160.py',
]
model = dict(
    data_preprocessor=dict(size=(180, 180)),
    decode_head=dict(type='NLHead', num_classes=11),
    auxiliary_head=dict(num_classes=11),
)
