_base_ = './faster-rcnn_r50-w16-attn0010_fpn_1xb8-150_bccd-320x240.py'
model = dict(
    backbone=dict(
        dcn=dict(type='DCN', deform_groups=1, fallback_on_stride=False), stage_with_dcn=(False, False, True, True)
    )
)
