# mmseg's MobileNetV2 with output stride 8, for `tools/reproduce.py --backbone`: the backbone, and what the heads read
# from it. Its maps have 24 channels (stride 4), 96 and 320. Inputs are (x - 127.5) / 127.5.
norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    data_preprocessor=dict(mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5], bgr_to_rgb=True),
    backbone=dict(
        type='MobileNetV2',
        strides=(1, 2, 2, 1, 1, 1, 1),
        dilations=(1, 1, 1, 2, 2, 4, 4),
        out_indices=(1, 4, 6),
        norm_cfg=norm_cfg,
        act_cfg=dict(type='ReLU6'),
    ),
    decode_head=dict(in_channels=320, in_index=2, c1_in_channels=24, norm_cfg=norm_cfg),
    auxiliary_head=dict(in_channels=96, in_index=1, norm_cfg=norm_cfg),
)
