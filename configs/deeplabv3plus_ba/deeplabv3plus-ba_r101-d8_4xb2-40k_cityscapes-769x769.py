# Table 4.2, row e: content and geometric, 8 heads; rows a to d, f, g and h are options of the block.
_base_ = [
    '../_base_/models/deeplabv3plus-ba_r101-d8.py',
    '../_base_/datasets/cityscapes_scale-0.5.py',
    '../_base_/default_runtime.py',
    '../_base_/schedules/sgd_40k.py',
]
model = dict(
    data_preprocessor=dict(size=(769, 769)),
    decode_head=dict(align_corners=True, block=dict(type='mmattn.LocalBilateralAttention')),
    auxiliary_head=dict(align_corners=True),
)
