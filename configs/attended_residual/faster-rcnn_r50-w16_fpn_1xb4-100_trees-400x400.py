_base_ = [
    '../_base_/models/faster-rcnn_r50-w16_fpn.py',
    '../_base_/datasets/trees.py',
    '../_base_/default_runtime_det.py',
    '../_base_/schedules/det_adamw_100.py',
]
model = dict(roi_head=dict(bbox_head=dict(num_classes=1)))
log_processor = dict(by_epoch=False)
