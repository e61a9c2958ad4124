"""The quick start's training with a smaller model that holds several components: made ``checkpoint.pth``."""

_base_ = ['../../configs/bi_cc/bi-cc_r18-d8-half_1xb8-50_buildings-256x256.py']
norm_cfg = dict(type='BN', requires_grad=True)
head = dict(in_channels=32, in_index=0, channels=8, num_classes=2, norm_cfg=norm_cfg, align_corners=False)
loss = dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=0.4)
attention = dict(type='mmattn.TransformerAttention2d', num_heads=2)
model = dict(
    backbone=dict(
        _delete_=True,
        type='ResNetV1c',
        depth=50,
        num_stages=1,
        strides=(1,),
        dilations=(1,),
        out_indices=(0,),
        stem_channels=8,
        base_channels=8,
        norm_cfg=norm_cfg,
        plugins=[dict(cfg=attention, stages=(True,), position='after_conv2')],
    ),
    decode_head=dict(_delete_=True, type='mmattn.BiCCHead', window_size=5, loss_decode=loss, **head),
    auxiliary_head=[
        dict(type='mmattn.BiNLHead', window_size=5, loss_decode=loss, **head),
        dict(
            type='mmattn.AttentionHead',
            attention=dict(type='mmattn.LocalBilateralAttention', num_heads=2, norm_cfg=norm_cfg),
            loss_decode=loss,
            **head,
        ),
    ],
)
train_cfg = dict(max_iters=4)
