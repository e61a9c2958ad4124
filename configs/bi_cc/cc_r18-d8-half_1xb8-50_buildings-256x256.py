_base_ = [
    '../_base_/models/r18-d8-half.py',
    '../_base_/datasets/buildings.py',
    '../_base_/default_runtime.py',
    '../_base_/schedules/adamw_50.py',
]
model = dict(
    data_preprocessor=dict(size=(256, 256)),
    decode_head=dict(type='CCHead', num_classes=2),
    auxiliary_head=dict(num_classes=2),
)
