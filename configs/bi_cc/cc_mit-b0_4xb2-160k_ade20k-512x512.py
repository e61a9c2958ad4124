# CC on MiT-B0, SegFormer's encoder, whose last map has stride 32; SegFormer's schedule. Not in the thesis.
_base_ = './cc_r101-d8_4xb2-160k_ade20k-512x512.py'
checkpoint = 'https://download.openmmlab.com/mmsegmentation/v0.5/pretrain/segformer/mit_b0_20220624-7e0fe6dd.pth'
model = dict(
    pretrained=None,
    backbone=dict(
        _delete_=True,
        type='MixVisionTransformer',
        embed_dims=32,
        num_layers=[2, 2, 2, 2],
        num_heads=[1, 2, 5, 8],
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint),
    ),
    decode_head=dict(in_channels=256),
    auxiliary_head=dict(in_channels=160),
)
optimizer = dict(_delete_=True, type='AdamW', lr=0.00006, betas=(0.9, 0.999), weight_decay=0.01)
optim_wrapper = dict(
    optimizer=optimizer,
    paramwise_cfg=dict(
        custom_keys=dict(pos_block=dict(decay_mult=0.0), norm=dict(decay_mult=0.0), head=dict(lr_mult=10.0))
    ),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', eta_min=0.0, power=1.0, by_epoch=False, begin=1500, end=160000),
]
