# mmseg's MobileNetV2 up to stride 8, for `tools/reproduce.py --backbone` on clips: its first three layers, as they are.
# Its maps have 24 channels (stride 4) and 32, which the model reads. Inputs are (x - 127.5) / 127.5.
custom_imports = dict(imports=['reproduction.mobilenet_v2_stride8'])
model = dict(
    data_preprocessor=dict(mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5], bgr_to_rgb=True),
    backbone=dict(
        type='mmattn.MobileNetV2Stride8',
        out_indices=(1, 2),
        norm_cfg=dict(type='BN', requires_grad=True),
        act_cfg=dict(type='ReLU6'),
    ),
    in_channels=32,
)
