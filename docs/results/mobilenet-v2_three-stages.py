"""The first three stages of MobileNetV2, stride 8 and a receptive field of 59 pixels.

Attention must supply what is further away: question (f) of docs/evidence_protocol.md, for ``reproduce.py --backbone``.
"""

norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    data_preprocessor=dict(mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5], bgr_to_rgb=True),
    backbone=dict(type='MobileNetV2', out_indices=(1, 2), norm_cfg=norm_cfg, act_cfg=dict(type='ReLU6')),
    decode_head=dict(in_channels=32, in_index=1, channels=128, norm_cfg=norm_cfg),
    auxiliary_head=dict(in_channels=24, in_index=0, channels=64, norm_cfg=norm_cfg),
)
