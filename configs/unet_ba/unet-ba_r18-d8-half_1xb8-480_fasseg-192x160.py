# A short run from scratch. Eyes, nose and mouth, 0.7 to 2 % of the pixels, weigh four times as much as the rest.
_base_ = [
    '../_base_/models/unet-ba_r18-half.py',
    '../_base_/datasets/fasseg.py',
    '../_base_/default_runtime.py',
    '../_base_/schedules/adamw_480.py',
]
class_weight = [1.0, 1.0, 1.0, 4.0, 4.0, 4.0]
model = dict(data_preprocessor=dict(size=(192, 160)), decode_head=dict(loss_decode=dict(class_weight=class_weight)))
