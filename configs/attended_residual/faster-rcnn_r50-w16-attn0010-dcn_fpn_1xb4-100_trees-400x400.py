_base_ = './faster-rcnn_r50-w16_fpn_1xb4-100_trees-400x400.py'
attention = dict(type='mmattn.TransformerAttention2d', terms='0010')
model = dict(
    backbone=dict(
        plugins=[dict(cfg=attention, stages=(False, False, True, True), position='after_conv2')],
        dcn=dict(type='DCN', deform_groups=1, fallback_on_stride=False),
        stage_with_dcn=(False, False, True, True),
    )
)
