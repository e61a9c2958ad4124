_base_ = [
    '../_base_/models/unet-ba_r18.py',
    '../_base_/datasets/lfw_pl_aligned.py',
    '../_base_/default_runtime.py',
    '../_base_/schedules/adam_lfw_pl.py',
]
model = dict(data_preprocessor=dict(size=(224, 224)), decode_head=dict(num_classes=3))
