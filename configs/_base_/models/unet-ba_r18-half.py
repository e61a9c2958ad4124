# The same network, small enough for two CPU cores and trained from scratch: half the width throughout.
_base_ = './unet-ba_r18.py'
norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    data_preprocessor=dict(test_cfg=dict(size_divisor=16)),
    backbone=dict(stem_channels=32, base_channels=32, norm_cfg=norm_cfg, init_cfg=None),
    decode_head=dict(
        in_channels=(32, 32, 64, 128, 256), up_channels=(256, 128, 128, 64), num_classes=6, norm_cfg=norm_cfg
    ),
)
