# The same detector, small enough for two CPU cores and trained from scratch: a quarter of the width.
_base_ = './faster-rcnn_r50_fpn.py'
model = dict(
    backbone=dict(base_channels=16, frozen_stages=-1, norm_eval=False, init_cfg=None),
    neck=dict(in_channels=[64, 128, 256, 512], out_channels=64),
    rpn_head=dict(in_channels=64, feat_channels=64),
    roi_head=dict(bbox_roi_extractor=dict(out_channels=64), bbox_head=dict(in_channels=64, fc_out_channels=256)),
    train_cfg=dict(rpn_proposal=dict(nms_pre=500, max_per_img=300), rcnn=dict(sampler=dict(num=128))),
    test_cfg=dict(rpn=dict(nms_pre=500, max_per_img=300)),
)
