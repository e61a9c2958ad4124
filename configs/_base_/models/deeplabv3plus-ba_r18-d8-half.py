# The same network, small enough for two CPU cores and trained from scratch: ResNet-18 of half the width.
_base_ = './deeplabv3plus-ba_r101-d8.py'
norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    pretrained=None,
    backbone=dict(type='ResNet', depth=18, base_channels=32, norm_cfg=norm_cfg),
    decode_head=dict(in_channels=256, channels=64, c1_in_channels=32, c1_channels=12, norm_cfg=norm_cfg),
    auxiliary_head=dict(in_channels=128, channels=32, norm_cfg=norm_cfg),
)
