_base_ = './fcn_r50-d8_8xb1-60k_cityscapes-769x769.py'
attention = dict(type='mmattn.TransformerAttention2d', terms='1111', norm_cfg=dict(type='SyncBN', requires_grad=True))
model = dict(
    backbone=dict(plugins=[dict(cfg=attention, stages=(False, False, True, True), position='after_conv2')]),
    decode_head=dict(attention=attention),
)
