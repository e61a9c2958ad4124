_base_ = './fcn_r50-d8-attn0110_8xb1-60k_cityscapes-769x769.py'
model = dict(
    backbone=dict(
        dcn=dict(type='DCN', deform_groups=1, fallback_on_stride=False), stage_with_dcn=(False, False, True, True)
    )
)
