_base_ = './faster-rcnn_r50-w16_fpn_1xb8-150_bccd-320x240.py'
attention = dict(type='mmattn.TransformerAttention2d', terms='0010')
model = dict(backbone=dict(plugins=[dict(cfg=attention, stages=(False, False, True, True), position='after_conv2')]))
