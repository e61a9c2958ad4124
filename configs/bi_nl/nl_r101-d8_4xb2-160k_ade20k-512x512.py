_base_ = [
    '../_base_/models/r50-d8.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/default_runtime.py',
    '../_base_/schedules/sgd_160k.py',
]
model = dict(
    pretrained='open-mmlab://resnet101_v1c',
    data_preprocessor=dict(size=(512, 512)),
    backbone=dict(depth=101),
    decode_head=dict(type='NLHead', num_classes=150),
    auxiliary_head=dict(num_classes=150),
)
