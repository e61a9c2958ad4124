# DeepLabV3+ with one fusion block in its decoder, local bilateral attention of row e of Table 4.2.
_base_ = './r50-d8.py'
model = dict(
    pretrained='open-mmlab://resnet101_v1c',
    backbone=dict(depth=101),
    decode_head=dict(
        type='mmattn.DeepLabV3PlusBAHead', channels=256, dilations=(1, 12, 24, 36), c1_in_channels=256, c1_channels=48
    ),
)
