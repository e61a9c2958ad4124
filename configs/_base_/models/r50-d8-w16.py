# The same frame, small enough for two CPU cores and trained from scratch: ResNet-50 of a quarter of the width, whose
# bottlenecks take plugins.
_base_ = './r50-d8.py'
norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    pretrained=None,
    backbone=dict(type='ResNet', base_channels=16, norm_cfg=norm_cfg),
    decode_head=dict(in_channels=512, channels=128, norm_cfg=norm_cfg),
    auxiliary_head=dict(in_channels=256, channels=64, norm_cfg=norm_cfg),
)
