_base_ = './faster-rcnn_r50-attn1110_fpn_8xb2-1x_coco.py'
model = dict(
    backbone=dict(
        dcn=dict(type='DCN', deform_groups=1, fallback_on_stride=False), stage_with_dcn=(False, False, True, True)
    )
)
