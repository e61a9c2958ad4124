# The peer, mmseg's own U-Net: the same data, budget and loss.
_base_ = [
    '../_base_/models/unet_s5-d16-w24.py',
    '../_base_/datasets/fasseg.py',
    '../_base_/default_runtime.py',
    '../_base_/schedules/adamw_480.py',
]
class_weight = [1.0, 1.0, 1.0, 4.0, 4.0, 4.0]
model = dict(
    data_preprocessor=dict(size=(192, 160)),
    decode_head=dict(loss_decode=dict(class_weight=class_weight)),
    auxiliary_head=dict(loss_decode=dict(class_weight=class_weight)),
)
