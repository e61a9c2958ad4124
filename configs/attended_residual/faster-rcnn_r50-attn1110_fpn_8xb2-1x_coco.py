_base_ = './faster-rcnn_r50_fpn_8xb2-1x_coco.py'
attention = dict(type='mmattn.TransformerAttention2d', terms='1110')
model = dict(backbone=dict(plugins=[dict(cfg=attention, stages=(False, False, True, True), position='after_conv2')]))
