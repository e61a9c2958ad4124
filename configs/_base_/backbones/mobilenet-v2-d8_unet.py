# The same with five maps, of strides 2, 4, 8, 8 and 8, for the decoder of a U-Net.
_base_ = './mobilenet-v2-d8.py'
model = dict(
    backbone=dict(out_indices=(0, 1, 2, 4, 6)),
    decode_head=dict(
        _delete_=True, in_channels=(16, 24, 32, 96, 320), in_index=(0, 1, 2, 3, 4), norm_cfg=_base_.norm_cfg
    ),
)
