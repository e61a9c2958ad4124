# The same frame, small enough for two CPU cores and trained from scratch: ResNet-18 of half the width.
_base_ = './r50-d8.py'
norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    pretrained=None,
    backbone=dict(type='ResNet', depth=18, base_channels=32, norm_cfg=norm_cfg),
    decode_head=dict(in_channels=256, channels=64, norm_cfg=norm_cfg),
    auxiliary_head=dict(in_channels=128, channels=32, norm_cfg=norm_cfg),
)
