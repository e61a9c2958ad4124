# U-Net-BA for face parsing: ResNet-18 without its last two downsamplings (output stride 8), the stem among its outputs,
# and the decoder of Table 4.5. `decode_head.block` makes it another U-Net.
norm_cfg = dict(type='SyncBN', requires_grad=True)
data_preprocessor = dict(
    type='SegDataPreProcessor',
    mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375],
    bgr_to_rgb=True,
    pad_val=0,
    seg_pad_val=255,
)
model = dict(
    type='EncoderDecoder',
    data_preprocessor=data_preprocessor,
    backbone=dict(
        type='mmattn.ResNetStem',
        depth=18,
        strides=(1, 2, 1, 1),
        dilations=(1, 1, 2, 4),
        norm_cfg=norm_cfg,
        norm_eval=False,
        init_cfg=dict(
            type='Pretrained',
            prefix='backbone.',
            checkpoint='https://download.openmmlab.com/mmclassification/v0/resnet/'
            'resnet18_8xb32_in1k_20210831-fbbb1da6.pth',
        ),
    ),
    decode_head=dict(
        type='mmattn.UNetBAHead',
        in_channels=(64, 64, 128, 256, 512),
        num_classes=11,
        dropout_ratio=0.1,
        norm_cfg=norm_cfg,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
