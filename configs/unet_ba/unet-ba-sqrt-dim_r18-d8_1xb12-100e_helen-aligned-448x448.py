_base_ = [
    '../_base_/models/unet-ba-sqrt-dim_r18.py',
    '../_base_/datasets/helen_aligned.py',
    '../_base_/default_runtime.py',
    '../_base_/schedules/adam_helen.py',
]
model = dict(data_preprocessor=dict(size=(448, 448)), decode_head=dict(num_classes=11))
