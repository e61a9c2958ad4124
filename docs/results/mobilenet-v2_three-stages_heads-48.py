"""The first three stages of MobileNetV2, for heads of 48 channels that read the last of its maps, at stride 8."""

custom_imports = dict(imports=['reproduction.mobilenet_v2_stride8'])
norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    data_preprocessor=dict(mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5], bgr_to_rgb=True),
    backbone=dict(type='mmattn.MobileNetV2Stride8', out_indices=(2,), norm_cfg=norm_cfg, act_cfg=dict(type='ReLU6')),
    decode_head=dict(in_channels=32, in_index=0, channels=48, norm_cfg=norm_cfg),
    auxiliary_head=dict(in_channels=32, in_index=0, channels=48, norm_cfg=norm_cfg),
)
